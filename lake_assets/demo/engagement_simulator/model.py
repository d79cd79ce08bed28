"""What a simulation is: values only.

Time goes in steps of a quarter of an hour, or parts of it, so that a step is small whatever the scale. Engagements
happen within a step; requests are carried out at its last millisecond, all at the same instant. Who is engaged is
called by the id that holds at that moment: no engagement happens under an id after it was converted, merged or deleted,
though it may become known after that.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

from lake_assets.base.hours import HOUR_MICROSECONDS, parse_hour
from lake_assets.errors import ConfigurationError

QUARTER_MS = 900_000
DAY_MS = 86_400_000
MOST_TOUCHES = 10_000
"""Of one step, about: they are held in memory."""

MOST = 10**9
COUNTS = {"seed": (0, 2**63), "hours": (1, MOST), "orgs": (1, MOST), "people": (0, MOST), "touches": (0, MOST)}
"""The least and the greatest value of what is no share."""


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
        once. repeated: of requests, sent again in the next step.
    records: of conversions and merges, that carry the record of a call; one in two replaces an engagement.
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
    records: float = 0.05
    early: float = 0.08
    missing: float = 0.25
    retention: float = 0.004
    poison: float = 0.005

    def __post_init__(self) -> None:
        for name in sorted({field.name for field in fields(self)} - {"start"}):
            value, (least, most) = getattr(self, name), COUNTS.get(name, (0, 1))
            if not least <= value <= most:
                raise ConfigurationError(
                    f"{name} of the simulation is {value}.", remedy=f"Set it to {least} or more, {most:,} at most."
                )

    @cached_property
    def start_ms(self) -> int:
        """The first moment, in milliseconds since 1970."""
        return parse_hour(self.start, where="The simulation's start") * (HOUR_MICROSECONDS // 1000)

    @cached_property
    def step_ms(self) -> int:
        """How long a step is: whole milliseconds, and whole steps make a quarter of an hour."""
        wanted = -(-self.touches // (self.hours * 4 * MOST_TOUCHES))
        return next(QUARTER_MS // parts for parts in range(max(wanted, 1), QUARTER_MS + 1) if QUARTER_MS % parts == 0)

    @property
    def steps(self) -> int:
        """So many steps reps act in."""
        return self.hours * 4 * QUARTER_MS // self.step_ms

    def step_start(self, step: int) -> int:
        """The first moment of a step, in milliseconds since 1970."""
        return self.start_ms + step * self.step_ms

    def touches_of(self, step: int) -> int:
        """How many touches fall in a step: all steps together have all of them."""
        if step >= self.steps:
            return 0
        return self.touches * (step + 1) // self.steps - self.touches * step // self.steps
