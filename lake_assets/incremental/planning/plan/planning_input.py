"""What planning the sessions of one target needs to know. Data only."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Literal

from lake_assets.base.grain import HOUR, Grain
from lake_assets.incremental.declaration import Defer, Mode, Sequential, Stateful, Stateless
from lake_assets.incremental.planning.changes import SourceChanges
from lake_assets.incremental.planning.deferred import DeferredHour
from lake_assets.incremental.planning.session import HeldHour

MAX_HOURS = 2_000
"""Most hours that a session of any mode builds, in whole partitions. Each hour is a data file with its statistics, a
record of the session and an event of Dagster, so a session costs by its hours even if they have a row each."""


Kind = Literal["changed", "follows", "late", "retry", "held", "skipped"]
"""Why an hour waits. `changed`: its rows have changed. `follows`: an hour before it has changed. `late`: its late rows
wait by the declared policy. `held`: an audit holds it back; `retry`: so it does, and the hour has changed since.
`skipped`: it lies beyond the catch-up threshold."""

PENDING: frozenset[Kind] = frozenset({"changed", "follows", "late", "retry"})
HELD: frozenset[Kind] = frozenset({"held", "retry"})


@dataclass(frozen=True)
class Waiting:
    """Why an hour waits, and since when.

    Attributes:
        kind: Which of the kinds.
        why: The reason, for people: which snapshot of which source, or which audit.
        since_ms: Commit time of the snapshot that made it wait, milliseconds since 1970; 0 if it is not known.
        session_id: The session that found it; of a held hour, the one that held it back last.
        code_version: Of a held hour: the code version of that session.
        rows: Of a `late` hour: the rows that wait, by metadata, at most so many.
        after: Of a `late` hour: the snapshot of the source up to which the target has the rows of the hour.
    """

    kind: Kind
    why: str = ""
    since_ms: int = 0
    session_id: str = ""
    code_version: str = ""
    rows: int = 0
    after: int | None = None


OlderCode = tuple[int, int, str]
"""First hour, last hour (both inclusive), and the code version that built them."""


@dataclass(frozen=True)
class Committed:
    """What a target has committed, apart from its watermarks.

    Attributes:
        waiting: Hour → why it waits to be built.
        last_built: The last hour built, of a sequential or stateful target; None before the first.
        complete_through: The target's complete-through; None if no hour is complete.
        code_version: Code version of the last session that built hours.
        older: Which hours other code has built; ascending, without overlaps.
        span: The first and the last hour that a session has built; None before the first.
        chunk_hours: Of a sequential target: the number of hours, built before, of the last session if its last hour
            came out changed; otherwise 0. The next chunk is twice as long.
    """

    waiting: Mapping[int, Waiting] = field(default_factory=dict)
    last_built: int | None = None
    complete_through: int | None = None
    code_version: str = ""
    older: tuple[OlderCode, ...] = ()
    span: tuple[int, int] | None = None
    chunk_hours: int = 0

    def hours(self, *kinds: Kind) -> frozenset[int]:
        """Return the hours that wait for any of some kinds."""
        return frozenset(hour for hour, waits in self.waiting.items() if waits.kind in kinds)

    @cached_property
    def pending(self) -> frozenset[int]:
        """The hours that have changed and are not rebuilt yet."""
        return self.hours(*PENDING)

    @cached_property
    def skipped(self) -> frozenset[int]:
        """Late hours beyond the catch-up threshold."""
        return self.hours("skipped")

    @cached_property
    def following(self) -> frozenset[int]:
        """Pending hours without changed rows of their own. They stay as published if the hour before them does."""
        return self.hours("follows")

    @cached_property
    def held_hours(self) -> frozenset[int]:
        """The hours that are held back. If one is also pending, it has changed since."""
        return self.hours(*HELD)

    @cached_property
    def held(self) -> tuple[HeldHour, ...]:
        """The hours that are held back, ascending."""
        found = []
        for hour in sorted(self.held_hours):
            waits = self.waiting[hour]
            found.append(HeldHour(hour, waits.why, waits.session_id, waits.code_version))
        return tuple(found)

    @cached_property
    def deferred(self) -> tuple[DeferredHour, ...]:
        """Those of the pending hours that wait by the policy for late rows, ascending."""
        found = []
        for hour in sorted(self.hours("late")):
            waits = self.waiting[hour]
            found.append(DeferredHour(hour, waits.since_ms, waits.rows, waits.after))
        return tuple(found)

    def built_by_others(self, code_version: str) -> tuple[tuple[int, int], ...]:
        """Return the hours that other code has built than that of a version: ranges, both ends inclusive."""
        older = [(first, last) for first, last, version in self.older if version not in ("", code_version)]
        if self.span is None or self.code_version == code_version:
            return tuple(older)
        of_known = [range(first, last + 1) for first, last, _ in self.older]
        return tuple(sorted([*older, *cut(self.span, of_known)]))

    def why(self, hour: int) -> str:
        """Return why an hour is pending, for people."""
        waits = self.waiting.get(hour)
        return waits.why if waits is not None and waits.why and waits.kind != "retry" else "changed before"

    def with_changed(self, hours: Mapping[int, str], *, since_ms: int = 0) -> Committed:
        """Return the same, with some hours (hour → reason) changed. A held hour stays held, and is tried again."""
        if not hours:
            return self
        waiting = dict(self.waiting)
        for hour, why in hours.items():
            before = waiting.get(hour)
            if before is not None and before.kind in HELD:
                waiting[hour] = replace(before, kind="retry")
            elif before is None or before.kind != "changed":
                waiting[hour] = Waiting("changed", why, since_ms)
        return replace(self, waiting=waiting)


def cut(span: tuple[int, int], others: Collection[range]) -> Iterator[tuple[int, int]]:
    """Yield what is left of a span of hours (both ends inclusive) without others."""
    first, last = span
    for other in sorted(others, key=lambda each: each.start):
        if other.stop <= first or other.start > last:
            continue
        if other.start > first:
            yield first, other.start - 1
        first = other.stop
    if first <= last:
        yield first, last


def in_whole_partitions(committed: Committed, grain: Grain) -> Committed:
    """Return what is committed as whole local days.

    It was that when it was committed, unless the rules of the time zone were other ones then: a machine learns of a
    change of law only with its next time zone data. A day that was built in part counts as not built.
    """
    if not grain.is_local:
        return committed
    waiting: dict[int, Waiting] = {}
    for hour, waits in committed.waiting.items():
        for each in grain.whole([hour]):
            waiting.setdefault(each, waits)
    last_built = committed.last_built
    return replace(
        committed,
        waiting={**waiting, **committed.waiting},
        last_built=None if last_built is None else grain.complete(last_built),
    )


@dataclass(frozen=True)
class PlanningInput:
    """Everything that planning the sessions of one target needs to know.

    Attributes:
        process: The target's table, `namespace.name`.
        mode: The target's mode.
        changes: The changes of each source, in the order of the declaration.
        committed: What the target has committed.
        code_version: The target's present code version.
        revision: Revision of the watermarks. After a rollback and its reversal, the same snapshots and hours are
            planned again; the revision makes that another session.
        grain: The target's grain. All hours that are planned, pending or skipped are those of whole partitions.
        start: The pipeline's first hour. No earlier hour counts as complete.
        whole_chunks: Whether a chunk of a sequential target has its full length at once, and does not begin small.
        late: The target's policy for late rows; None if all changed hours are built now.
        now: The present moment, by which deferred hours are due; None defers none. Nothing else depends on it.
        history: If hours wait: the snapshots of the driving source up to its watermark, oldest first, without a gap.
            Empty if deferred rows are not to be appended.
        max_hours: Most hours of a session, in whole partitions.
    """

    process: str
    mode: Mode
    changes: tuple[SourceChanges, ...]
    committed: Committed
    code_version: str = ""
    revision: int = 0
    grain: Grain = HOUR
    start: int = 0
    whole_chunks: bool = False
    late: Defer | None = None
    now: datetime | None = None
    history: tuple[int, ...] = ()
    max_hours: int = MAX_HOURS

    @property
    def source_names(self) -> str:
        """The source tables, for people."""
        return ", ".join(c.source for c in self.changes)


def reloads_all(mode: Mode) -> bool:
    """Whether each session of a target rebuilds the whole catch-up threshold range."""
    return isinstance(mode, Sequential) and mode.load == "all"


def hours_are_independent(mode: Mode) -> bool:
    """Whether an hour of a target depends on no other hour."""
    if isinstance(mode, Stateful):
        return mode.load == "changed"
    return isinstance(mode, Stateless)
