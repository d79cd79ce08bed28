"""Which requests wait: those whose id holds no row yet are parked, tried with each later batch, and dead in the end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from lake_assets.engagement.identity import MutationRequest, in_order

Status = Literal["applied", "parked", "dead"]


def met(requests: Iterable[MutationRequest], present: Iterable[str]) -> set[str]:
    """The requests, by their ids, that meet a row when they are replayed. present: the ids of an org that hold rows.

    One that carries a record is among them, whatever it meets: the record waits for nothing.
    """
    holding, found = set(present), set()
    for request in in_order(requests):
        if request.old_id in holding:
            found.add(request.request_id)
            holding.discard(request.old_id)
            if request.outcome is not None:
                holding.add(request.outcome)
        if request.record is not None:
            found.add(request.request_id)
            holding.add(request.record.who_id)
    return found


def status(*, found: bool, attempts: int, max_attempts: int) -> Status:
    """What becomes of a request that was now tried for the attempts-th time."""
    if found:
        return "applied"
    return "parked" if attempts < max_attempts else "dead"
