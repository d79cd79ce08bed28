"""Which requests are applied, and which stay pending because their id has no row yet, until they are dead.

A pending request has the stored status `parked`. Each later batch tries it again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Literal

from lake_assets.engagement.requests.identity import MutationRequest, in_order

Status = Literal["applied", "parked", "dead"]


Engaged = tuple[str, datetime] | tuple[str, datetime, date | None]
"""Id and engaged_at of a row, and the day on which it engaged if a request names a day."""


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
            present_rows.put(request.record.id_of(request.column), request.record.day)
    return found


class _Rows:
    """Rows while requests are replayed on them."""

    def __init__(self, rows: Iterable[Engaged]) -> None:
        self._unmoved: defaultdict[str, defaultdict[date | None, list[datetime]]]
        """Id → day → engaged_at of its rows that no request has moved yet."""
        self._unmoved = defaultdict(lambda: defaultdict(list))
        for identity, engaged_at, *day in rows:
            self._unmoved[identity][day[0] if day else None].append(engaged_at)
        for days in self._unmoved.values():
            for times in days.values():
                times.sort(reverse=True)
        self._moved_to: defaultdict[str, set[date | None]] = defaultdict(set)
        """Present ids of the rows that requests have moved, and of records → their days. All requests to come are
        later."""

    def put(self, identity: str | None, day: date | None) -> None:
        """Add the row of a record."""
        if identity is not None:
            self._moved_to[identity].add(day)

    def move(self, request: MutationRequest) -> bool:
        """Move the rows that a request finds, and return whether it finds any."""
        wanted = request.engagement_date
        unmoved: Mapping[date | None, list[datetime]] = self._unmoved.get(request.old_id, {})
        moved = self._moved_to.get(request.old_id, set())
        found = set[date | None]()
        for day in {*unmoved, *moved} if wanted is None else {wanted}:
            times = unmoved.get(day, [])
            if day in moved:
                found.add(day)
            while times and times[-1] <= request.executed_at:
                times.pop()
                found.add(day)
        moved -= found
        if found and request.target is not None:
            self._moved_to[request.target] |= found
        return bool(found)


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
