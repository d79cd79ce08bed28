"""What a retention request removes: engagements older than an org keeps them, and a person under all of their ids.

Cut-offs come from the time of the request, not from a clock. So a request removes the same rows whenever it is applied.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, get_args

from lake_assets.engagement.requests.identity import MutationRequest, id_graph
from lake_assets.errors import UsageError

if TYPE_CHECKING:
    import networkx as nx

RetentionOp = Literal["ttl", "gdpr"]
RETENTION_OPS: tuple[RetentionOp, ...] = get_args(RetentionOp)
TTL_DAYS = (1, 36_500)
"""Minimum and maximum number of days that an org may keep engagements, so that every cut-off is a valid date."""


@dataclass(frozen=True, slots=True)
class RetentionRequest:
    """A request of an org to keep engagements for ttl_days (ttl), or to erase the person with who_id (gdpr).

    Attributes:
        requested_at: When the sender made the request.

    Raises:
        UsageError: The op is unknown, or its value is missing or out of range.
    """

    request_id: str
    op: RetentionOp
    ttl_days: int | None
    who_id: str | None
    requested_at: datetime

    def __post_init__(self) -> None:
        if self.op not in RETENTION_OPS:
            raise UsageError(
                f"Request {self.request_id} asks for {self.op!r}.",
                remedy=f"Ask for one of {RETENTION_OPS}.",
            )
        if self.op == "ttl":
            check_ttl_days(f"Request {self.request_id}", self.ttl_days)
        if self.op == "gdpr" and self.who_id is None:
            raise UsageError(f"Request {self.request_id}, a gdpr, has no who_id.", remedy="Name the who_id.")


def check_ttl_days(who: str, days: int | None) -> None:
    """Check that a number of days is within `TTL_DAYS`.

    Args:
        who: Subject of the error message.

    Raises:
        UsageError: It is None or out of range.
    """
    minimum, maximum = TTL_DAYS
    if days is None or not minimum <= days <= maximum:
        raise UsageError(f"{who} keeps {days} days.", remedy=f"Keep {minimum} to {maximum} days.")


def cut_off(requests: Iterable[RetentionRequest]) -> datetime | None:
    """Return the time, exclusive, before which engagements of an org are deleted; None without a ttl request."""
    latest: datetime | None = None
    for request in requests:
        if request.op == "ttl" and request.ttl_days is not None:
            oldest_kept = request.requested_at - timedelta(days=request.ttl_days)
            latest = oldest_kept if latest is None else max(latest, oldest_kept)
    return latest


def erased_ids(requests: Iterable[RetentionRequest], links: Iterable[MutationRequest]) -> dict[str, datetime]:
    """Return every id of the erased persons of one org.

    Ids belong to one person if conversions and merges connect them, in either direction and at any time. Requests that
    are pending count: rows of their old id may arrive later. If an id served two persons, both are erased.

    Args:
        requests: Retention requests of the org.
        links: Mutation requests of the org.

    Returns:
        Id → time until which its engagements are erased, inclusive; sorted by id.
    """
    graph = id_graph(links)
    erasures = [request for request in requests if request.op == "gdpr"]
    erased_until: dict[str, datetime] = {}
    for request in sorted(erasures, key=lambda erasure: erasure.requested_at):
        for identity in _ids_of_person(graph, str(request.who_id)):
            erased_until[identity] = request.requested_at
    return dict(sorted(erased_until.items()))


def least_id_of_person(links: Iterable[MutationRequest]) -> dict[str, str]:
    """Return each id that requests name → the least id of the same person, as `erased_ids` connects them."""
    import networkx as nx

    least: dict[str, str] = {}
    for ids in nx.connected_components(id_graph(links)):
        least.update(dict.fromkeys(ids, min(ids)))
    return least


def _ids_of_person(graph: nx.Graph[str], who_id: str) -> set[str]:
    import networkx as nx

    if who_id not in graph:
        return {who_id}
    return set(nx.node_connected_component(graph, who_id))
