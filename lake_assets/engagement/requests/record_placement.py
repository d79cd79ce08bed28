"""Where the records end that requests carry: the current record of each engagement, and its final id. Pure.

Replay defines the right result, as in `identity`: a record is put in place after the rows of its request have moved,
and later requests move it. The last record of an engagement is current.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lake_assets.engagement.requests.identity import (
    PERSON,
    FinalIds,
    MutationRequest,
    Record,
    in_order,
    of_day,
    prepend,
)


@dataclass(frozen=True, slots=True)
class PlacedRecord:
    """The current record of an engagement.

    Attributes:
        request_id: The request that carries the record.
        who_id: Final id of the record; None if it is deleted.
        ids: Further id column → its final id.
    """

    engagement_id: str
    request_id: str
    who_id: str | None
    ids: Mapping[str, str | None] = field(default_factory=dict)


def place_records(requests: Iterable[MutationRequest]) -> list[PlacedRecord]:
    """Return the current record of each engagement, sorted by engagement_id.

    Args:
        requests: Requests of one org, in any order.
    """
    final_ids: defaultdict[str, FinalIds] = defaultdict(dict)
    found: dict[str, PlacedRecord] = {}
    for request in reversed(in_order(requests)):
        record = request.record
        if record is not None and record.engagement_id not in found:
            found[record.engagement_id] = _placed(request.request_id, record, final_ids)
        prepend(request, final_ids[request.column])
    return [found[engagement_id] for engagement_id in sorted(found)]


def _placed(request_id: str, record: Record, final_ids: Mapping[str, FinalIds]) -> PlacedRecord:
    """Return where a record ends. A request that deletes the id of any column deletes it."""
    ends: dict[str, str | None] = {}
    for column in (PERSON, *record.ids):
        identity = record.id_of(column)
        if identity is None:
            ends[column] = None
            continue
        ends[column] = of_day(final_ids.get(column, {}).get(identity, identity), record.day)
        if ends[column] is None:
            return PlacedRecord(record.engagement_id, request_id, None)
    return PlacedRecord(record.engagement_id, request_id, ends.pop(PERSON), ends)
