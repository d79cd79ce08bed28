"""The sessions of the membership demo: wait until targets have nothing to do, and print sessions as they end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from rich.markup import escape

from lake_assets.base.hours import format_hours, parse_hour
from lake_assets.connections.catalog import watched_files
from lake_assets.demo import services
from lake_assets.demo.home import START
from lake_assets.demo.output import console
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.arrivals import LOOKBACK_HOURS
from lake_assets.incremental.engine.iceberg import rows_between
from lake_assets.incremental.engine.model import SessionPlan

if TYPE_CHECKING:
    from lake_assets.demo.stage import Stage
    from lake_assets.incremental.engine.session_log import SessionRecord
    from lake_assets.incremental.engine.state import State

DAY_PREFIX = f"{START[:10]}-"
"""Start of every hour key of the demo's only day."""

NEWEST_SESSIONS = 50
"""Sessions of a target that are looked at in one look."""

POLL_SECONDS_ON_SERVERS = 3
"""Seconds between two looks if the catalog is a server: each look reads metadata of all targets through it."""


def wait_until_idle(stage: Stage) -> None:
    """Wait until no target has anything to do. Print each session when it ends.

    Raises:
        ServiceError: There is still work after the time limit of a scene, `settle_seconds`.
    """
    stage.played.clear()
    is_server = watched_files(stage.home) is None
    services.wait_until_idle(
        stage.home,
        partial(_busy_targets, stage),
        partial(_print_new_sessions, stage),
        poll_seconds=POLL_SECONDS_ON_SERVERS if is_server else services.POLL_SECONDS,
    )


def state_of(stage: Stage, name: str) -> State:
    """Return the present state of a target."""
    return stage.engine.state(stage.engine.pipeline.target(name))


def built_hours(stage: Stage, name: str) -> list[list[int]]:
    """Return the hours that each session of this scene built, counted from the start.

    Sessions without rows are left out.

    Args:
        stage: The stage.
        name: Name of the target, without its namespace.
    """
    start = parse_hour(START)
    found = []
    for record in stage.played.get(f"core.{name}", []):
        if record.built:
            found.append([hour - start for hour in record.built])
    return found


def _busy_targets(stage: Stage) -> list[str]:
    engine = stage.engine
    return [target.table for target in engine.pipeline.in_order() if isinstance(engine.decide(target), SessionPlan)]


def _print_new_sessions(stage: Stage) -> None:
    for target in stage.engine.pipeline.in_order():
        for record in _new_sessions(stage, target.table):
            stage.printed[target.table] = _place(record)
            stage.played.setdefault(target.table, []).append(record)
            _print_session(stage, record)


def _new_sessions(stage: Stage, table: str) -> list[SessionRecord]:
    """Return the sessions that ended since the last one that was printed, ascending by revision."""
    printed = stage.printed.get(table, 0)
    history = stage.engine.history(stage.engine.pipeline.target(table), newest=NEWEST_SESSIONS)
    return [record for record in history if _place(record) > printed]


def _place(record: SessionRecord) -> int:
    """Return a number that grows from session to session. One that an audit has stopped is run again as the same."""
    return 2 * record.revision + (record.state == "committed")


def _print_session(stage: Stage, record: SessionRecord) -> None:
    target = record.plan.process
    if record.state == "blocked":
        _print_blocking_audits(record)
        return
    if record.unchanged:
        console.print(f"  [dim]· {target}: {_format_hours(record.unchanged)} came out equal; nothing was written[/]")
    elif not record.built:
        console.print(f"  [dim]· {target}: no rows; complete-through advances[/]")
    if record.built:
        _print_built(stage, record)


def _print_blocking_audits(record: SessionRecord) -> None:
    for audit in record.audits:
        if audit.blocking and not audit.passed:
            sample = f": {', '.join(audit.sample)}" if audit.sample else ""
            counts = dict(audit.counts)
            line = f"{record.plan.process}: blocked by audit {audit.name}, {counts}{escape(sample)}"
            console.print(f"  [red]■[/] {line}")


def _print_built(stage: Stage, record: SessionRecord) -> None:
    plan = record.plan
    passed = sum(audit.passed for audit in record.audits)
    hours = _format_hours(record.built)
    counts = f"{record.rows_written} rows; audits {passed}/{len(record.audits)}"
    lookback = _compare_with_lookback(stage, record)
    console.print(f"  [green]■[/] {plan.process}: {plan.load} {hours} ({counts}); {lookback}")
    reasons = {planned.reason: None for planned in plan.hours if planned.hour in record.built}
    for reason in reasons:
        console.print(f"      [dim]{escape(reason)}[/]")


def _compare_with_lookback(stage: Stage, record: SessionRecord) -> str:
    """Return how many rows a fixed lookback would process instead, and the hours that it would miss."""
    last = record.built[-1]
    first = last - LOOKBACK_HOURS + 1
    target = stage.engine.pipeline.target(record.plan.process)
    table = iceberg.load(stage.engine.catalog, target.table)
    rows = rows_between(table, target.time_column, first, last)
    found = f"a {LOOKBACK_HOURS}-hour lookback would process {rows} rows"
    missed = [hour for hour in record.built if hour < first]
    if missed:
        found += f" and miss {_format_hours(missed)}"
    return found


def _format_hours(hours: Sequence[int]) -> str:
    """Return hours without the day: `02:00..03:00, 06:00`."""
    return format_hours(tuple(hours)).replace(DAY_PREFIX, "")
