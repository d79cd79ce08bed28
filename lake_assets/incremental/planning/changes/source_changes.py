"""The values that describe the changes of a source. Data only; nothing here reads or writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lake_assets.base.hours import hour_key
from lake_assets.incremental.planning.changes.data_files import FileChange
from lake_assets.incremental.planning.changes.row_hours import HourRange

Effect = Literal["append", "rewrite", "none"]
"""`append`: rows were added, none changed or removed. `rewrite`: rows changed or were removed. `none`: compaction."""

HowFound = Literal["initial", "history", "expired", "rewound"]
"""`initial`: there is no watermark yet, and all live files are new. `history`: all snapshots after the watermark were
read. `expired`: some of these are gone, and files are new if their sequence number is higher. `rewound`: the
watermark's snapshot is no ancestor of the head, and the two sets of files were compared."""


@dataclass(frozen=True)
class Totals:
    """The sums over the live files of a snapshot.

    Attributes:
        data_files: Number of data files.
        rows: Rows of the data files.
        bytes: Size of data and delete files.
    """

    data_files: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class Watermark:
    """The snapshot up to which a target has committed one source.

    Attributes:
        source: The source table, `namespace.name`.
        table_uuid: The source table's UUID.
        snapshot_id: The snapshot; None if the table had none.
        sequence_number: Of the snapshot.
        timestamp_ms: Commit time of the snapshot, milliseconds since 1970.
        complete_through: The source's complete-through, read with the snapshot; None if it was not set.
        totals: Of the snapshot; None if its summary lacks them.
        last_hour: The last event hour that any file read so far may contain rows of; None before the first file.
    """

    source: str
    table_uuid: str
    snapshot_id: int | None
    sequence_number: int = 0
    timestamp_ms: int = 0
    complete_through: int | None = None
    totals: Totals | None = None
    last_hour: int | None = None


@dataclass(frozen=True)
class SnapshotChange:
    """One snapshot after the watermark: its effect, and the event hours that it touched.

    Attributes:
        snapshot_id: The snapshot.
        operation: Iceberg's operation, or `expired` or `rollback` where several snapshots are taken together.
        committed_at_ms: Commit time, milliseconds since 1970.
        effect: The effect on rows.
        added: The data files that it added.
        hours: Event hours touched: ranges that do not overlap, ascending.
        rows_gone: Rows of the data files that it removed, and rows that its delete files name.
        files_opened: Data files that were opened, because the hours of their rows do not follow from metadata.
    """

    snapshot_id: int
    operation: str
    committed_at_ms: int
    effect: Effect
    added: tuple[FileChange, ...] = ()
    hours: tuple[HourRange, ...] = ()
    rows_gone: int = 0
    files_opened: int = 0


@dataclass(frozen=True)
class EarlierVersions:
    """Earlier versions of the keys that changed, of a source that has versions.

    Attributes:
        exist: Whether there may be any. One without an event time has no hour, and may still supersede a new one.
        hours: Their event hours: ranges that do not overlap, ascending.
    """

    exist: bool = False
    hours: tuple[HourRange, ...] = ()


@dataclass(frozen=True)
class SourceChanges:
    """Everything that is new in one source: the planner's input.

    Attributes:
        source: The source table, `namespace.name`.
        time_column: The column of the event time.
        since: The watermark; None before the first session.
        head: The watermark that a session over these changes ends at.
        how: How the changes were found.
        snapshots: The snapshots after the watermark, oldest first.
        added: The data files that they added.
        since_expired: Whether the watermark's snapshot cannot be read any more.
        earlier: Earlier versions of the keys that changed; none for a source without versions.
    """

    source: str
    time_column: str
    since: Watermark | None
    head: Watermark
    how: HowFound = "history"
    snapshots: tuple[SnapshotChange, ...] = ()
    added: tuple[FileChange, ...] = field(default=(), repr=False)
    since_expired: bool = False
    earlier: EarlierVersions = EarlierVersions()

    @property
    def effective(self) -> tuple[SnapshotChange, ...]:
        """The snapshots that changed rows."""
        return tuple(s for s in self.snapshots if s.effect != "none")

    @property
    def appends_only(self) -> bool:
        """Whether an incremental append read over the snapshots returns every change."""
        if self.how not in ("initial", "history"):
            return False
        return all(s.effect != "rewrite" for s in self.snapshots)

    @property
    def rows_added(self) -> int:
        """The rows of all new data files, in hours that count or not."""
        return sum(file.rows for file in self.added)

    @property
    def moved(self) -> bool:
        """Whether the head or complete-through differ from the watermark."""
        if self.since is None:
            return self.head.snapshot_id is not None or self.head.complete_through is not None
        if self.head.snapshot_id != self.since.snapshot_id:
            return True
        return self.head.complete_through != self.since.complete_through


@dataclass(frozen=True)
class Head:
    """A head that was read earlier: its snapshot, and the complete-through that was read with it."""

    snapshot_id: int | None
    complete_through: int | None


def describe(changes: SourceChanges, snapshot: SnapshotChange, hours: HourRange) -> str:
    """Return which snapshot touched a range of hours, and how, as a reason for people."""
    span = _span(hours)
    reason = f"{snapshot.operation} {snapshot.snapshot_id} of {changes.source}: {changes.time_column} {span}"
    if snapshot.files_opened:
        noun = "file" if snapshot.files_opened == 1 else "files"
        reason += f" (by the rows of {snapshot.files_opened} {noun})"
    return reason


def describe_earlier(changes: SourceChanges, hours: HourRange) -> str:
    """Return, as a reason for people, that earlier versions of changed keys stand in a range of hours."""
    return f"earlier versions of changed keys of {changes.source}: {changes.time_column} {_span(hours)}"


def _span(hours: HourRange) -> str:
    first, last = hours
    return hour_key(first) if first == last else f"{hour_key(first)}..{hour_key(last)}"
