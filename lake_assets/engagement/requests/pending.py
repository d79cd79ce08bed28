"""Which requests wait: those whose id holds no row yet are parked, tried with each later batch, and dead in the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from lake_assets.engagement.requests.identity import MutationRequest, in_order

Status = Literal["applied", "parked", "dead"]


def met(
    requests: Iterable[MutationRequest],
    present: Iterable[str],
    *,
    applied: Iterable[MutationRequest] = (),
    arrived: Iterable[tuple[str, datetime]] = (),
) -> set[str]:
    """The requests, by their ids, that meet a row when they are replayed. present: the ids of an org that hold rows.

    One that carries a record is among them, whatever it meets: the record waits for nothing. arrived: of each row that
    just came its id, and when it engaged; on its way it also meets what was applied before, as `aliases` has it.
    """
    tried, rows, found = list(requests), _Arrived(arrived), set()
    holding, new = set(present), {request.request_id for request in tried}
    for request in in_order([*applied, *tried]):
        if request.request_id not in new:
            rows.meet(request, until=request.executed_at)
            continue
        if rows.meet(request) or request.old_id in holding:
            found.add(request.request_id)
        if request.old_id in holding:
            holding.discard(request.old_id)
            if request.outcome is not None:
                holding.add(request.outcome)
        if request.record is not None:
            found.add(request.request_id)
            holding.add(request.record.who_id)
    return found


class _Arrived:
    """Rows on their way: those that no request has met yet, by their id, and the ids that the others are at."""

    def __init__(self, rows: Iterable[tuple[str, datetime]]) -> None:
        self._coming: defaultdict[str, list[datetime]] = defaultdict(list)
        for identity, engaged_at in sorted(rows, reverse=True):
            self._coming[identity].append(engaged_at)
        self._moved: set[str] = set()

    def meet(self, request: MutationRequest, *, until: datetime | None = None) -> bool:
        """Whether a request meets any, which then move on. until: rows that engaged later it does not meet."""
        coming = self._coming.get(request.old_id, [])
        found = request.old_id in self._moved
        while coming and (until is None or coming[-1] <= until):
            coming.pop()
            found = True
        self._moved.discard(request.old_id)
        if found and request.outcome is not None:
            self._moved.add(request.outcome)
        return found


def status(*, found: bool, attempts: int, max_attempts: int) -> Status:
    """What becomes of a request that was now tried for the attempts-th time."""
    if found:
        return "applied"
    return "parked" if attempts < max_attempts else "dead"
