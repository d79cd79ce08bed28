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


Engaged = tuple[str, datetime]
"""Id and engaged_at of a row."""


def applicable(
    requests: Iterable[MutationRequest],
    present: Iterable[Engaged],
    *,
    applied: Iterable[MutationRequest] = (),
    as_sent: Iterable[Engaged] = (),
) -> set[str]:
    """Return the ids of the requests of one org that find a row when they are replayed, or that carry a record.

    A request finds rows that engaged until it was executed.

    Args:
        present: Rows by the ids that they have now.
        applied: Requests of former batches.
        as_sent: Rows by the ids that they were sent with. On their way they also meet applied requests, as in
            `changed_aliases`.
    """
    tried = list(requests)
    tried_ids = {request.request_id for request in tried}
    present_rows = _Rows(present)
    rows_as_sent = _Rows(as_sent)
    found: set[str] = set()
    for request in in_order([*applied, *tried]):
        moves_rows_as_sent = rows_as_sent.move(request)
        if request.request_id not in tried_ids:
            continue
        moves_present_rows = present_rows.move(request)
        if moves_rows_as_sent or moves_present_rows or request.record is not None:
            found.add(request.request_id)
        if request.record is not None:
            present_rows.put(request.record.who_id)
    return found


class _Rows:
    """Rows while requests are replayed on them."""

    def __init__(self, rows: Iterable[Engaged]) -> None:
        self._unmoved: defaultdict[str, list[datetime]] = defaultdict(list)
        """Id → engaged_at of its rows that no request has moved yet, latest first."""
        for identity, engaged_at in sorted(rows, reverse=True):
            self._unmoved[identity].append(engaged_at)
        self._moved_to: set[str] = set()
        """Present ids of the rows that requests have moved, and of records. All requests to come are later."""

    def put(self, identity: str) -> None:
        """Add the row of a record."""
        self._moved_to.add(identity)

    def move(self, request: MutationRequest) -> bool:
        """Move the rows that a request finds, and return whether it finds any."""
        unmoved = self._unmoved.get(request.old_id, [])
        found = request.old_id in self._moved_to
        while unmoved and unmoved[-1] <= request.executed_at:
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
