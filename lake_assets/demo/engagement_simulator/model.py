"""The parameters of a simulation: values only.

Time advances in steps of a quarter of an hour or less, so that a step is small at any scale. Engagements happen during
a step. All requests of a step are executed in its last millisecond. An engagement has the id that its person has at
that moment: no engagement happens under an id after its conversion, merge or deletion, but it may become known later.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

from lake_assets.base.hours import HOUR_MICROSECONDS, parse_hour
from lake_assets.errors import ConfigurationError

HOUR_MS = HOUR_MICROSECONDS // 1000
QUARTER_MS = HOUR_MS // 4
DAY_MS = 24 * HOUR_MS
QUARTERS_PER_HOUR = 4

MAX_TOUCHES_PER_STEP = 10_000
"""Approximate; the touches of a step are in memory at once."""

MAX_COUNT = 10**9
COUNT_LIMITS = {
    "seed": (0, 2**63),
    "hours": (1, MAX_COUNT),
    "orgs": (1, MAX_COUNT),
    "people": (0, MAX_COUNT),
    "touches": (0, MAX_COUNT),
}
"""Smallest and largest value of the parameters that are counts."""

SHARE_LIMITS = (0, 1)


@dataclass(frozen=True)
class Simulation:
    """Organizations, their people, and what sales reps do. Shares are between 0 and 1.

    Attributes:
        seed: Seed of all random streams. The names of orgs contain it, so two simulations with different seeds have
            nothing in common.
        start: First hour, as an hour key.
        hours: Number of hours in which reps act. The effects of their actions may come later.
        orgs: Number of organizations.
        people: Number of people of all orgs. The n-th org has 1/n of the people of the first, and at least two.
        touches: Number of emails sent and calls made. Opens, replies and bounces are additional engagements.
        calls: Share of touches that are calls.
        bounced: Share of emails that bounce.
        opened: Share of delivered emails that are opened.
        replied: Share of opened emails that are replied to.
        late: Share of engagements that become known some hours after they happened.
        old: Share of engagements that are imported: they happened up to 400 days earlier.
        requests: Conversions, merges and deletions for each touch.
        deletions: Share of requests that delete.
        cycles: Share of conversions that are reverted at once.
        repeated: Share of requests that are sent again in the next step.
        records: Share of conversions and merges that carry the record of a call. Half of these records replace an
            engagement.
        early: Share of requests for an id without any known engagement.
        missing: Share of early requests whose engagement never becomes known.
        retention: Requests to erase a person or to limit the age of an org's engagements, for each touch.
        poison: Messages that cannot become a row, for each sound message.
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
        for field in fields(self):
            if field.name != "start":
                self._check_limits(field.name)

    @cached_property
    def start_ms(self) -> int:
        """The first moment, in milliseconds since 1970-01-01 UTC."""
        return parse_hour(self.start, where="The simulation's start") * HOUR_MS

    @cached_property
    def step_ms(self) -> int:
        """The length of a step in milliseconds. A quarter of an hour is a whole number of steps."""
        quarters = self.hours * QUARTERS_PER_HOUR
        steps_per_quarter = max(1, -(-self.touches // (quarters * MAX_TOUCHES_PER_STEP)))
        while QUARTER_MS % steps_per_quarter:
            steps_per_quarter += 1
        return QUARTER_MS // steps_per_quarter

    @property
    def steps(self) -> int:
        """The number of steps in which reps act."""
        return self.hours * HOUR_MS // self.step_ms

    def step_start(self, step: int) -> int:
        """Return the first moment of a step, in milliseconds since 1970-01-01 UTC."""
        return self.start_ms + step * self.step_ms

    def touches_of(self, step: int) -> int:
        """Return the number of touches in a step. The steps share all touches evenly."""
        if step >= self.steps:
            return 0
        before = self.touches * step // self.steps
        after = self.touches * (step + 1) // self.steps
        return after - before

    def _check_limits(self, name: str) -> None:
        value = getattr(self, name)
        smallest, largest = COUNT_LIMITS.get(name, SHARE_LIMITS)
        if not smallest <= value <= largest:
            raise ConfigurationError(
                f"{name} of the simulation is {value}.",
                remedy=f"Set it to a value between {smallest} and {largest:,}.",
            )
