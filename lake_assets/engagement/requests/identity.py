"""Requests to convert, merge and delete ids, and the order in which they are replayed.

Replay defines the right result: the requests in order of (executed_at, Kafka partition, offset), each acting on every
row whose current id is its old_id. Following edges to their end gives other results, because it ignores time: after 2→3
and then 1→2, the rows of 1 stay at 2. So requests are processed backwards: when a request is reached, the effect of all
later requests is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, get_args

from lake_assets.errors import UsageError

if TYPE_CHECKING:
    import networkx as nx

Op = Literal["convert", "merge", "delete"]
OPS: tuple[Op, ...] = get_args(Op)

FinalIds = dict[str, str | None]
"""Id → the id that its rows end under; None if they are deleted. Ids that keep their rows are absent."""


@dataclass(frozen=True, slots=True)
class Record:
    """An engagement that a request carries. It replaces the row of its engagement_id, or is inserted, under who_id."""

    engagement_id: str
    who_id: str


@dataclass(frozen=True, slots=True)
class MutationRequest:
    """A request to move all rows of old_id to new_id (convert, merge), or to delete them.

    Attributes:
        new_id: Has no meaning for a delete.
        executed_at: When the sender executed the operation.
        partition: Kafka partition of the message.
        offset: Kafka offset of the message.
        record: Put in place after the rows have moved, so this request does not move it.

    Raises:
        UsageError: The op is unknown, or a convert or merge has no new_id.
    """

    request_id: str
    op: Op
    old_id: str
    new_id: str | None
    executed_at: datetime
    partition: int
    offset: int
    record: Record | None = None

    def __post_init__(self) -> None:
        if self.op not in OPS:
            raise UsageError(f"Request {self.request_id} asks for {self.op!r}.", remedy=f"Ask for one of {OPS}.")
        if self.op != "delete" and self.new_id is None:
            raise UsageError(f"Request {self.request_id}, a {self.op}, has no new_id.", remedy="Name the new_id.")

    @property
    def target(self) -> str | None:
        """The id under which the request leaves the rows of old_id; None if it deletes them."""
        return None if self.op == "delete" else self.new_id


def in_order(requests: Iterable[MutationRequest]) -> list[MutationRequest]:
    """Return the requests in the order of replay, each request id once."""
    first: dict[str, MutationRequest] = {}
    for request in sorted(requests, key=_position):
        first.setdefault(request.request_id, request)
    return list(first.values())


def id_graph(requests: Iterable[MutationRequest]) -> nx.Graph[str]:
    """Return the graph of the ids that requests name. An edge joins two ids between which rows move."""
    import networkx as nx  # a fifth of a second, and few commands draw a graph

    graph: nx.Graph[str] = nx.Graph()
    for request in requests:
        graph.add_node(request.old_id)
        if request.target is not None:
            graph.add_edge(request.old_id, request.target)
    return graph


def prepend(request: MutationRequest, final_ids: FinalIds) -> str | None:
    """Add a request to the map of all later requests, and return the final id of the rows that it moves."""
    target = request.target
    final = None if target is None else final_ids.get(target, target)
    final_ids[request.old_id] = final
    return final


def _position(request: MutationRequest) -> tuple[datetime, int, int, str, str, str, str]:
    """Return the sort key of replay. The parts after the offset matter only if two requests have the same offset."""
    return (
        request.executed_at,
        request.partition,
        request.offset,
        request.request_id,
        request.op,
        request.old_id,
        request.new_id or "",
    )
