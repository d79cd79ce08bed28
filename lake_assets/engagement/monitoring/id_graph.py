"""The requests of an org as a directed graph of its ids: an edge for each request that moves rows, with its time.

Weakly connected components are independent of each other. Reads tables without Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import networkx as nx
import pyarrow as pa

from lake_assets.engagement.model.delta_log import is_table, open_table, read_rows
from lake_assets.engagement.model.table_schemas import MUTATION_REQUEST, SETTLED_REQUEST
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.requests.aliases import Alias, aliases
from lake_assets.engagement.requests.identity import MutationRequest, Op, in_order
from lake_assets.engagement.requests.related import connected_ids
from lake_assets.errors import UsageError

_COLUMNS = ("request_id", "op", "old_id", "new_id", "executed_at", "partition", "offset", "status")
APPLIED = "applied"


@dataclass(frozen=True)
class Move:
    """A request. status: only if it is `applied` has it moved rows. new_id: None for a delete."""

    request_id: str
    op: Op
    old_id: str
    new_id: str | None
    executed_at: datetime
    status: str


@dataclass(frozen=True)
class Component:
    """Ids that requests connect, directly or through others.

    Attributes:
        ids: All of them, sorted.
        requests: In order of replay.
        ends: Where rows of an id end, by the time at which they engaged: those after `after` (None: all) until `until`
            at `new_id` (None: deleted). Rows of other times keep their id.
        merges: Ids to which rows of several others move.
        cycles: Ids that lead to themselves again, together.
        longest_chain: Number of steps in the longest chain; the ids of a cycle count as one.
    """

    ids: tuple[str, ...]
    requests: tuple[Move, ...]
    ends: tuple[Alias, ...]
    merges: tuple[str, ...]
    cycles: tuple[tuple[str, ...], ...]
    longest_chain: int


@dataclass(frozen=True)
class ComponentSize:
    """A component by its size. id: the least of its ids."""

    id: str
    ids: int
    requests: int


def component(tables: LakeTables, org: str, who_id: str) -> Component:
    """Return the component of an id.

    Raises:
        UsageError: The lake has no such org, or no request of the org names the id.
    """
    requests = _requests(tables, org)
    links = [*zip(requests["old_id"].to_pylist(), _targets(requests), strict=True)]
    connected = connected_ids(links, [who_id])
    chosen = [place for place, (old_id, _) in enumerate(links) if old_id in connected]
    if not chosen:
        raise UsageError(
            f"No request of {org} names the id {who_id!r}.",
            remedy=f"`lake engagement graph {tables.lake.name} {org}` lists ids that are named.",
        )
    return describe([*_moves(requests.take(chosen))])


def components(tables: LakeTables, org: str) -> list[ComponentSize]:
    """Return the components of an org, the largest first.

    Raises:
        UsageError: The lake has no such org.
    """
    requests = _requests(tables, org)
    links = [*zip(requests["old_id"].to_pylist(), _targets(requests), strict=True)]
    root: dict[str, str] = {}
    for old_id, new_id in links:
        first, second = _root(root, old_id), _root(root, old_id if new_id is None else new_id)
        root[max(first, second)] = min(first, second)
    ids = Counter(_root(root, each) for each in [*root])
    counts = Counter(_root(root, old_id) for old_id, _ in links)
    found = [ComponentSize(least, ids[least], counts[least]) for least in ids]
    return sorted(found, key=lambda size: (-size.requests, -size.ids, size.id))


def describe(moves: list[tuple[MutationRequest, str]]) -> Component:
    """Return a component of requests, each with its status. Pure."""
    status = {request.request_id: status for request, status in moves}
    ordered = in_order([request for request, _ in moves])
    graph = digraph((request.old_id, request.target) for request in ordered)
    cycles = [sorted(ids) for ids in nx.strongly_connected_components(graph) if len(ids) > 1]
    cycles += [[each] for each in nx.nodes_with_selfloops(graph)]
    return Component(
        ids=tuple(sorted(graph)),
        requests=tuple(
            Move(each.request_id, each.op, each.old_id, each.target, each.executed_at, status[each.request_id])
            for each in ordered
        ),
        ends=tuple(aliases(each for each in ordered if status[each.request_id] == APPLIED)),
        merges=tuple(sorted(each for each, count in graph.in_degree() if count > 1)),
        cycles=tuple(sorted(map(tuple, cycles))),
        longest_chain=nx.dag_longest_path_length(nx.condensation(graph)),
    )


def digraph(links: Iterator[tuple[str, str | None]]) -> nx.DiGraph[str]:
    """Return the graph of links. A delete adds its id alone."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for old_id, new_id in links:
        graph.add_node(old_id)
        if new_id is not None:
            graph.add_edge(old_id, new_id)
    return graph


def _requests(tables: LakeTables, org: str) -> pa.Table:
    """Return the requests of an org, each once: the settled ones, and those of the log that are not."""
    tables.require_org(org)
    found = []
    for name in (SETTLED_REQUEST, MUTATION_REQUEST):
        if is_table(tables.location(name)):
            rows = read_rows(open_table(tables.location(name)), [*_COLUMNS, "batch_id"], [("org_id", "=", org)])
            found.append(rows.sort_by([("batch_id", "descending")]))
    table = pa.concat_tables(found)
    seen: set[str] = set()
    places = []
    named = zip(table["request_id"].to_pylist(), table["old_id"].to_pylist(), strict=True)
    for place, (request_id, old_id) in enumerate(named):
        if old_id is not None and request_id not in seen:
            seen.add(request_id)
            places.append(place)
    return table.take(pa.array(places, pa.int64()))


def _targets(requests: pa.Table) -> list[str | None]:
    ops, new_ids = requests["op"].to_pylist(), requests["new_id"].to_pylist()
    return [None if op == "delete" else new_id for op, new_id in zip(ops, new_ids, strict=True)]


def _moves(requests: pa.Table) -> Iterator[tuple[MutationRequest, str]]:
    for row in requests.select(_COLUMNS).to_pylist():
        status = row.pop("status")
        yield MutationRequest(**row), status


def _root(root: dict[str, str], each: str) -> str:
    """Return the root of an id, and shorten the way to it."""
    path = []
    while root.setdefault(each, each) != each:
        path.append(each)
        each = root[each]
    for passed in path:
        root[passed] = each
    return each
