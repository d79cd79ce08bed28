"""The values of one session: what was planned, and what came of it. Data only; nothing here reads or writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from lake_assets.base.hours import format_hours
from lake_assets.incremental.planning.changes import Totals


@dataclass(frozen=True)
class SourceRange:
    """The snapshots of one source that a session covers: after `from_snapshot_id` up to `to_snapshot_id`.

    Snapshot ids are None for a table without a snapshot, and `from` at the first reading.
    complete_through: the source's, read with its head.
    totals, last_hour: of the `Watermark` that the session ends at.
    appends_only: whether an incremental append read over the range is the whole truth.
    """

    source: str
    table_uuid: str
    from_snapshot_id: int | None
    to_snapshot_id: int | None
    to_sequence_number: int
    to_timestamp_ms: int
    complete_through: int | None
    totals: Totals | None = None
    last_hour: int | None = None
    appends_only: bool = False


@dataclass(frozen=True)
class PlannedHour:
    """An event hour and why it is planned: which snapshot of which source, by which column's bounds."""

    hour: int
    reason: str


@dataclass(frozen=True)
class Cost:
    """What a session will read, by the sources' metadata: data files, their rows and bytes."""

    files: int = 0
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class SessionPlan:
    """One planned unit of work of one process.

    load: `append` (the rows of new snapshots; `hours` are those of their bounds), `overwrite` (exactly `hours`), or
        `none` (no rows: only the watermark and complete-through move).
    pending, skipped: the hours that will be pending, and those newly skipped, once this session is committed.
    follows: hours that will be pending, too, unless the last planned one comes out as it was published.
    held: hours that an audit holds back, and that are not planned: an append leaves out their rows.
    changed_through: up to this hour, inclusive, only the rows of entities that changed are recomputed; those of others
        are as they are published. None: all rows are recomputed.
    complete_through: the target's, once this session is committed; None leaves it.
    notes: what else a person should know, in words (compactions that were skipped, hours left out).
    """

    process: str
    session_id: str
    kind: Literal["session", "rebuild"]
    load: Literal["append", "overwrite", "none"]
    sources: tuple[SourceRange, ...]
    hours: tuple[PlannedHour, ...]
    pending: tuple[int, ...] = ()
    skipped: tuple[int, ...] = ()
    follows: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    changed_through: int | None = None
    complete_through: int | None = None
    processing_uris: tuple[Mapping[str, object], ...] = ()
    cost: Cost = Cost()
    notes: tuple[str, ...] = ()
    code_version: str = ""

    @property
    def hour_numbers(self) -> tuple[int, ...]:
        return tuple(p.hour for p in self.hours)

    @property
    def reason(self) -> str:
        """Why there is this session, in words: its first hour's reason, or what it is for without hours."""
        return self.hours[0].reason if self.hours else "; ".join(self.notes) or "complete-through moved"

    @property
    def envelope(self) -> tuple[int, int] | None:
        """First and last planned hour, both inclusive."""
        return (self.hours[0].hour, self.hours[-1].hour) if self.hours else None

    def without(self, hours: Collection[int]) -> SessionPlan:
        """The same plan, with hours held back."""
        kept = tuple(p for p in self.hours if p.hour not in hours)
        return replace(self, hours=kept, held=tuple(sorted({*self.held, *hours})))

    def __str__(self) -> str:
        return f"{self.process}: {self.load} {format_hours(self.hour_numbers) or 'no hours'}"

    @property
    def snapshots(self) -> dict[str, dict[str, int | None]]:
        """Source → the snapshot ids `from` and `to`, and `complete_through`: what a later attempt plans by."""
        return {
            s.source: {
                "from": s.from_snapshot_id,
                "to": s.to_snapshot_id,
                "complete_through": s.complete_through,
            }
            for s in self.sources
        }


@dataclass(frozen=True)
class OpenedSession:
    """A session that another program is to write: `plan`, as one commit under `wap_id` on `table`."""

    plan: SessionPlan
    table: str
    wap_id: str


@dataclass(frozen=True)
class NoSession:
    """No session now, and why, in plain words.

    kind: `idle` (nothing new), `wait` (something is missing that will come), `blocked` (an audit stopped it; it needs a
        change of a source or of the code, or a person).
    """

    kind: Literal["idle", "wait", "blocked"]
    reason: str


Decision = SessionPlan | NoSession


@dataclass(frozen=True)
class AuditResult:
    """The verdict of one audit on one staged snapshot.

    counts: what was counted, by name. sample: keys of offending rows, for people, at most ten.
    hours: key of each hour that failed → offending rows in it. Empty when it passed; when it failed, too, if the hours
        of all offending rows cannot be told, or are too many: then the session failed as a whole.
    """

    name: str
    passed: bool
    blocking: bool = True
    counts: Mapping[str, int] = field(default_factory=dict)
    sample: tuple[str, ...] = ()
    description: str = ""
    hours: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class HeldHour:
    """An event hour that audits hold back while the others are published.

    why: which audits failed in it and how, in words. session_id, code_version: of the session that held it last.
    """

    hour: int
    why: str
    session_id: str
    code_version: str = ""


@dataclass(frozen=True)
class RowCounts:
    """What became of the rows of a session's driving source: counts, and the event hours of those that count.

    contested: deliveries that may beat a row already stored. late: rows whose hour had been declared complete before.
    lateness: landed_at minus event time, minutes, of the rows that count; None without any.
    """

    read: int = 0
    duplicates: int = 0
    quarantined: int = 0
    contested: int = 0
    late: int = 0
    hours: tuple[int, ...] = ()
    lateness_p50: float | None = None
    lateness_p95: float | None = None
    lateness_max: float | None = None

    @property
    def kept(self) -> int:
        return self.read - self.duplicates - self.quarantined


@dataclass(frozen=True)
class SessionReport:
    """What one session did.

    status: `committed`; `published` (the watermark is still to be committed);
        `already_committed` (an earlier attempt had finished it; nothing was written);
        `blocked` (a blocking audit failed, not only in hours that could be held back; nothing was published).
    hours_built: the event hours whose partitions the published snapshot wrote, or emptied; ascending.
    hours_unchanged: planned hours that came out as they were published, and were left alone; ascending.
    held: planned hours that a blocking audit holds back, while the others were published; ascending.
    released: planned hours that had been held back, and are not any more; ascending.
    rows_*: rows. lateness_*_minutes: of the rows read, landed_at minus event time; None without rows.
    seconds: wall time per step (plan, stage, audit, publish, commit).
    data_version: changes if and only if the published content of the hours built may have.
    """

    plan: SessionPlan
    status: Literal["committed", "published", "already_committed", "blocked"]
    hours_built: tuple[int, ...] = ()
    hours_unchanged: tuple[int, ...] = ()
    held: tuple[HeldHour, ...] = ()
    released: tuple[int, ...] = ()
    staged_snapshot_id: int | None = None
    published_snapshot_id: int | None = None
    rows_read: int = 0
    rows_written: int = 0
    rows_duplicate: int = 0
    rows_quarantined: int = 0
    rows_late: int = 0
    lateness_p50_minutes: float | None = None
    lateness_p95_minutes: float | None = None
    lateness_max_minutes: float | None = None
    audits: tuple[AuditResult, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    data_version: str | None = None
