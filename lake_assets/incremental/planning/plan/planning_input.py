"""What planning the sessions of one target needs to know. Data only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from lake_assets.base.grain import HOUR, Grain
from lake_assets.incremental.declaration import Defer, Mode, Sequential, Stateful, Stateless
from lake_assets.incremental.planning.changes import SourceChanges
from lake_assets.incremental.planning.deferred import DeferredHour
from lake_assets.incremental.planning.session import HeldHour

MAX_HOURS = 2_000
"""Most hours that a session of any mode builds, in whole partitions. Each hour is a data file with its statistics, a
record of the session and an event of Dagster, so a session costs by its hours even if they have a row each."""


@dataclass(frozen=True)
class Committed:
    """What a target has committed, apart from its watermarks.

    Attributes:
        pending: Hours that have changed and are not rebuilt yet.
        skipped: Late hours beyond the catch-up threshold.
        last_built: The last hour built, of a sequential or stateful target; None before the first.
        complete_through: The target's complete-through; None if no hour is complete.
        held: Hours that an audit holds back, ascending. If one is also pending, it has changed since.
        code_version: Code version of the last session that built hours.
        uniform_from: Of a sequential target: all rows from this hour to the last one built are of that code version.
            None if no such hour is known.
        following: Of a sequential target: the pending hours that have no changed rows of their own. They follow from
            an earlier hour, and are left as published if the hour before them comes out unchanged.
        chunk_hours: Of a sequential target: the number of hours, built before, of the last session if its last hour
            came out changed; otherwise 0. The next chunk is twice as long.
        deferred: Those of the pending hours that wait by the policy for late rows, ascending.
    """

    pending: frozenset[int] = frozenset()
    skipped: frozenset[int] = frozenset()
    last_built: int | None = None
    complete_through: int | None = None
    held: tuple[HeldHour, ...] = ()
    code_version: str = ""
    uniform_from: int | None = None
    following: frozenset[int] = frozenset()
    chunk_hours: int = 0
    deferred: tuple[DeferredHour, ...] = ()

    @property
    def held_hours(self) -> frozenset[int]:
        """The hours that are held back."""
        return frozenset(h.hour for h in self.held)


def in_whole_partitions(committed: Committed, grain: Grain) -> Committed:
    """Return what is committed as whole local days.

    It was that when it was committed, unless the rules of the time zone were other ones then: a machine learns of a
    change of law only with its next time zone data. A day that was built in part counts as not built.
    """
    if not grain.is_local:
        return committed
    last_built = committed.last_built
    return replace(
        committed,
        pending=grain.whole(committed.pending),
        skipped=grain.whole(committed.skipped),
        last_built=None if last_built is None else grain.complete(last_built),
        following=grain.whole(committed.following),
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
