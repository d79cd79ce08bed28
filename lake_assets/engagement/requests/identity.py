"""What becomes of the ids of an org when conversions, merges and deletions are replayed: one map, not a sequence.

The truth is replay: the requests in order of (executed_at, Kafka partition, offset), each acting on every row whose
current id is its old_id. Following the edges to their end is not that: it forgets time. After 2→3 and then 1→2, the
rows of 1 stay at 2. So requests are walked backwards: whatever follows a request is known when it is reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

import networkx as nx

from lake_assets.errors import UsageError

Op = Literal["convert", "merge", "delete"]
OPS: tuple[Op, ...] = get_args(Op)

Final = dict[str, str | None]
"""Id → the id that its rows end under, or None if they go. Ids that keep their rows are not in it."""


@dataclass(frozen=True, slots=True)
class Record:
    """An engagement that a request carries: it replaces the row of its engagement_id, or is inserted, under who_id."""

    engagement_id: str
    who_id: str


@dataclass(frozen=True, slots=True)
class MutationRequest:
    """A request to move all rows of old_id to new_id (convert, merge), or to delete them; new_id then means nothing.

    executed_at: when its sender carried it out. partition, offset: where in Kafka it is. record: is put in place when
    the rows have moved, so this request does not move it. Raises `UsageError` for an op that is none, and for one that
    lacks the new_id it needs.
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
    def outcome(self) -> str | None:
        """The id that it leaves the rows of old_id under; None: it deletes them."""
        return None if self.op == "delete" else self.new_id


def collapse(requests: Iterable[MutationRequest]) -> Final:
    """The map that, applied once, leaves the same rows as replaying the requests of one org, in whatever order given.

    A request id counts once, where it is first. Of batches that do not overlap in time, collapsing one after the other
    is collapsing them together.
    """
    final: Final = {}
    for component in components(in_order(requests)):
        final.update(_final_states(component))
    return dict(sorted(final.items()))


def in_order(requests: Iterable[MutationRequest]) -> list[MutationRequest]:
    """The requests as replay takes them, each request id once."""
    first: dict[str, MutationRequest] = {}
    for request in sorted(requests, key=_position):
        first.setdefault(request.request_id, request)
    return list(first.values())


def components(ordered: Sequence[MutationRequest]) -> Iterator[list[MutationRequest]]:
    """The requests apart by the ids that they connect: no two components have an id in common. Order is kept."""
    number = {identity: i for i, ids in enumerate(nx.connected_components(linked(ordered))) for identity in ids}
    apart: dict[int, list[MutationRequest]] = {}
    for request in ordered:
        apart.setdefault(number[request.old_id], []).append(request)
    yield from apart.values()


def linked(requests: Iterable[MutationRequest]) -> nx.Graph[str]:
    """The ids that requests name, two of them joined where rows move from one to the other."""
    graph: nx.Graph[str] = nx.Graph()
    for request in requests:
        graph.add_node(request.old_id)
        if request.outcome is not None:
            graph.add_edge(request.old_id, request.outcome)
    return graph


def _final_states(ordered: Sequence[MutationRequest]) -> Final:
    final: Final = {}
    for request in reversed(ordered):
        outcome = request.outcome
        final[request.old_id] = None if outcome is None else final.get(outcome, outcome)
    return {identity: state for identity, state in final.items() if state != identity}


def _position(request: MutationRequest) -> tuple[datetime, int, int, str, str, str, str]:
    """Where it stands in replay. What follows the offset matters only if two requests claim the same one."""
    at = (request.executed_at, request.partition, request.offset)
    return (*at, request.request_id, request.op, request.old_id, request.new_id or "")
