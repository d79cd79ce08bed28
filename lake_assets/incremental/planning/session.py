"""The values of one session: what was planned, and the outcome. Data only; nothing here reads or writes.

`SessionPlan` and `AuditResult`, with all values in them, are stored as JSON in `etl.session`; `HeldHour` and `Totals`
in `etl.high_watermark`. Their field names stay: stored sessions must remain readable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from lake_assets.base.hours import format_hours
from lake_assets.incremental.planning.changes import Totals
from lake_assets.incremental.planning.deferred import DeferredHour, LateRows

SAMPLE = 10
"""The most keys of offending rows that an audit's result names."""


@dataclass(frozen=True)
class SourceRange:
    """The snapshots of one source that a session covers: after `from_snapshot_id`, up to and with `to_snapshot_id`.

    Attributes:
        source: The source table, `namespace.name`.
        table_uuid: The source table's UUID.
        from_snapshot_id: None in the first session, or if the table had no snapshot.
        to_snapshot_id: None if the table has no snapshot.
        to_sequence_number: Of the last snapshot.
        to_timestamp_ms: Commit time of the last snapshot, milliseconds since 1970.
        complete_through: The source's complete-through, read with its head; None if it was not set.
        totals: As in the `Watermark` that the session ends at.
        last_hour: As in the `Watermark` that the session ends at.
        appends_only: Whether an incremental append read over the range returns every change.
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
    """An event hour and the reason why it is planned: which snapshot of which source, by which column's bounds."""

    hour: int
    reason: str


