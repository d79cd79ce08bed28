"""Where the records end that requests carry: the current record of each engagement, and its final id. Pure.

Replay defines the right result, as in `identity`: a record is put in place after the rows of its request have moved,
and later requests move it. The last record of an engagement is current.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lake_assets.engagement.requests.identity import FinalIds, MutationRequest, in_order, prepend


@dataclass(frozen=True, slots=True)
class PlacedRecord:
    """The current record of an engagement.

    Attributes:
        request_id: The request that carries the record.
        who_id: Final id of the record; None if it is deleted.
    """

    engagement_id: str
    request_id: str
    who_id: str | None


def place_records(requests: Iterable[MutationRequest]) -> list[PlacedRecord]:
    """Return the current record of each engagement, sorted by engagement_id.

    Args:
        requests: Requests of one org, in any order.
    """
    final_ids: FinalIds = {}
    found: dict[str, PlacedRecord] = {}
    for request in reversed(in_order(requests)):
        record = request.record
        if record is not None and record.engagement_id not in found:
            who_id = final_ids.get(record.who_id, record.who_id)
            found[record.engagement_id] = PlacedRecord(record.engagement_id, request.request_id, who_id)
        prepend(request, final_ids)
    return [found[engagement_id] for engagement_id in sorted(found)]
