"""What the commands print: tables for people (rich), JSON for programs. Hours as keys, never as numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lake_assets.base.hours import format_hours, hour_key
from lake_assets.incremental.execution.catch_up import Outcome
from lake_assets.incremental.execution.session_log import SessionRecord
from lake_assets.incremental.planning.session import AuditResult, Decision, NoSession, OpenedSession, SessionReport
from lake_assets.incremental.planning.verdicts import in_words

_HOURS = {
    "hour",
    "changed_through",
    "complete_through",
    "pending",
    "skipped",
    "hours_built",
    "hours_unchanged",
    "built",
    "unchanged",
    "last_built",
}
_HOURS |= {"landed_hour", "event_hour", "planned", "lookback", "missed", "held", "released"}
console = Console(highlight=False, soft_wrap=True)


def as_json(value: Any) -> str:
    """A dataclass, or a list of them, as JSON; hours as their keys."""
    return json.dumps(_plain(value), indent=1, default=str)


def decision(found: Decision) -> None:
    """What a target would do next."""
    if isinstance(found, NoSession):
        console.print(f"No session: {escape(found.reason)}.")
        return
    console.print(f"[bold]{found.session_id}[/]: {found.load} {format_hours(found.hour_numbers) or 'no hours'}")
    table = _table("hours", "because of")
    for reason, hours in groupby(found.hours, key=lambda p: p.reason):
        table.add_row(format_hours(h.hour for h in hours), escape(reason))
    if found.hours:
        console.print(table)
    cost = found.cost
    console.print(f"reads {cost.files} new files, {cost.rows:,} rows, {cost.bytes:,} bytes")
    _aftermath(found.complete_through, found.pending, found.skipped, found.notes)


def opened(found: OpenedSession | NoSession) -> None:
    """A session that another program is to write: the plan, and how to write it."""
    if isinstance(found, NoSession):
        decision(found)
        return
    decision(found.plan)
    for source in found.plan.sources:
        console.print(
            f"read {source.source}: after {source.from_snapshot_id or 'nothing'} up to {source.to_snapshot_id}"
        )
    if found.plan.load != "none":
        console.print(
            f"write to {found.table} in one commit ({found.plan.load}) with [bold]spark.wap.id={found.wap_id}[/],"
            " then `lake session publish`, then `lake session commit`"
        )


def outcome(found: Outcome) -> None:
    """One step of a catch-up."""
    if found.report:
        report(found.report)
    elif found.failure:
        console.print(f"[red]✗[/] {found.table}: {escape(found.failure)}")
    elif found.waiting:
        console.print(f"[dim]· {found.table}: {escape(found.waiting.reason)}[/]")


def report(found: SessionReport | NoSession) -> None:
    """What one session did."""
    if isinstance(found, NoSession):
        console.print(f"No session: {escape(found.reason)}.")
        return
    plan = found.plan
    done = f"{plan.load} {format_hours(found.hours_built)}" if found.hours_built else "no hours; watermark moved"
    if found.hours_unchanged:
        done += f"; came out equal, left as they were: {format_hours(found.hours_unchanged)}"
    counts = f"{found.rows_read:,} rows read, {found.rows_written:,} written"
    extra = [
        f"{n:,} {what}"
        for n, what in ((found.rows_duplicate, "repeated"), (found.rows_quarantined, "quarantined"))
        if n
    ]
    console.print(
        f"[green]✓[/] {plan.process}: {done} ({', '.join([counts, *extra])}; {sum(found.seconds.values()):.1f} s)"
    )
    if found.held:
        console.print(f"  [red]✗ {escape(in_words(found.held))}[/]")
    for audit in found.audits:
        if not audit.passed:
            console.print(f"  [yellow]! {audit.name}: {escape(_audit(audit))}[/]")
    for note in plan.notes:
        console.print(f"  [dim]{escape(note)}[/]")


def sessions(history: Sequence[SessionRecord]) -> None:
    """All sessions of a target."""
    if not history:
        console.print("No session yet.")
        return
    for record in history:
        plan, rows = record.plan, f"{record.rows_read:,} rows read, {record.rows_written:,} written"
        console.print(
            f"[bold]{plan.session_id}[/] {record.state}: "
            f"{plan.load} {format_hours(record.built) or 'no hours'} ({rows})"
        )
        if record.held:
            console.print(f"  [red]{escape(in_words(record.held))}[/]")
        console.print(f"  [dim]because of {escape(plan.reason)}[/]")


def why(built: Sequence[SessionRecord], hour: int) -> None:
    """Which session last built an hour."""
    if not built:
        console.print(f"No session has built {hour_key(hour)}.")
        return
    record = built[-1]
    reason = next((p.reason for p in record.plan.hours if p.hour == hour), "")
    console.print(
        f"{hour_key(hour)} was last built by [bold]{record.plan.session_id}[/] ({record.plan.load}, {record.state})"
    )
    table = _table("", "")
    table.show_header = False
    table.add_row("because of", escape(reason))
    table.add_row("at", f"{record.ended_at:%Y-%m-%d %H:%M:%S} UTC" if isinstance(record.ended_at, datetime) else "–")
    table.add_row("published snapshot", str(record.published_snapshot_id))
    for source in record.plan.sources:
        span = f"{source.from_snapshot_id or 'the beginning'} → {source.to_snapshot_id}"
        table.add_row(f"read {source.source}", span)
    table.add_row("run", record.run_id or "–")
    table.add_row("before that", ", ".join(r.plan.session_id for r in built[-4:-1]) or "–")
    console.print(table)


def _aftermath(through: int | None, pending: Iterable[int], skipped: Iterable[int], notes: Iterable[str]) -> None:
    if through is not None:
        console.print(f"complete through {hour_key(through)} afterwards")
    if waiting := format_hours(pending):
        console.print(f"pending afterwards: {waiting}")
    if left := format_hours(skipped):
        console.print(f"[yellow]skipped: {left}[/]")
    for note in notes:
        console.print(f"[dim]{escape(note)}[/]")


def _audit(audit: AuditResult) -> str:
    counts = ", ".join(f"{n} {what}" for what, n in audit.counts.items())
    return f"{counts}{' such as ' + ', '.join(audit.sample) if audit.sample else ''}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _plain(value: Any, name: str = "") -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {k: _plain(v, k) for k, v in asdict(value).items()}
    if isinstance(value, Mapping):
        return {k: _plain(v, k) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(v, name) for v in value]
    return hour_key(value) if name in _HOURS and isinstance(value, int) else value