@dataclass(frozen=True)
class Cost:
    """What a session will read, by the sources' metadata: number of data files, their rows and bytes."""

    files: int = 0
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class SessionPlan:
    """One planned unit of work of one target. Hours are ascending in all fields.

    Attributes:
        process: The target's table, `namespace.name`.
        session_id: A hash of the plan.
        kind: `session` moves the watermarks; `rebuild` leaves them.
        load: `append` (the rows of new snapshots; `hours` are those of their bounds), `overwrite` (exactly `hours`), or
            `none` (no rows; only the watermarks and complete-through move).
        sources: The snapshots of each source that the session covers.
        hours: The hours to build, with reasons.
        pending: The hours that will be pending after the session, apart from `follows`.
        skipped: The hours that will be skipped because of the session.
        follows: Hours that will be pending, too, unless the last planned hour comes out as it was published.
        held: Hours that an audit holds back and that are not planned. An append leaves out their rows.
        changed_through: Up to this hour, inclusive, only rows of entities that changed are recomputed, and those of
            others are taken as published. None: all rows are recomputed.
        complete_through: The target's complete-through after the session; None leaves it.
        processing_uris: The landing partitions of the source files to read.
        cost: What the session will read.
        notes: What else a person should know: compactions that were skipped, hours that were left out.
        code_version: The target's code version when the session was planned.
        starts_anew: Whether the session forgets what the target had committed, and reads its sources from the start.
        deferred: Those of the pending hours that wait by the policy for late rows. An append leaves out their rows.
        late_rows: What an append reads besides the new snapshots: rows that have waited and are due.
        reasons: Hour → why it changed, for the hours that wait after the session.
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
    starts_anew: bool = False
    deferred: tuple[DeferredHour, ...] = ()
    late_rows: tuple[LateRows, ...] = ()
    reasons: Mapping[int, str] = field(default_factory=dict)

    @property
    def hour_numbers(self) -> tuple[int, ...]:
        """The planned hours, without reasons."""
        return tuple(p.hour for p in self.hours)

    @property
    def reason(self) -> str:
        """The reason of the first hour; without hours, the notes."""
        if self.hours:
            return self.hours[0].reason
        return "; ".join(self.notes) or "complete-through moved"

    @property
    def left_out(self) -> tuple[int, ...]:
        """The hours whose rows an append leaves out: those that an audit holds back, and those that are deferred."""
        return *self.held, *(each.hour for each in self.deferred)

    @property
    def waits_for_next_session(self) -> frozenset[int]:
        """The pending hours but those that wait by the policy for late rows: the next session is to build them."""
        return frozenset(self.pending).difference(each.hour for each in self.deferred)

    @property
    def envelope(self) -> tuple[int, int] | None:
        """First and last planned hour, both inclusive; None without hours."""
        if not self.hours:
            return None
        return self.hours[0].hour, self.hours[-1].hour

    def without(self, hours: Collection[int]) -> SessionPlan:
        """Return the same plan, with some hours held back."""
        kept = tuple(p for p in self.hours if p.hour not in hours)
        held = {*self.held, *hours}
        return replace(self, hours=kept, held=tuple(sorted(held)))

    def __str__(self) -> str:
        return f"{self.process}: {self.load} {format_hours(self.hour_numbers) or 'no hours'}"

    @property
    def snapshots(self) -> dict[str, dict[str, int | None]]:
        """Source → `from` and `to` (snapshot ids) and `complete_through`. A later attempt plans by these."""
        found: dict[str, dict[str, int | None]] = {}
        for source in self.sources:
            found[source.source] = {
                "from": source.from_snapshot_id,
                "to": source.to_snapshot_id,
                "complete_through": source.complete_through,
            }
        return found


@dataclass(frozen=True)
class OpenedSession:
    """A session that another program writes.

    Attributes:
        plan: What to write.
        table: The table to write it to, in one commit.
        wap_id: The `spark.wap.id` of that commit.
    """

    plan: SessionPlan
    table: str
    wap_id: str


@dataclass(frozen=True)
class NoSession:
    """There is no session now.

    Attributes:
        kind: `idle` (nothing new), `wait` (something is missing that will come), `blocked` (an audit stopped the
            session; it needs a change of a source or of the code, or a person), or `beyond` (it would build more than a
            day beyond the newest rows; a person has to decide).
        reason: Why, for people. It contains no age, so it is the same at each look.
        look_again_at: The earliest moment at which the decision may change although no table changes. None if only a
            change of a table can change it.
        deferred: Hours that wait by the policy for late rows, ascending.
    """

    kind: Literal["idle", "wait", "blocked", "beyond"]
    reason: str
    look_again_at: datetime | None = None
    deferred: tuple[DeferredHour, ...] = ()


Decision = SessionPlan | NoSession


@dataclass(frozen=True)
class AuditResult:
    """The result of one audit on one staged snapshot.

    Attributes:
        name: The audit's name.
        passed: Whether it passed.
        blocking: Whether a failure stops the hours, or the session.
        counts: What was counted, by name.
        sample: Keys of offending rows, for people, at most ten.
        description: What the audit checks.
        hours: Key of each hour that failed → offending rows in it. If the audit failed and this is empty, the hours of
            all offending rows are unknown or too many, and the session failed as a whole.
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
    """An event hour that audits hold back while other hours are published.

    Attributes:
        hour: The hour.
        why: Which audits failed in it and how, for people.
        session_id: The session that held it back last.
        code_version: The code version of that session.
    """

    hour: int
    why: str
    session_id: str
    code_version: str = ""


@dataclass(frozen=True)
class RowCounts:
    """The rows of a session's driving source, by outcome.

    Attributes:
        read: All rows.
        outside: Rows in none of the planned hours, which an overwrite reads because they belong in quarantine.
        duplicates: Repeated deliveries, superseded versions and deletions; left out.
        quarantined: Rows that were quarantined.
        contested: Deliveries that may replace a row stored already.
        tied: Rows that count, although nothing but a hash puts them before another row of their key and order.
        late: Rows of hours that had been declared complete before.
        in_bounds: Rows whose time lies in the bounds of the files that are read whole, by metadata.
        hours: The event hours of the kept rows; ascending.
        lateness_p50: Median of landed_at minus event time of the kept rows, minutes; None without rows.
        lateness_p95: The 95th percentile, likewise.
        lateness_max: The maximum, likewise.
    """

    read: int = 0
    outside: int = 0
    duplicates: int = 0
    quarantined: int = 0
    contested: int = 0
    tied: int = 0
    late: int = 0
    in_bounds: int = 0
    hours: tuple[int, ...] = ()
    lateness_p50: float | None = None
    lateness_p95: float | None = None
    lateness_max: float | None = None

    @property
    def kept(self) -> int:
        """The rows that are neither repeated nor quarantined."""
        return self.read - self.duplicates - self.quarantined


