"""Where rows belong that arrive under an id after requests of that id were applied: one alias for each span of time.

Replay defines the right result, as in `identity`: the applied requests that were executed since the row engaged act on
it, in order. The first of them that names the row's id decides, together with all that follow. So an alias holds from
one request of its id to the next. Requests of the batch that processes the row take their places among them, because a
pending one may be older than applied ones. They act on every row that they meet, whenever it engaged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from lake_assets.engagement.requests.identity import FinalIds, MutationRequest, collapse, in_order, prepend


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time: after < engaged_at <= until.

    Attributes:
        after: Exclusive; None for no bound.
        until: Inclusive, when the request was executed; None for no bound, for a request of the batch.
    """

    after: datetime | None
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Alias:
    """Late rows of old_id with after < engaged_at <= until belong to new_id.

    Attributes:
        new_id: None if the rows are deleted.
        after: As in `Span`.
        until: As in `Span`.
    """

    old_id: str
    new_id: str | None
    after: datetime | None
    until: datetime | None


def aliases(applied: Iterable[MutationRequest], batch: Iterable[MutationRequest] = ()) -> list[Alias]:
    """Return the aliases that the applied requests of one org leave.

    Args:
        applied: Requests of former batches, in any order.
        batch: Requests that are applied only now.

    Returns:
        Aliases in order; those of one id do not overlap. Spans in which late rows go where `batch` moves every row are
        left out. Without a batch, those are the spans in which rows keep their id.
    """
    batch_requests = list(batch)
    batch_ids = {request.request_id for request in batch_requests}
    moved_by_batch = collapse(batch_requests)
    requests = in_order([*applied, *batch_requests])
    spans = _spans(requests, batch_ids)
    final_ids: FinalIds = {}
    found: list[Alias] = []
    for request, span in zip(reversed(requests), reversed(spans), strict=True):
        old_id = request.old_id
        new_id = prepend(request, final_ids)
        if span is not None and new_id != moved_by_batch.get(old_id, old_id):
            found.append(Alias(old_id, new_id, span.after, span.until))
    return sorted(found, key=lambda alias: (alias.old_id, alias.until is None, alias.until))


def _spans(ordered: Iterable[MutationRequest], batch_ids: Collection[str]) -> list[Span | None]:
    """Return the span that each request decides: since the former request of the same id. None if it is empty.

    Args:
        batch_ids: Ids of the batch's requests. The first of these decides for all rows that engaged since.
    """
    decided_until: dict[str, datetime | None] = {}
    spans: list[Span | None] = []
    for request in ordered:
        is_known = request.old_id in decided_until
        after = decided_until.get(request.old_id)
        until = None if request.request_id in batch_ids else request.executed_at
        everything_decided = is_known and after is None
        if everything_decided:
            spans.append(None)
            continue
        is_empty = is_known and after == until
        spans.append(None if is_empty else Span(after, until))
        decided_until[request.old_id] = until
    return spans
