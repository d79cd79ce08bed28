"""What a simulation is: values only.

Time goes in ticks of a quarter of an hour, or parts of it, so that a tick is small whatever the scale. Engagements
happen within a tick; requests are carried out at its last millisecond, all at the same instant. Who is engaged is
called by the id that holds at that moment: no engagement happens under an id after it was converted, merged or deleted,
though it may become known after that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.hours import HOUR_MICROSECONDS, parse_hour

QUARTER_MS = 900_000
DAY_MS = 86_400_000
MOST_TOUCHES = 10_000
"""Of one tick, about: they are held in memory."""


@dataclass(frozen=True)
class Simulation:
    """Orgs, their people, and what reps do. All but the counts and the moments are shares: parts of one.

    seed: also a part of the names of orgs, so two simulations with different seeds have nothing in common.
    start: the first hour, a key. hours: how many hours reps act for; what follows from it may come later.
    people: of all orgs; the n-th org has 1/n of those of the first, and two at least.
    touches: emails sent and calls made; each opening, reply and bounce comes on top.
    calls: of touches. bounced, opened, replied: of emails; replies are to those that were opened.
    late: of engagements that become known after a delay of hours. old: that were imported, up to 400 days old.
    requests: conversions, merges and deletions, for each touch. deletions: of them. cycles: of conversions, undone at
        once. repeated: of requests, sent again in the next tick.
    early: of requests, for an id that no engagement is known of yet. missing: of these, it never is.
    retention: requests to erase a person, or to keep an org's engagements for so many days only, for each touch.
    poison: messages that make no row, for each sound one.
    """

    seed: int = 1
    start: str = "2026-01-01-00:00"
    hours: int = 24
    orgs: int = 20
    people: int = 2_000
    touches: int = 5_000
    calls: float = 0.25
    bounced: float = 0.03
    opened: float = 0.4
    replied: float = 0.25
    late: float = 0.03
    old: float = 0.02
    requests: float = 0.06
    deletions: float = 0.08
    cycles: float = 0.03
    repeated: float = 0.03
    early: float = 0.08
    missing: float = 0.25
    retention: float = 0.004
    poison: float = 0.005

    def __post_init__(self) -> None:
        for name, least in {"seed": 0, "hours": 1, "orgs": 1, "people": 0, "touches": 0}.items():
            if getattr(self, name) < least:
                raise ConfigurationError(
                    f"{name} of the simulation is {getattr(self, name)}.", remedy=f"Set it to {least} or more."
                )
        for name, kind in self.__annotations__.items():
            if kind == "float" and not 0 <= getattr(self, name) <= 1:
                raise ConfigurationError(
                    f"{name} of the simulation is {getattr(self, name)}.", remedy="Set it to a part of one, 0 to 1."
                )

    @cached_property
    def start_ms(self) -> int:
        """The first moment, in milliseconds since 1970."""
        return parse_hour(self.start, where="The simulation's start") * (HOUR_MICROSECONDS // 1000)

    @cached_property
    def tick_ms(self) -> int:
        """How long a tick is: whole milliseconds, and whole ticks make a quarter of an hour."""
        wanted = -(-self.touches // (self.hours * 4 * MOST_TOUCHES))
        return next(QUARTER_MS // parts for parts in range(max(wanted, 1), QUARTER_MS + 1) if QUARTER_MS % parts == 0)

    @property
    def ticks(self) -> int:
        """So many ticks reps act in."""
        return self.hours * 4 * QUARTER_MS // self.tick_ms

    def tick_start(self, tick: int) -> int:
        """The first moment of a tick, in milliseconds since 1970."""
        return self.start_ms + tick * self.tick_ms

    def touches_of(self, tick: int) -> int:
        """How many touches fall in a tick: all ticks together have all of them."""
        if tick >= self.ticks:
            return 0
        return self.touches * (tick + 1) // self.ticks - self.touches * tick // self.ticks
