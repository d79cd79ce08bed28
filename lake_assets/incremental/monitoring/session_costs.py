"""What sessions cost, and what a fixed lookback would have cost and missed instead. Pure: from session records."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from lake_assets.base.grain import HOUR, Grain
from lake_assets.incremental.execution.log import SessionRecord
from lake_assets.incremental.planning.session import AuditResult
from lake_assets.incremental.planning.verdicts import capped


@dataclass(frozen=True)
class SessionCost:
    """One session: what it did, and what a fixed lookback would have done instead.

    Event hours are in hours since 1970-01-01 UTC, ascending.

    Attributes:
        session_id: Its id.
        state: Its newest state.
        kind: `session` or `rebuild`.
        load: `append`, `overwrite` or `none`.
        reason: Why its first hour was planned; without hours, what the session is for.
        started_at: When it was planned.
        ended_at: When it ended; None while it is open.
        seconds: Wall time from planning to its end; None while it is open.
        planned: Planned event hours.
        built: Event hours that it published.
        rows_read: Rows read.
        rows_written: Rows written.
        lookback: Event hours that a lookback would have reprocessed: the last hours up to the hour that the target
            reaches with the session, and all new ones. Empty for a session that built nothing, and for a rebuild, which
            a person requested.
        lookback_rows: Rows that the target has in these hours at present.
        missed: Hours in `built` that a lookback would have left wrong.
        failed_audits: Audits that failed.
    """

    session_id: str
    state: str
    kind: str
    load: str
    reason: str
    started_at: datetime
    ended_at: datetime | None
    seconds: float | None
    planned: tuple[int, ...]
    built: tuple[int, ...]
    rows_read: int
    rows_written: int
    lookback: range = range(0)
    lookback_rows: int = 0
    missed: tuple[int, ...] = ()
    failed_audits: tuple[AuditResult, ...] = ()


@dataclass(frozen=True)
class LookbackComparison:
    """The sessions of one target that have a lookback, compared with it. An hour counts once for each session.

    Attributes:
        sessions: Number of compared sessions.
        hours_rebuilt: Hours that the sessions rebuilt.
        rows_written: Rows that they wrote.
        seconds: Wall time that they took.
        lookback_hours: Hours that the lookback would have reprocessed.
        lookback_rows: Rows that it would have written.
        hours_saved: `lookback_hours` minus `hours_rebuilt`; negative if the lookback would have reprocessed less.
        rows_saved: `lookback_rows` minus `rows_written`.
        missed_hours: Late hours that the lookback would have left wrong.
    """

    sessions: int = 0
    hours_rebuilt: int = 0
    rows_written: int = 0
    seconds: float = 0.0
    lookback_hours: int = 0
    lookback_rows: int = 0
    hours_saved: int = 0
    rows_saved: int = 0
    missed_hours: int = 0


def lookback(
    built: Collection[int],
    *,
    through: int | None,
    before: int | None,
    start: int,
    hours: int,
    grain: Grain = HOUR,
) -> range:
    """Return the event hours that a fixed lookback would have reprocessed; none if the session built none.

    Args:
        built: Hours that the session built.
        through: The target's complete-through after the session; None if the session did not move it.
        before: The target's complete-through before the session. Later hours are new, so the lookback includes them.
        start: The pipeline's first hour.
        hours: Length of the lookback, rounded up to whole partitions.
        grain: The target's partitions.
    """
    if not built:
        return range(0)
    last = max(hour for hour in (through, before, *built) if hour is not None)
    first_new = min(built) if before is None else before + 1
    first = max(start, min(last - hours + 1, first_new))
    return range(grain.first(first), grain.last(last) + 1)


def costs(
    history: Iterable[SessionRecord],
    *,
    rows_by_hour: Mapping[int, int],
    start: int,
    hours: int,
    grain: Grain = HOUR,
) -> tuple[SessionCost, ...]:
    """Return the costs of the sessions of one target, in the order of `history`.

    Args:
        history: The sessions, oldest first.
        rows_by_hour: Event hour → rows of the target at present.
        start: The pipeline's first hour.
        hours: Length of the lookback.
        grain: The target's partitions.
    """
    found = []
    before: int | None = None
    for record in history:
        is_committed = record.state == "committed"
        built = record.built if is_committed else ()
        through = record.plan.complete_through
        compared = built if record.plan.kind == "session" else ()
        span = lookback(
            compared,
            through=through,
            before=before,
            start=start,
            hours=hours,
            grain=grain,
        )
        found.append(_session_cost(record, built, span, rows_by_hour))
        if is_committed:
            reached = capped(through, [held.hour for held in record.held], before)
            if reached is not None:
                before = reached if before is None else max(before, reached)
    return tuple(found)


def compare_with_lookback(sessions: Iterable[SessionCost]) -> LookbackComparison:
    """Return the sums over the sessions that have a lookback."""
    compared = [session for session in sessions if session.lookback]
    hours_rebuilt = 0
    lookback_hours = 0
    missed_hours = 0
    for session in compared:
        hours_rebuilt += len(session.built)
        lookback_hours += len(session.lookback)
        missed_hours += len(session.missed)
    rows_written = sum(session.rows_written for session in compared)
    lookback_rows = sum(session.lookback_rows for session in compared)
    return LookbackComparison(
        sessions=len(compared),
        hours_rebuilt=hours_rebuilt,
        rows_written=rows_written,
        seconds=sum(session.seconds or 0.0 for session in compared),
        lookback_hours=lookback_hours,
        lookback_rows=lookback_rows,
        hours_saved=lookback_hours - hours_rebuilt,
        rows_saved=lookback_rows - rows_written,
        missed_hours=missed_hours,
    )


def _session_cost(
    record: SessionRecord,
    built: tuple[int, ...],
    span: range,
    rows_by_hour: Mapping[int, int],
) -> SessionCost:
    plan = record.plan
    seconds = None if record.ended_at is None else (record.ended_at - record.started_at).total_seconds()
    return SessionCost(
        session_id=plan.session_id,
        state=record.state,
        kind=plan.kind,
        load=plan.load,
        reason=plan.reason,
        started_at=record.started_at,
        ended_at=record.ended_at,
        seconds=seconds,
        planned=plan.hour_numbers,
        built=built,
        rows_read=record.rows_read,
        rows_written=record.rows_written,
        lookback=span,
        lookback_rows=sum(rows for hour, rows in rows_by_hour.items() if hour in span),
        missed=tuple(hour for hour in built if hour < span.start) if span else (),
        failed_audits=tuple(audit for audit in record.audits if not audit.passed),
    )
