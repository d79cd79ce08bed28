"""The requests of an org as a directed graph of its ids: an edge for each request that moves rows, with its time.

Each id column has a graph of its own. Weakly connected components are independent of each other. Reads tables without
Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime

import networkx as nx
import pyarrow as pa
import pyarrow.compute as pc

from lake_assets.engagement.delta_log import is_table, open_table, read_rows
from lake_assets.engagement.requests import PERSON, Alias, MutationRequest, Op, aliases, in_order
from lake_assets.engagement.tables import ERASED, MUTATION_REQUEST, SETTLED_REQUEST, LakeTables
from lake_assets.errors import UsageError

_COLUMNS = (
    "request_id",
    "op",
    "old_id",
    "new_id",
    "executed_at",
    "partition",
    "offset",
    "status",
    "engagement_date",
    "column",
)
APPLIED = "applied"


@dataclass(frozen=True)
class Move:
    """A request. status: only if it is `applied` has it moved rows. new_id: None for a delete.

    engagement_date: It moves rows of this day alone; None: of all days.
    """

    request_id: str
    op: Op
    old_id: str
    new_id: str | None
    executed_at: datetime
    status: str
    engagement_date: date | None


@dataclass(frozen=True)
class Component:
    """Ids that requests connect, directly or through others.

    Attributes:
        ids: All of them, sorted.
        requests: In order of replay.
        ends: Where rows of an id end, by the time since which they are there.
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

    column: str
    id: str
    ids: int
    requests: int


def component(tables: LakeTables, org: str, identity: str, column: str | None = None) -> Component:
    """Return the component of an id.

    Args:
        column: The id column; None for the one in which requests name the id.

    Raises:
        UsageError: The lake has no such org, or no request of the org names the id, or requests of several columns do.
    """
    requests = _requests(tables, org)
    found = {}
    for name in [column] if column else dict.fromkeys(requests["column"].to_pylist()):
        of_column = requests.filter(pc.equal(requests["column"], name))
        old_ids = of_column["old_id"].to_pylist()
        graph = digraph(zip(old_ids, _targets(of_column), strict=True)).to_undirected()
        if identity in graph:
            connected = nx.node_connected_component(graph, identity)
            found[name] = of_column.take([place for place, old_id in enumerate(old_ids) if old_id in connected])
    if not found:
        raise UsageError(
            f"No request of {org} names the id {identity!r}.",
            remedy=f"`lake engagement graph {tables.lake.name} {org}` lists ids that are named.",
        )
    if len(found) > 1:
        names = " and ".join(sorted(found))
        raise UsageError(
            f"Requests of {org} name the id {identity!r} in {names}.", remedy="Name one of them: `--column COLUMN`."
        )
    (moves,) = found.values()
    return describe([*_moves(moves)])


def components(tables: LakeTables, org: str, column: str | None = None) -> list[ComponentSize]:
    """Return the components of an org, the largest first.

    Args:
        column: The id column; None for all.

    Raises:
        UsageError: The lake has no such org.
    """
    requests = _requests(tables, org)
    graph: nx.Graph[tuple[str, str]] = nx.Graph()
    counts: Counter[tuple[str, str]] = Counter()
    columns = requests["column"].to_pylist()
    for name, old_id, new_id in zip(columns, requests["old_id"].to_pylist(), _targets(requests), strict=True):
        if column in (None, name):
            graph.add_edge((name, old_id), (name, old_id if new_id is None else new_id))
            counts[name, old_id] += 1
    found = []
    for nodes in nx.connected_components(graph):
        name, least = min(nodes)
        found.append(ComponentSize(name, least, len(nodes), sum(counts[node] for node in nodes)))
    return sorted(found, key=lambda size: (-size.requests, -size.ids, size.column, size.id))


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
            Move(
                each.request_id,
                each.op,
                each.old_id,
                each.target,
                each.executed_at,
                status[each.request_id],
                each.engagement_date,
            )
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
    """Return the requests of an org, each once; of a lake of an earlier version, those of both of its tables."""
    tables.require_org(org)
    found = []
    for name in (SETTLED_REQUEST, MUTATION_REQUEST):
        if is_table(tables.location(name)):
            opened = open_table(tables.location(name))
            known = {column.name for column in opened.schema().fields}
            stored = [column for column in (*_COLUMNS, "batch_id") if column in known]
            rows = read_rows(opened, stored, [("org_id", "=", org), ("status", "!=", ERASED)])
            for column, kind in (("column", pa.string()), ("engagement_date", pa.date32())):
                if column not in known:  # of an earlier version
                    rows = rows.append_column(column, pa.nulls(rows.num_rows, kind))
            rows = rows.select([*_COLUMNS, "batch_id"]).sort_by([("batch_id", "descending")])
            place = rows.schema.get_field_index("column")
            found.append(rows.set_column(place, "column", pc.fill_null(rows["column"].cast(pa.string()), PERSON)))
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
        status = APPLIED if row["status"] == "met" else row["status"]
        del row["status"]
        yield MutationRequest(**row), status
