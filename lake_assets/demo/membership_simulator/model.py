"""What a simulation is: a population, and the model of when its events become known. Values only.

Each row is known after a delay of its own, and lands with the first landing at or after that moment. Its delay is
- prompt, for all but `tail` of the rows: log-normal, median `prompt_minutes`, cut at `grace_minutes`;
- or of the heavy tail: log-normal, median `tail_hours`, sigma `tail_sigma`, cut at `longest_hours`.
An hour is declared complete by the first landing that lies `grace_minutes` after its end, so a row is late only by the
tail, a stall or a second delivery. An outage holds a whole source back: nothing lands, its complete-through stands
still, then all comes at once. A stall holds a part of the clients back: complete-through moves on, and their rows are
late. `figures.measure` tells what that amounts to.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lake_assets.demo.membership_simulator.population import Population
from lake_assets.errors import ConfigurationError
from lake_assets.membership.raw import RAW

TABLES = tuple(raw.table for raw in RAW)


@dataclass(frozen=True)
class Outage:
    """Nothing of `tables` lands from `first` (hours since the start, inclusive) for `hours`; then all of it at once."""

    first: int
    hours: int
    tables: tuple[str, ...] = TABLES


@dataclass(frozen=True)
class Stalls:
    """One landing in `every`, drawn within each group of so many, brings late rows of clients that were cut off.

    They are `share` of what happened in a window of `window_minutes` that began `depth_hours` before the landing
    (log-normal, this is its median; cut to `least_hours`..`most_hours`). first: hours since the start without any.
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
    """How events reach the raw tables; see the module.

    interval_minutes: from one landing to the next, 15 or whole hours. twice: the share of rows delivered twice in one
        landing.
    again: the share delivered again in a later one, after a further delay of the tail. bad: bad rows for each good one.
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
        if self.interval_minutes != 15 and (self.interval_minutes < 60 or self.interval_minutes % 60):
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
    accounts: int = 20_000, *, seed: int = 1, start: str = "2026-01-01-00:00", loaded_hours: int = 6
) -> Simulation:
    """A day that lands every 15 minutes, one landing in eight with late rows, of median depth 2 h and at most 6 h.

    The first landing brings the `loaded_hours` before that day at once; 96 landings of the day follow, and one with the
    prompt rows of its last minutes. Nothing is delivered twice. From some thousand accounts on, each stall finds rows.
    """
    return Simulation(
        Population(accounts=accounts, seed=seed, start=start, hours=loaded_hours + 24),
        Arrival(
            interval_minutes=15,
            grace_minutes=15,
            tail=0.0,
            twice=0.0,
            again=0.0,
            outages=(Outage(0, loaded_hours),) if loaded_hours else (),
            stalls=Stalls(first=loaded_hours),
        ),
    )
