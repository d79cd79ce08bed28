"""What a request for retention removes: what is older than an org keeps it, and a person under all of their ids.

Cut-offs come from the time of the request, never from a clock: whoever carries it out, and however late, removes the
same rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, get_args

import networkx as nx

from lake_assets.engagement.requests.identity import MutationRequest, linked
from lake_assets.errors import UsageError

RetentionOp = Literal["ttl", "gdpr"]
RETENTION_OPS: tuple[RetentionOp, ...] = get_args(RetentionOp)
TTL_DAYS = (1, 36_500)
"""The least and the greatest number of days that an org may keep engagements: cut-offs are dates that exist."""


@dataclass(frozen=True, slots=True)
class RetentionRequest:
    """A request of an org: keep engagements ttl_days long (ttl), or erase the person behind who_id (gdpr).

    requested_at: when its sender made it. Raises `UsageError` for an op that is none, and for one that lacks its value.
    """

    request_id: str
    op: RetentionOp
    ttl_days: int | None
    who_id: str | None
    requested_at: datetime

    def __post_init__(self) -> None:
        if self.op not in RETENTION_OPS:
            raise UsageError(
                f"Request {self.request_id} asks for {self.op!r}.", remedy=f"Ask for one of {RETENTION_OPS}."
            )
        if self.op == "ttl":
            check_days(f"Request {self.request_id}", self.ttl_days)
        if self.op == "gdpr" and self.who_id is None:
            raise UsageError(f"Request {self.request_id}, a gdpr, has no who_id.", remedy="Name the who_id.")


def check_days(who: str, days: int | None) -> None:
    """`UsageError` unless it is so many days that engagements may be kept: `TTL_DAYS`."""
    least, greatest = TTL_DAYS
    if days is None or not least <= days <= greatest:
        raise UsageError(f"{who} keeps {days} days.", remedy=f"Keep {least} to {greatest} days.")


def cut_off(requests: Iterable[RetentionRequest]) -> datetime | None:
    """What engaged before this is older than one of the requests of an org keeps it. None if none of them says."""
    kept = ((r.requested_at, r.ttl_days) for r in requests if r.op == "ttl")
    return max((at - timedelta(days=days) for at, days in kept if days is not None), default=None)


def erased(requests: Iterable[RetentionRequest], applied: Iterable[MutationRequest]) -> dict[str, datetime]:
    """Id → until when, inclusive, its engagements are erased: of each person, every id, in order of the ids.

    requests, applied: those of one org. Ids are one person's if applied conversions and merges connect them, in
    whichever direction and at whatever time: of an id that served two persons both are erased, rather than none.
    """
    people = linked(applied)
    until: dict[str, datetime] = {}
    for request in sorted((r for r in requests if r.op == "gdpr"), key=lambda r: r.requested_at):
        until |= dict.fromkeys(_all_ids(people, str(request.who_id)), request.requested_at)
    return dict(sorted(until.items()))


def persons(applied: Iterable[MutationRequest]) -> dict[str, str]:
    """Each id that applied requests name → the least id of the same person, as `erased` takes them for one."""
    people = nx.connected_components(linked(applied))
    return {identity: min(person) for person in people for identity in person}


def _all_ids(people: nx.Graph[str], who_id: str) -> set[str]:
    return set(nx.node_connected_component(people, who_id)) if who_id in people else {who_id}
