"""Where the records end that requests carry: of each engagement, which record counts, and under which id. Pure.

The truth is replay, as in `identity`: a record is put in place after the rows of its request have moved, and moves with
the requests that follow. Of several records of one engagement the last counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lake_assets.engagement.requests.identity import Final, MutationRequest, in_order


@dataclass(frozen=True, slots=True)
class Placed:
    """The record of an engagement that counts: the request that carries it, and its last id; None: no row is left."""

    engagement_id: str
    request_id: str
    who_id: str | None


def placed(requests: Iterable[MutationRequest]) -> list[Placed]:
    """The records of one org's requests, in whatever order given; by engagement_id, each once."""
    final: Final = {}
    found: dict[str, Placed] = {}
    for request in reversed(in_order(requests)):
        if (record := request.record) is not None and record.engagement_id not in found:
            who = final.get(record.who_id, record.who_id)
            found[record.engagement_id] = Placed(record.engagement_id, request.request_id, who)
        outcome = request.outcome
        final[request.old_id] = None if outcome is None else final.get(outcome, outcome)
    return [found[engagement] for engagement in sorted(found)]