@dataclass(frozen=True)
class SessionReport:
    """The outcome of one session.

    Attributes:
        plan: What was planned.
        status: `committed`; `published` (the same, of rows that another program has written); `blocked` (a blocking
            audit failed and its hours could not be held back, so nothing was published).
        hours_built: The event hours that the published snapshot wrote or emptied; ascending.
        hours_unchanged: Planned hours that came out as they were published and were not written; ascending.
        held: Planned hours that a blocking audit holds back while the others were published; ascending.
        released: Planned hours that were held back before and no longer are; ascending.
        staged_snapshot_id: The staged snapshot; None without rows.
        published_snapshot_id: The published snapshot; None without rows.
        rows_read: Rows of the driving source.
        rows_written: Rows of the staged snapshot.
        rows_duplicate: Repeated deliveries, left out.
        rows_quarantined: Rows that were quarantined.
        rows_late: Rows of hours that had been declared complete before.
        lateness_p50_minutes: Median of landed_at minus event time of the rows read; None without rows.
        lateness_p95_minutes: The 95th percentile, likewise.
        lateness_max_minutes: The maximum, likewise.
        audits: The audit results.
        seconds: Step (plan, stage, audit, publish, commit) → wall time.
        data_version: Changes if and only if the published content of the hours built may have changed.
    """

    plan: SessionPlan
    status: Literal["committed", "published", "blocked"]
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


def merged(reports: Sequence[SessionReport]) -> SessionReport:
    """Return what several sessions of one rebuild did, as one report; ids, snapshots and lateness are the last one's.

    Args:
        reports: In the order of the sessions; at least one.
    """
    last = reports[-1]
    if len(reports) == 1:
        return last
    planned = {hour.hour: hour for report in reports for hour in report.plan.hours}
    held = {hour.hour: hour for report in reports for hour in report.held}
    seconds: dict[str, float] = {}
    for report in reports:
        for step, taken in report.seconds.items():
            seconds[step] = seconds.get(step, 0.0) + taken
    notes = dict.fromkeys(note for report in reports for note in report.plan.notes)
    return replace(
        last,
        plan=replace(last.plan, hours=tuple(planned[hour] for hour in sorted(planned)), notes=tuple(notes)),
        hours_built=tuple(sorted({hour for report in reports for hour in report.hours_built})),
        hours_unchanged=tuple(sorted({hour for report in reports for hour in report.hours_unchanged})),
        held=tuple(held[hour] for hour in sorted(held)),
        released=tuple(sorted({hour for report in reports for hour in report.released})),
        rows_read=sum(report.rows_read for report in reports),
        rows_written=sum(report.rows_written for report in reports),
        rows_duplicate=sum(report.rows_duplicate for report in reports),
        rows_quarantined=sum(report.rows_quarantined for report in reports),
        rows_late=sum(report.rows_late for report in reports),
        audits=_merged_audits([audit for report in reports for audit in report.audits]),
        seconds=seconds,
    )


def _merged_audits(audits: Iterable[AuditResult]) -> tuple[AuditResult, ...]:
    """Return one result for each audit, with the sums of its counts."""
    found: dict[str, AuditResult] = {}
    for audit in audits:
        before = found.get(audit.name)
        if before is None:
            found[audit.name] = audit
            continue
        found[audit.name] = replace(
            audit,
            passed=before.passed and audit.passed,
            counts=_sums(before.counts, audit.counts),
            sample=(*before.sample, *audit.sample)[:SAMPLE],
            hours=_sums(before.hours, audit.hours),
        )
    return tuple(found.values())


def _sums(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
    return {name: left.get(name, 0) + right.get(name, 0) for name in (*left, *right)}
