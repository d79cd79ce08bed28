"""The parameters of a simulation: a population, and the model of when its events become known. Values only.

Each row becomes known after its own delay, and lands with the first landing at or after that moment. The delay is

- prompt, for all rows except a share of `tail`: log-normal, median `prompt_minutes`, at most `grace_minutes`;
- or of the heavy tail: log-normal, median `tail_hours`, sigma `tail_sigma`, at most `longest_hours`.

The first landing at least `grace_minutes` after the end of an hour declares the hour complete. So a row is late only
because of the tail, a stall or a second delivery. During an outage nothing of a source lands and its complete-through
stands still; afterwards all of it lands at once. During a stall a part of the clients is cut off: complete-through
advances, and their rows are late. `figures.measure` computes the resulting statistics.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lake_assets.demo.membership_simulator.population import Population
from lake_assets.errors import ConfigurationError
from lake_assets.membership.raw import RAW

TABLES = tuple(raw.table for raw in RAW)
QUARTER_MINUTES = 15
HOUR_MINUTES = 60
DAY_HOURS = 24


@dataclass(frozen=True)
class Outage:
    """A period without landings; all rows of it land at once afterwards.

    Attributes:
        first: First hour, inclusive, counted from the start of the simulation.
        hours: Length.
        tables: The raw tables concerned.
    """

    first: int
    hours: int
    tables: tuple[str, ...] = TABLES


@dataclass(frozen=True)
class Stalls:
    """Landings with late rows of clients that were cut off for a while.

    One landing in each group of `every` has such rows: a `share` of the events in a window that began some hours before
    the landing. This depth is log-normal and cut to `least_hours`..`most_hours`.

    Attributes:
        every: Number of landings in a group.
        share: Share of the window's events that are late.
        depth_hours: Median depth.
        depth_sigma: Sigma of the depth.
        least_hours: Smallest depth.
        most_hours: Largest depth.
        window_minutes: Length of the window.
        first: Number of hours at the start without stalls.
    """

    every: int = 8
    share: float = 0.3
    depth_hours: float = 2.25
    depth_sigma: float = 0.55
    least_hours: float = 1.75
    most_hours: float = 6.0
    window_minutes: int = 30
    first: int = 0


@dataclass(frozen=True)
class Arrival:
    """How events reach the raw tables; the module's docstring has the model.

    Attributes:
        interval_minutes: From one landing to the next: 15, or whole hours.
        grace_minutes: From the end of an hour to the earliest landing that declares it complete.
        prompt_minutes: Median of the prompt delays.
        tail: Share of rows with a delay of the heavy tail.
        tail_hours: Median of the heavy tail.
        tail_sigma: Sigma of the heavy tail.
        longest_hours: Largest delay of the heavy tail.
        twice: Share of rows that are delivered twice in one landing.
        again: Share of rows that are delivered again in a later landing, after another delay of the tail.
        bad: Bad rows for each good one.
        outages: Periods without landings.
        stalls: Landings with late rows of clients that were cut off; None for none.
    """

    interval_minutes: int = 60
    grace_minutes: int = 10
    prompt_minutes: float = 2.0
    tail: float = 0.03
    tail_hours: float = 1.5
    tail_sigma: float = 1.0
    longest_hours: float = 24.0
    twice: float = 0.005
    again: float = 0.005
    bad: float = 0.0
    outages: tuple[Outage, ...] = ()
    stalls: Stalls | None = None

    def __post_init__(self) -> None:
        is_whole_hours = self.interval_minutes >= HOUR_MINUTES and self.interval_minutes % HOUR_MINUTES == 0
        if not is_whole_hours and self.interval_minutes != QUARTER_MINUTES:
            raise ConfigurationError(
                f"The simulator's landings are {self.interval_minutes} minutes apart.",
                remedy="Set interval_minutes to 15, or to whole hours.",
            )


@dataclass(frozen=True)
class Simulation:
    """Everything that a sequence of landings depends on."""

    population: Population = field(default_factory=Population)
    arrival: Arrival = field(default_factory=Arrival)


def late_day(
    accounts: int = 20_000,
    *,
    seed: int = 1,
    start: str = "2026-01-01-00:00",
    loaded_hours: int = 6,
) -> Simulation:
    """Return a day with a landing every 15 minutes. One in eight has late rows, of median depth 2 h and at most 6 h.

    The first landing has all rows of the `loaded_hours` before that day. The 96 landings of the day follow, and one
    with the prompt rows of its last minutes. No row is delivered twice.

    Args:
        accounts: Number of people. With several thousand, every stall has rows.
        seed: Seed of all random streams.
        start: First hour, as an hour key.
        loaded_hours: Number of hours before the day.
    """
    outages = (Outage(0, loaded_hours),) if loaded_hours else ()
    return Simulation(
        Population(accounts=accounts, seed=seed, start=start, hours=loaded_hours + DAY_HOURS),
        Arrival(
            interval_minutes=QUARTER_MINUTES,
            grace_minutes=QUARTER_MINUTES,
            tail=0.0,
            twice=0.0,
            again=0.0,
            outages=outages,
            stalls=Stalls(first=loaded_hours),
        ),
    )
