"""Where rows belong that arrive under an id after requests of that id were applied: one alias for each span of time.

The truth is replay, as in `identity`: of the applied requests, those that were executed since the row engaged act on
it, in order. The first of them that names its id decides, with all that follows: so an alias holds from one request of
its id to the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from lake_assets.engagement.identity import MutationRequest, in_order


@dataclass(frozen=True, slots=True)
class Alias:
    """Late rows of old_id belong to new_id, None: they go. For rows with after < engaged_at <= until.

    after: exclusive, None for no bound. until: inclusive, when the request was executed.
    """

    old_id: str
    new_id: str | None
    after: datetime | None
    until: datetime


def aliases(requests: Iterable[MutationRequest]) -> list[Alias]:
    """The aliases that the applied requests of one org leave, in whatever order given. Of an id, no two overlap.

    Spans in which rows keep their id are left out.
    """
    final: dict[str, str | None] = {}
    found: list[Alias] = []
    for request, after in reversed(_with_former(in_order(requests))):
        outcome = request.outcome
        final[request.old_id] = None if outcome is None else final.get(outcome, outcome)
        if final[request.old_id] != request.old_id and after != request.executed_at:
            found.append(Alias(request.old_id, final[request.old_id], after, request.executed_at))
    return sorted(found, key=lambda alias: (alias.old_id, alias.until))


def _with_former(ordered: Iterable[MutationRequest]) -> list[tuple[MutationRequest, datetime | None]]:
    """Each request with the time of the one before it that names the same id; None for the first."""
    last: dict[str, datetime] = {}
    paired = []
    for request in ordered:
        paired.append((request, last.get(request.old_id)))
        last[request.old_id] = request.executed_at
    return paired
