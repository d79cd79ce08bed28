"""Views of plans and sessions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby

from rich.text import Text

from lake_assets.base.hours import format_hours, hour_key
from lake_assets.incremental.engine.catch_up import Outcome
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
from lake_assets.incremental.engine.session_log import SessionRecord
from lake_assets.pages.terminal.render import (
    Column,
    Part,
    TableView,
    failed,
    faint,
    moment,
    succeeded,
    warning,
)

EARLIER_SESSIONS = 3
"""Of an hour, how many sessions before the last one are named."""

_Pair = tuple[str, str]
_REASONS: TableView[_Pair] = TableView(
    (
        Column("hours", lambda pair: pair[0]),
        Column("because of", lambda pair: pair[1]),
    )
)
_DEFERRED: TableView[tuple[DeferredHour, str]] = TableView(
    (
        Column("deferred hour", lambda row: hour_key(row[0].hour)),
        Column("rows, at most", lambda row: f"{row[0].rows:,}", right=True),
        Column("waits for", lambda row: row[1], right=True),
    )
)
_DETAILS: TableView[_Pair] = TableView(
    (
        Column("name", lambda pair: pair[0]),
        Column("value", lambda pair: pair[1]),
    ),
    heading=False,
)


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
        yield from _REASONS(_hours_by_reason(found))
    cost = found.cost
    yield f"reads {cost.files} new files, {cost.rows:,} rows, {cost.bytes:,} bytes"
    yield from _late_rows(found)
    yield from _state_after(found)
    yield from _waiting(found.deferred, now)


def _late_rows(plan: SessionPlan) -> Iterator[Part]:
    """Show which earlier snapshots an append reads once more, and for which hours."""
    for late in plan.late_rows:
        snapshots = f"after {late.from_snapshot_id} up to {late.to_snapshot_id}"
        yield f"and late rows of {plan.sources[0].source} {snapshots}: {format_hours(late.hours)}"


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
    yield "because of", _reason(record, hour)
    yield "at", f"{moment(record.ended_at)} UTC" if record.ended_at else "–"
    yield "published snapshot", str(record.published_snapshot_id)
    for source in record.plan.sources:
        yield f"read {source.source}", f"{source.from_snapshot_id or 'the beginning'} → {source.to_snapshot_id}"
    for late in record.plan.late_rows:
        yield f"late rows of {format_hours(late.hours)}", f"{late.from_snapshot_id} → {late.to_snapshot_id}"
    yield "run", record.run_id or "–"
    earlier = built[-1 - EARLIER_SESSIONS : -1]
    yield "before that", ", ".join(record.plan.session_id for record in earlier) or "–"


def _reason(record: SessionRecord, hour: int) -> str:
    for planned in record.plan.hours:
        if planned.hour == hour:
            return planned.reason
    return ""


def _hours_by_reason(plan: SessionPlan) -> Iterator[_Pair]:
    for reason, planned in groupby(plan.hours, key=lambda hour: hour.reason):
        yield format_hours(hour.hour for hour in planned), reason


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
    yield from _notes(plan.notes)


def _notes(notes: Iterable[str]) -> Iterator[Part]:
    for note in notes:
        yield faint(note)


def _audit(audit: AuditResult) -> str:
    counts = ", ".join(f"{count} {what}" for what, count in audit.counts.items())
    if not audit.sample:
        return counts
    return f"{counts} such as {', '.join(audit.sample)}"
