"""What commands print of the engine: sessions, audits, comparisons, contents of tables, maintenance, and the doctor."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lake_assets.base.hours import format_hours, hour_key, to_the_second
from lake_assets.cli.render import (
    Column,
    Part,
    TableView,
    counted,
    failed,
    faint,
    megabytes,
    succeeded,
    warning,
)
from lake_assets.incremental.engine.model import (
    AuditResult,
    Decision,
    DeferredHour,
    NoSession,
    OpenedSession,
    SessionPlan,
    SessionReport,
    age_in_words,
    verdicts_in_words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from lake_assets.base.findings import Finding, Repaired
    from lake_assets.incremental.engine.audit_run import PublishedAudit
    from lake_assets.incremental.engine.engine import Outcome
    from lake_assets.incremental.engine.session_log import SessionRecord
    from lake_assets.incremental.operations.contents import ColumnBounds, PartitionContents, TableContents
    from lake_assets.incremental.operations.maintain import MaintenanceReport
    from lake_assets.incremental.operations.verify import Verification

EARLIER_SESSIONS = 3
"""Of an hour, how many sessions before the last one are named."""

_Pair = tuple[str, str]
_REASONS: TableView[_Pair] = TableView(("hours", "because of"))
_DEFERRED: TableView[tuple[DeferredHour, str]] = TableView(
    (
        Column("deferred hour", lambda row: hour_key(row[0].hour)),
        Column("rows, at most", lambda row: row[0].rows),
        Column("waits for", lambda row: row[1], right=True),
    )
)
_DETAILS: TableView[_Pair] = TableView(("name", "value"), heading=False)


MAX_URIS = 10
"""Most places of new rows that a person is shown."""


def decision(found: Decision, *, now: datetime | None = None) -> Iterator[Part]:
    """Show what the next session of a target would do, or why there is none; and by now, how long hours wait."""
    if isinstance(found, NoSession):
        yield f"No session: {found.reason}."
        yield from _waiting(found.deferred, now)
        return
    hours = format_hours(found.hour_numbers) or "no hours"
    yield Text.assemble((found.session_id, "bold"), f": {found.load} {hours}")
    if found.hours:
        groups = groupby(found.hours, key=lambda hour: hour.reason)
        yield from _REASONS([(format_hours(hour.hour for hour in planned), reason) for reason, planned in groups])
    cost = found.cost
    yield f"reads {cost.files} new files, {cost.rows:,} rows, {cost.bytes:,} bytes"
    for late in found.late_rows:  # an append reads earlier snapshots once more
        snapshots = f"after {late.from_snapshot_id} up to {late.to_snapshot_id}"
        yield f"and late rows of {found.sources[0].source} {snapshots}: {format_hours(late.hours)}"
    yield from _state_after(found)
    yield from _waiting(found.deferred, now)


def _waiting(deferred: Sequence[DeferredHour], now: datetime | None) -> Iterator[Part]:
    if deferred and now is not None:
        yield from _DEFERRED([(each, age_in_words(now - each.since)) for each in deferred])


def opened(found: OpenedSession | NoSession) -> Iterator[Part]:
    """Show the plan of a session that another program writes, and how to write it."""
    if isinstance(found, NoSession):
        yield from decision(found)
        return
    plan = found.plan
    yield from decision(plan)
    for source in plan.sources:
        yield f"read {source.source}: after {source.from_snapshot_id or 'nothing'} up to {source.to_snapshot_id}"
    for uri in plan.processing_uris[:MAX_URIS]:
        waited = " (has waited)" if uri.get("waited") else ""
        place = ", ".join(f"{name}={value}" for name, value in uri.items() if name not in ("source", "waited"))
        yield faint(f"  {uri.get('source', 'a source')}: {place}{waited}")
    if len(plan.processing_uris) > MAX_URIS:
        yield faint(f"  and {len(plan.processing_uris) - MAX_URIS:,} more places, which --json names")
    if plan.load != "none":
        yield Text.assemble(
            f"write to {found.table} in one commit ({plan.load}) with ",
            (f"spark.wap.id={found.wap_id}", "bold"),
            ", then run `lake session publish` and `lake session commit`",
        )


def outcome(found: Outcome) -> Iterator[Part]:
    """Show one step of a catch-up. The texts of failures are listed at its end."""
    if found.report:
        yield from report(found.report)
    elif found.failure:
        yield failed(f"{found.table} failed")
    elif found.overtaken:
        yield faint(f"· {found.table}: {found.overtaken}")
    elif found.waiting:
        yield faint(f"· {found.table}: {found.waiting.reason}")


def report(found: SessionReport | NoSession) -> Iterator[Part]:
    """Show what one session did."""
    if isinstance(found, NoSession):
        yield f"No session: {found.reason}."
        return
    seconds = sum(found.seconds.values())
    yield succeeded(f"{found.plan.process}: {_hours_done(found)} ({_row_counts(found)}; {seconds:.1f} s)")
    if found.held:
        yield Text(f"  ✗ {verdicts_in_words(found.held)}", style="red")
    for audit in found.audits:
        if not audit.passed:
            yield warning(f"  ! {audit.name}: {_audit(audit)}")
    for note in found.plan.notes:
        yield faint(f"  {note}")


def sessions(history: Sequence[SessionRecord]) -> Iterator[Part]:
    """Show all sessions of a target."""
    if not history:
        yield "No session yet."
    for record in history:
        plan = record.plan
        hours = format_hours(record.built) or "no hours"
        counts = f"{record.rows_read:,} rows read, {record.rows_written:,} written"
        yield Text.assemble((plan.session_id, "bold"), f" {record.state}: {plan.load} {hours} ({counts})")
        if record.held:
            yield Text(f"  {verdicts_in_words(record.held)}", style="red")
        yield faint(f"  because of {plan.reason}")


def why(built: Sequence[SessionRecord], hour: int) -> Iterator[Part]:
    """Show which session last built an hour.

    Args:
        built: The sessions that built it, oldest first.
        hour: The hour, in hours since 1970-01-01 UTC.
    """
    if not built:
        yield f"No session has built {hour_key(hour)}."
        return
    record = built[-1]
    plan = record.plan
    yield Text.assemble(
        f"{hour_key(hour)} was last built by ",
        (plan.session_id, "bold"),
        f" ({plan.load}, {record.state})",
    )
    yield from _DETAILS(_details(built, hour))


def _details(built: Sequence[SessionRecord], hour: int) -> Iterator[_Pair]:
    record = built[-1]
    yield "because of", next((planned.reason for planned in record.plan.hours if planned.hour == hour), "")
    yield "at", f"{to_the_second(record.ended_at)} UTC" if record.ended_at else "–"
    yield "published snapshot", str(record.published_snapshot_id)
    for source in record.plan.sources:
        yield f"read {source.source}", f"{source.from_snapshot_id or 'the beginning'} → {source.to_snapshot_id}"
    for late in record.plan.late_rows:
        yield f"late rows of {format_hours(late.hours)}", f"{late.from_snapshot_id} → {late.to_snapshot_id}"
    yield "run", record.run_id or "–"
    earlier = built[-1 - EARLIER_SESSIONS : -1]
    yield "before that", ", ".join(record.plan.session_id for record in earlier) or "–"


def _hours_done(found: SessionReport) -> str:
    done = "no hours; watermark moved"
    if found.hours_built:
        done = f"{found.plan.load} {format_hours(found.hours_built)}"
    if found.hours_unchanged:
        done += f"; rebuilt without a change, not written: {format_hours(found.hours_unchanged)}"
    return done


def _row_counts(found: SessionReport) -> str:
    counts = f"{found.rows_read:,} rows read, {found.rows_written:,} written"
    if found.rows_duplicate:
        counts += f", {found.rows_duplicate:,} repeated"
    if found.rows_quarantined:
        counts += f", {found.rows_quarantined:,} quarantined"
    return counts


def _state_after(plan: SessionPlan) -> Iterator[Part]:
    if plan.complete_through is not None:
        yield f"complete through {hour_key(plan.complete_through)} afterwards"
    if plan.pending:
        yield f"pending afterwards: {format_hours(plan.pending)}"
    if plan.skipped:
        yield warning(f"skipped: {format_hours(plan.skipped)}")
    yield from map(faint, plan.notes)


def _audit(audit: AuditResult) -> str:
    counts = ", ".join(f"{count} {what}" for what, count in audit.counts.items())
    if not audit.sample:
        return counts
    return f"{counts} such as {', '.join(audit.sample)}"


def published(found: PublishedAudit) -> Iterator[Part]:
    """Show the result of each audit, and which hours it evaluated."""
    yield f"{found.table}, hours {format_hours(found.hours)} of snapshot {found.snapshot_id}:"
    for audit in found.audits:
        line = f"{audit.name}: {_describe(audit)}"
        if audit.passed:
            yield succeeded(line)
        elif audit.blocking:
            yield failed(line)
        else:
            yield warning(f"! {line}")
    if found.unsettled:
        yield faint(f"Older than the sources, because pending, held back or skipped: {format_hours(found.unsettled)}.")
    if found.held:
        yield faint(f"{verdicts_in_words(found.held)}.")


def _describe(audit: AuditResult) -> str:
    counts = ", ".join(f"{number} {name}" for name, number in audit.counts.items())
    parts = [counts or ("passed" if audit.passed else "failed")]
    if audit.sample:
        parts.append(f"such as {', '.join(audit.sample)}")
    if audit.hours:
        parts.append(f"in {', '.join(audit.hours)}")
    return "; ".join(parts)


_COMPARED: TableView[Verification] = TableView(
    (
        "table",
        Column("result", lambda found: _result(found)),
        Column("hours", lambda found: len(found.compared)),
        "rows",
        "rebuilt=rows_rebuilt",
        Column("s", lambda found: f"{found.seconds:.1f}", right=True),
    )
)


def verified(results: Sequence[Verification]) -> Iterator[Part]:
    """Show what was compared, then the differences with what to do, then what was left out."""
    yield from _COMPARED(results)
    for found in results:
        if not found.equal:
            yield failed(f"{found.what} {found.remedy}")
        for line in found.left_out:
            yield warning(f"{found.table}: not compared: {line}")
        if found.note:
            yield faint(f"{found.table}: {found.note}")


def _result(found: Verification) -> str:
    if not found.equal:
        return "differs"
    if not found.compared:
        return "not compared"
    return "equal" if found.rows or found.rows_rebuilt else "no rows"


def contents(found: TableContents) -> Iterator[Part]:
    """Show the partitions of a table, and the bounds of some columns in them."""
    if not found.partitions:
        yield f"{found.table} has no rows."
    else:
        yield from _table(found)(found.partitions)
    if found.rows_are_before_deletes:
        yield warning("There are delete files: rows are counted before deletes, and bounds may be of deleted rows.")
    if any(bounds.may_be_truncated for partition in found.partitions for bounds in partition.columns):
        yield faint("… marks a bound that may be truncated: the true value may be longer.")
    for column, sources in found.lineage.items():
        yield faint(f"{column} is made of {', '.join(sources)}")


def _table(found: TableContents) -> TableView[PartitionContents]:
    columns: list[Column[PartitionContents] | str] = [
        Column("partition", _partition, whole=True),
        "rows",
        "files",
        "bytes",
    ]
    if found.rows_are_before_deletes:
        columns.append("delete files")
    for position, bounds in enumerate(found.partitions[0].columns):
        columns += _columns(position, bounds.column)
    return TableView(columns)


def _columns(position: int, name: str) -> list[Column[PartitionContents]]:
    def bounds(partition: PartitionContents) -> ColumnBounds:
        return partition.columns[position]

    return [
        Column(f"{name}: min", lambda partition: _bound(bounds(partition), bounds(partition).lower)),
        Column("max", lambda partition: _bound(bounds(partition), bounds(partition).upper)),
        Column("nulls", lambda partition: "–" if (nulls := bounds(partition).nulls) is None else nulls, right=True),
    ]


def _partition(partition: PartitionContents) -> str:
    values = [f"{name}={value}" for name, value in partition.partition.items()]
    return ", ".join(values) or "all"


def _bound(bounds: ColumnBounds, value: str | None) -> str:
    if value is None:
        return "–"
    return f"{value}…" if bounds.may_be_truncated else value


_FIGURES: TableView[MaintenanceReport] = TableView(
    (
        "table",
        Column("files", lambda done: _change(done.before.files, done.after.files), right=True),
        Column("stored files", lambda done: _change(done.before.stored_files, done.after.stored_files), right=True),
        Column("stored MB", lambda done: _mb_change(done.before.stored_bytes, done.after.stored_bytes), right=True),
        Column("snapshots", lambda done: _change(done.before.snapshots, done.after.snapshots), right=True),
        Column("manifests", lambda done: _change(done.before.manifests, done.after.manifests), right=True),
        "compacted=partitions_compacted",
        "expired=snapshots_expired",
        "orphans=orphans_removed",
        Column("s", lambda done: f"{sum(done.seconds.values()):.1f}", right=True),
    )
)


def maintained(found: Sequence[MaintenanceReport]) -> Iterator[Part]:
    """Show the figures of each table, before and after. For a dry run, they are what maintenance would do."""
    yield from _FIGURES(found)
    for done in found:
        for note in done.notes:
            yield warning(f"{done.table}: {note}")
    if any(done.dry_run for done in found):
        yield faint("This was a dry run: nothing was changed.")


def _change(before: int, after: int) -> str:
    return f"{after:,}" if before == after else f"{before:,} → {after:,}"


def _mb_change(before: int, after: int) -> str:
    old = megabytes(before)
    new = megabytes(after)
    return new if old == new else f"{old} → {new}"


_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}


@dataclass(frozen=True)
class Diagnosis:
    """What checks found, after the repairs that were made."""

    findings: Sequence[Finding]
    repaired: Sequence[Repaired] = ()

    @property
    def has_errors(self) -> bool:
        return any(found.level == "error" for found in self.findings)

    def document(self) -> dict[str, Any]:
        """Return the diagnosis for JSON."""
        return {
            "ok": not self.has_errors,
            "repaired": [asdict(each) for each in self.repaired],
            "findings": [found.document() for found in self.findings],
        }


def diagnosis(outcome: Diagnosis) -> Iterator[Part]:
    """Show each repair and each finding on a line of its own, then the sum."""
    for done in outcome.repaired:
        if done.failure:
            yield failed(f"repair of {done.check} failed ({done.what}): {done.failure}")
        else:
            yield succeeded(f"repair of {done.check}: {done.what}")
    for found in outcome.findings:
        remedy = f" → {found.remedy}" if found.remedy else ""
        yield Text.assemble(_MARKS[found.level], f" {found.check}: {found.text}{remedy}")
        for detail in found.details:
            yield faint(f"    {detail}")
    errors = sum(found.level == "error" for found in outcome.findings)
    warnings = sum(found.level == "warning" for found in outcome.findings)
    yield faint(f"{counted(errors, 'error')}, {counted(warnings, 'warning')}.")
