"""Requests to convert, merge and delete ids, and the order in which they are replayed.

Replay defines the right result: the requests in order of (executed_at, Kafka partition, offset), each acting on every
row whose current id is its old_id. Following edges to their end gives other results, because it ignores time: after 2→3
and then 1→2, the rows of 1 stay at 2. So requests are processed backwards: when a request is reached, the effect of all
later requests is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Literal, get_args

from lake_assets.errors import UsageError

if TYPE_CHECKING:
    import networkx as nx

Op = Literal["convert", "merge", "delete"]
OPS: tuple[Op, ...] = get_args(Op)

PERSON = "who_id"
"""The column with the id of a person. Requests of earlier versions all name it, and erasures follow it alone."""


@dataclass(frozen=True, slots=True)
class DatedEnds:
    """Where rows of one id end, if the day on which they engaged decides. days: those that differ from the others."""

    others: str | None
    days: Mapping[date, str | None]


End = str | DatedEnds | None
"""Where rows of one id end; None if they are deleted."""

FinalIds = dict[str, End]
"""Id → where its rows end. Ids that keep their rows are absent."""


@dataclass(frozen=True, slots=True)
class Record:
    """An engagement that a request carries. It replaces the row of its engagement_id, or is inserted, under its ids.

    Attributes:
        day: UTC day on which it engaged; None if only requests without a date act on it.
        ids: Further id column → its id.
    """

    engagement_id: str
    who_id: str
    day: date | None = None
    ids: Mapping[str, str | None] = field(default_factory=dict)

    def id_of(self, column: str) -> str | None:
        return self.who_id if column == PERSON else self.ids.get(column)


@dataclass(frozen=True, slots=True)
class MutationRequest:
    """A request to move all rows of old_id to new_id (convert, merge), or to delete them.

    Attributes:
        new_id: Has no meaning for a delete.
        executed_at: When the sender executed the operation.
        partition: Kafka partition of the message.
        offset: Kafka offset of the message.
        record: Put in place after the rows have moved, so this request does not move it.
        engagement_date: UTC day; the request acts on rows of that day alone. None: on all.
        column: The id column that it names.

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
    engagement_date: date | None = None
    column: str = PERSON

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


def prepend(request: MutationRequest, final_ids: FinalIds) -> End:
    """Add a request to the map of all later requests of its column, and return where rows of its old_id end then."""
    target, day = request.target, request.engagement_date
    final = None if target is None else final_ids.get(target, target)
    if day is not None:
        later = final_ids.get(request.old_id, request.old_id)
        days = later.days if isinstance(later, DatedEnds) else {}
        final = DatedEnds(of_day(later, None), {**days, day: of_day(final, day)})
    final_ids[request.old_id] = final
    return final


def of_day(end: End, day: date | None) -> str | None:
    """Return where rows of a day end; None for a day that no request names."""
    if not isinstance(end, DatedEnds):
        return end
    return end.others if day is None else end.days.get(day, end.others)


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
