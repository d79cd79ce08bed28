"""Where rows belong under whose id requests were executed: an id for each span of the time at which they engaged.

Time decides, not the batch that a row or a request comes in: a request acts on the rows that have its old_id when it is
executed and that engaged until then; one with an engagement_date acts on those of that day (UTC) alone. Replay defines
the right result, as in `identity`. Walked backwards in time, each request adds one span to its old_id: from the former
request of that id to its own time. A day is a part of a span, so dated requests need nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta

from lake_assets.engagement.requests.identity import (
    DatedEnds,
    End,
    FinalIds,
    MutationRequest,
    in_order,
    of_day,
    prepend,
)

_DAY = timedelta(days=1)
_TICK = timedelta(microseconds=1)

_Piece = tuple[datetime, str | None]
"""Rows that engaged after the piece before (all, for the first one) and until this time end at this id."""


@dataclass(frozen=True, slots=True)
class Alias:
    """Rows of old_id with after < engaged_at <= until belong to new_id.

    Attributes:
        new_id: None if the rows are deleted.
        after: Exclusive; None for no bound.
        until: Inclusive.
    """

    old_id: str
    new_id: str | None
    after: datetime | None
    until: datetime


def aliases(requests: Iterable[MutationRequest]) -> list[Alias]:
    """Return where requests of one org and column lead rows.

    Args:
        requests: Requests in any order.

    Returns:
        Aliases in order; those of one id do not overlap. A row without an alias keeps its id.
    """
    return changed_aliases((), requests, ())


def changed_aliases(
    applied: Iterable[MutationRequest], batch: Iterable[MutationRequest], arrived: Collection[str]
) -> list[Alias]:
    """Return where a batch leads rows of one org and column, by the ids that they were sent with.

    All requests act on a row in order of time, in whatever batches they came. So a request may change the way of rows
    that later requests have moved before.

    Args:
        applied: Requests of former batches, in any order.
        batch: Requests that are applied only now.
        arrived: Ids with new rows, on which no request has acted.

    Returns:
        Aliases in order; those of one id do not overlap. A row without an alias stays where it is.
    """
    applied_requests = in_order(applied)
    before, after = _spans(applied_requests), _spans(in_order([*applied_requests, *batch]))
    found: list[Alias] = []
    for old_id in sorted(after):
        former = iter([*_pieces(before.get(old_id, []))])
        until, was = next(former, (None, old_id))
        start: datetime | None = None
        pieces = [*_pieces(after[old_id])]
        ends = sorted({end for end, _ in pieces} | {end for end, _ in _pieces(before.get(old_id, []))})
        now = iter(pieces)
        next_end, new_id = next(now, (None, old_id))
        for end in ends:
            while until is not None and until < end:
                until, was = next(former, (None, old_id))
            while next_end is not None and next_end < end:
                next_end, new_id = next(now, (None, old_id))
            if new_id != was or (new_id != old_id and old_id in arrived):
                found.append(Alias(old_id, new_id, start, end))
            start = end
    return found


def _spans(ordered: list[MutationRequest]) -> dict[str, list[tuple[datetime, End]]]:
    """Return id → its requests' times, the last one first, each with where rows end that meet it and all later ones."""
    final_ids: FinalIds = {}
    found: dict[str, list[tuple[datetime, End]]] = {}
    for request in reversed(ordered):
        found.setdefault(request.old_id, []).append((request.executed_at, prepend(request, final_ids)))
    return found


def _pieces(spans: list[tuple[datetime, End]]) -> Iterator[_Piece]:
    """Yield the pieces of an id in order of time: its spans, cut where a day has an end of its own.

    Of requests at the same instant, the first one decides; the others have an empty span.
    """
    start: datetime | None = None
    for until, end in reversed(spans):
        if until == start:
            continue
        for day in sorted(end.days) if isinstance(end, DatedEnds) else ():
            before_day, last = _bounds(day, until)
            last = min(last, until)
            if (start is not None and last <= start) or before_day >= until:
                continue
            if start is None or before_day > start:
                yield before_day, of_day(end, None)
            yield last, of_day(end, day)
            start = last
        if start is None or start < until:
            yield until, of_day(end, None)
        start = until


def _bounds(day: date, like: datetime) -> tuple[datetime, datetime]:
    """Return the last instant before a day, and its last one, in the zone of another time."""
    midnight = datetime.combine(day, time.min, like.tzinfo)
    return midnight - _TICK, midnight + _DAY - _TICK
