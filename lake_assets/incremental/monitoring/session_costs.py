"""What sessions cost, and what a fixed lookback would have cost instead, and missed: pure, from their records."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from lake_assets.base.grain import HOUR, Grain
from lake_assets.incremental.execution.session_log import SessionRecord
from lake_assets.incremental.planning.session import AuditResult
from lake_assets.incremental.planning.verdicts import capped


@dataclass(frozen=True)
class SessionCost:
    """One session: what it did, and what a fixed lookback would have done in its stead.

    reason: of its first hour, or what it is for. seconds: wall time from planning to its end; None while it is open.
    planned, built, lookback, missed: event hours, ascending. lookback: the last hours up to the one that the target
    reaches after the session, and all that are new; empty for a session that built nothing, and for a rebuild, which a
    person asked for. missed: those built that a lookback would have left wrong. lookback_rows: rows that the target
    has now in the hours of the lookback.
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
    lookback: tuple[int, ...] = ()
    lookback_rows: int = 0
    missed: tuple[int, ...] = ()
    failed_audits: tuple[AuditResult, ...] = ()


@dataclass(frozen=True)
class Saving:
    """Sums over the sessions of one target that can be compared: those with a lookback. Hours, rows and seconds.

    sessions: how many. hours_rebuilt, rows_written, seconds: what they cost. lookback_*: what a fixed lookback
    would have reprocessed. *_saved: the difference, negative if it would have been less. missed_hours: late ones that
    it would have left wrong. An hour counts once for each session.
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
    """The event hours that a fixed lookback would have reprocessed instead of building `built`; none for none.

    through: the target's complete-through that the session moved to; None: it did not. before: as it was; what lies
    after it is new, so a lookback does it, too. start: the pipeline's first hour. hours: how far the lookback reaches;
    of whole partitions, as `grain` says.
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
    """The sessions of one process, in the order given, oldest first. rows_by_hour: of the target, as it is now."""
    found, before = [], None
    for record in history:
        is_done = record.state == "committed"
        built = record.built if is_done else ()
        through = record.plan.complete_through
        compared = built if record.plan.kind == "session" else ()
        span = lookback(compared, through=through, before=before, start=start, hours=hours, grain=grain)
        found.append(_cost(record, built, span, rows_by_hour))
        if is_done:
            reached = capped(through, [h.hour for h in record.held], before)
            before = max((h for h in (before, reached) if h is not None), default=None)
    return tuple(found)


def saving(costs: Iterable[SessionCost]) -> Saving:
    """The sums of those that can be compared."""
    compared = [c for c in costs if c.lookback]
    rebuilt, reprocessed = sum(len(c.built) for c in compared), sum(len(c.lookback) for c in compared)
    written, rows = sum(c.rows_written for c in compared), sum(c.lookback_rows for c in compared)
    return Saving(
        sessions=len(compared),
        hours_rebuilt=rebuilt,
        rows_written=written,
        seconds=sum(c.seconds or 0.0 for c in compared),
        lookback_hours=reprocessed,
        lookback_rows=rows,
        hours_saved=reprocessed - rebuilt,
        rows_saved=rows - written,
        missed_hours=sum(len(c.missed) for c in compared),
    )


def _cost(record: SessionRecord, built: tuple[int, ...], span: range, rows_by_hour: Mapping[int, int]) -> SessionCost:
    plan = record.plan
    return SessionCost(
        session_id=plan.session_id,
        state=record.state,
        kind=plan.kind,
        load=plan.load,
        reason=plan.reason,
        started_at=record.started_at,
        ended_at=record.ended_at,
        seconds=None if record.ended_at is None else (record.ended_at - record.started_at).total_seconds(),
        planned=plan.hour_numbers,
        built=built,
        rows_read=record.rows_read,
        rows_written=record.rows_written,
        lookback=tuple(span),
        lookback_rows=sum(rows_by_hour.get(hour, 0) for hour in span),
        missed=tuple(h for h in built if h < span.start) if span else (),
        failed_audits=tuple(a for a in record.audits if not a.passed),
    )
