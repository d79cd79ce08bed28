"""Where rows belong that arrive under an id after requests of that id were applied: one alias for each span of time.

The truth is replay, as in `identity`: of the applied requests, those that were executed since the row engaged act on
it, in order. The first of them that names its id decides, with all that follows: so an alias holds from one request of
its id to the next. Requests of the batch that catches the row take their places among them, for one that was parked may
be older than what was applied; they act on whatever they meet, whenever it engaged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from lake_assets.engagement.requests.identity import Final, MutationRequest, collapse, in_order


@dataclass(frozen=True, slots=True)
class Alias:
    """Late rows of old_id belong to new_id, None: they go. For rows with after < engaged_at <= until.

    after: exclusive, None for no bound. until: inclusive, when the request was executed; None for one of the batch.
    """

    old_id: str
    new_id: str | None
    after: datetime | None
    until: datetime | None


Span = tuple[datetime | None, datetime | None]


def aliases(applied: Iterable[MutationRequest], batch: Iterable[MutationRequest] = ()) -> list[Alias]:
    """The aliases that the applied requests of one org leave, in whatever order given. Of an id, no two overlap.

    batch: requests that are applied only now. Spans in which late rows go where these lead every row are left out:
    without a batch, those in which rows keep their id.
    """
    now = list(batch)
    led = collapse(now)
    final: Final = {}
    found: list[Alias] = []
    for request, span in reversed(_with_spans(in_order([*applied, *now]), {request.request_id for request in now})):
        outcome, old = request.outcome, request.old_id
        final[old] = None if outcome is None else final.get(outcome, outcome)
        if span is not None and final[old] != led.get(old, old):
            found.append(Alias(old, final[old], *span))
    return sorted(found, key=lambda alias: (alias.old_id, alias.until is None, alias.until))


def _with_spans(ordered: Iterable[MutationRequest], new: Collection[str]) -> list[tuple[MutationRequest, Span | None]]:
    """Each request with the time for which it decides: since the one before it that names the same id. None: no time.

    new: ids of those of the batch. The first of these decides for all that engaged since.
    """
    last: dict[str, datetime | None] = {}
    paired: list[tuple[MutationRequest, Span | None]] = []
    for request in ordered:
        known, after = request.old_id in last, last.get(request.old_id)
        until = None if request.request_id in new else request.executed_at
        empty = known and (after is None or after == until)
        paired.append((request, None if empty else (after, until)))
        last[request.old_id] = None if known and after is None else until
    return paired
