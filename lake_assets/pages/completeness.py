"""The picture of completeness: a strip of hours for each table, the newest ones on the right. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from lake_assets.base.hours import hour_key
from lake_assets.incremental.operations.overview import Overview, TableProgress, TargetOverview

State = Literal["held", "skipped", "pending", "complete", "missing"]

SHOWN_HOURS = 48
"""The maximum number of hours of a strip."""


@dataclass(frozen=True)
class Run:
    """Neighbouring hours of the same state.

    Attributes:
        state: held: an audit holds them back. skipped: beyond the catch-up threshold. pending: changed, to be rebuilt.
        first: Their first hour.
        last: Their last hour, inclusive.
    """

    state: State
    first: int
    last: int

    @property
    def hours(self) -> int:
        return self.last - self.first + 1

    @property
    def label(self) -> str:
        """The hours and their state, for a hover."""
        last = f" to {hour_key(self.last)}" if self.last > self.first else ""
        return f"{hour_key(self.first)}{last}: {self.state}"


@dataclass(frozen=True)
class Strip:
    """The hours of one table."""

    table: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Completeness:
    """The strips of all tables.

    Attributes:
        first: The first hour shown.
        last: The newest hour for which any table is complete.
        strips: One for each table, in the order of the overview.
    """

    first: int
    last: int
    strips: tuple[Strip, ...]

    @property
    def states(self) -> list[State]:
        """The states that occur, for the legend."""
        found = {run.state for strip in self.strips for run in strip.runs}
        order: Sequence[State] = ("complete", "pending", "skipped", "held", "missing")
        return [state for state in order if state in found]


def completeness(overview: Overview) -> Completeness | None:
    """Return the strips; None if no table is complete through any hour."""
    known = [found.complete_through for found in overview.standings if found.complete_through is not None]
    if not known:
        return None
    last = max(known)
    first = max(_first_hour(overview, known), last - SHOWN_HOURS + 1)
    targets = {target.table: target for target in overview.targets}
    strips = []
    for standing in overview.standings:
        strips.append(Strip(standing.table, _runs(standing, targets.get(standing.table), range(first, last + 1))))
    return Completeness(first, last, tuple(strips))


def _first_hour(overview: Overview, known: Iterable[int]) -> int:
    """Return the first hour that anything is known of."""
    hours = [*known]
    for target in overview.targets:
        for session in target.sessions:
            hours += session.built
    for source in overview.arrivals:
        hours += [cell.event_hour for cell in source.cells]
    return min(hours)


def _runs(standing: TableProgress, target: TargetOverview | None, hours: Collection[int]) -> tuple[Run, ...]:
    marked: dict[int, State] = {}
    if target is not None:
        marked |= dict.fromkeys(target.pending, "pending")
        marked |= dict.fromkeys(target.skipped, "skipped")
        marked |= dict.fromkeys([held.hour for held in target.held], "held")

    def state_of(hour: int) -> State:
        through = standing.complete_through
        is_complete = through is not None and hour <= through
        return marked.get(hour, "complete" if is_complete else "missing")

    runs = []
    for state, group in groupby(hours, state_of):
        found = list(group)
        runs.append(Run(state, found[0], found[-1]))
    return tuple(runs)
