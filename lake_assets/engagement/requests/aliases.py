"""Where rows belong under whose id requests were executed: an id for each span of the time at which they engaged.

Time decides, not the batch that a row or a request comes in: a request acts on the rows that have its old_id when it is
executed and that engaged until then. Replay defines the right result, as in `identity`: of the requests that were
executed since a row engaged, the first one that names the row's id decides, together with all that follow. So an alias
holds from one request of its id to the next, and an id that is used again belongs to whom it belonged at that time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from lake_assets.engagement.requests.identity import FinalIds, MutationRequest, in_order, prepend


@dataclass(frozen=True, slots=True)
class Alias:
    """Rows of old_id with after < engaged_at <= until belong to new_id.

    Attributes:
        new_id: None if the rows are deleted.
        after: Exclusive; None for no bound.
        until: Inclusive, when the request was executed that decides.
    """

    old_id: str
    new_id: str | None
    after: datetime | None
    until: datetime


def aliases(requests: Iterable[MutationRequest]) -> list[Alias]:
    """Return where requests of one org lead rows.

    Args:
        requests: Requests in any order.

    Returns:
        Aliases in order; those of one id do not overlap. A row without an alias keeps its id.
    """
    return [alias for alias in _all_aliases(in_order(requests)) if alias.new_id != alias.old_id]


def late_aliases(applied: Iterable[MutationRequest], batch: Iterable[MutationRequest]) -> list[Alias]:
    """Return where requests lead the rows of one org that arrived after some of them were applied.

    Args:
        applied: Requests of former batches, in any order.
        batch: Requests that are applied only now.

    Returns:
        Aliases in order; those of one id do not overlap. A row without an alias follows `aliases(batch)`, as former
        rows do.
    """
    batch_requests = in_order(batch)
    usual: dict[tuple[str, datetime], str | None] = {}
    for alias in _all_aliases(batch_requests):
        usual[alias.old_id, alias.until] = alias.new_id
    moved_by_batch = {request.old_id for request in batch_requests}
    found: list[Alias] = []
    for alias in _all_aliases(in_order([*applied, *batch_requests])):
        is_kept = alias.new_id == alias.old_id and alias.old_id not in moved_by_batch
        is_usual = usual.get((alias.old_id, alias.until), _NOWHERE) == alias.new_id
        if not is_kept and not is_usual:
            found.append(alias)
    return found


def changed_aliases(
    applied: Iterable[MutationRequest], batch: Iterable[MutationRequest], arrived: Collection[str]
) -> list[Alias]:
    """Return where a batch leads rows of one org, by the ids that they were sent with.

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
    former = _all_aliases(applied_requests)
    former_ends = [(alias.old_id, alias.until) for alias in former]
    found: list[Alias] = []
    for alias in _all_aliases(in_order([*applied_requests, *batch])):
        place = bisect_left(former_ends, (alias.old_id, alias.until))
        was_moved = place < len(former) and former[place].old_id == alias.old_id
        before = former[place].new_id if was_moved else alias.old_id
        is_late = alias.old_id in arrived and alias.new_id != alias.old_id
        if alias.new_id != before or is_late:
            found.append(alias)
    return found


_NOWHERE = ""
"""No id: ids are not blank."""


def _all_aliases(ordered: Sequence[MutationRequest]) -> list[Alias]:
    """Return the aliases of requests in the order of replay, also those that lead rows back to their own id."""
    final_ids: FinalIds = {}
    found: list[Alias] = []
    for request, after in zip(reversed(ordered), reversed(_starts(ordered)), strict=True):
        new_id = prepend(request, final_ids)
        if after != request.executed_at:
            found.append(Alias(request.old_id, new_id, after, request.executed_at))
    return sorted(found, key=lambda alias: (alias.old_id, alias.until))


def _starts(ordered: Iterable[MutationRequest]) -> list[datetime | None]:
    """Return when the former request of the same id was executed, for each request; None if there is none.

    Of requests of one id at the same instant, the first one decides; the others have an empty span.
    """
    last: dict[str, datetime] = {}
    starts: list[datetime | None] = []
    for request in ordered:
        starts.append(last.get(request.old_id))
        last[request.old_id] = request.executed_at
    return starts
