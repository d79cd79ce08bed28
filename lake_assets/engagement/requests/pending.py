"""Which requests are applied, and which stay pending because their id has no row yet, until they are dead.

A pending request has the stored status `parked`. Each later batch tries it again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from lake_assets.engagement.requests.identity import MutationRequest, in_order

Status = Literal["applied", "parked", "dead"]


def applicable(
    requests: Iterable[MutationRequest],
    present: Iterable[str],
    *,
    applied: Iterable[MutationRequest] = (),
    arrived: Iterable[tuple[str, datetime]] = (),
) -> set[str]:
    """Return the ids of the requests of one org that find a row when they are replayed, or that carry a record.

    Args:
        present: Ids that have rows.
        applied: Requests of former batches.
        arrived: (id, engaged_at) of each new row. On its way it also meets applied requests, as in `aliases`.
    """
    tried = list(requests)
    tried_ids = {request.request_id for request in tried}
    new_rows = _NewRows(arrived)
    ids_with_rows = set(present)
    found: set[str] = set()
    for request in in_order([*applied, *tried]):
        if request.request_id not in tried_ids:
            new_rows.move(request, until=request.executed_at)
            continue
        moves_new_rows = new_rows.move(request)
        moves_present_rows = _move(request, ids_with_rows)
        if moves_new_rows or moves_present_rows or request.record is not None:
            found.add(request.request_id)
        if request.record is not None:
            ids_with_rows.add(request.record.who_id)
    return found


def _move(request: MutationRequest, ids_with_rows: set[str]) -> bool:
    """Move the rows of the request's old_id, and return whether there were any."""
    if request.old_id not in ids_with_rows:
        return False
    ids_with_rows.discard(request.old_id)
    if request.target is not None:
        ids_with_rows.add(request.target)
    return True


class _NewRows:
    """Rows that arrived since the last batch, while requests are replayed on them.

    Args:
        rows: (id, engaged_at) of each row.
    """

    def __init__(self, rows: Iterable[tuple[str, datetime]]) -> None:
        self._unmoved: defaultdict[str, list[datetime]] = defaultdict(list)
        """Id → engaged_at of its rows that no request has moved yet, latest first."""
        for identity, engaged_at in sorted(rows, reverse=True):
            self._unmoved[identity].append(engaged_at)
        self._moved_to: set[str] = set()
        """Present ids of the rows that requests have moved."""

    def move(self, request: MutationRequest, *, until: datetime | None = None) -> bool:
        """Move the rows that a request finds, and return whether it finds any.

        Args:
            until: The request does not act on rows that engaged later; None for no bound.
        """
        unmoved = self._unmoved.get(request.old_id, [])
        found = request.old_id in self._moved_to
        while unmoved and (until is None or unmoved[-1] <= until):
            unmoved.pop()
            found = True
        self._moved_to.discard(request.old_id)
        if found and request.target is not None:
            self._moved_to.add(request.target)
        return found


def status_after_attempt(*, found: bool, attempts: int, max_attempts: int) -> Status:
    """Return the status of a request after an attempt.

    Args:
        found: Whether the request found a row.
        attempts: Number of attempts, this one included.
    """
    if found:
        return "applied"
    if attempts < max_attempts:
        return "parked"
    return "dead"
