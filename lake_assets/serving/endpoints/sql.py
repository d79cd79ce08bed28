"""What a query may ask: one SELECT over served tables. Everything else is refused before anything is read.

DuckDB tells how it understands the query (`json_serialize_sql`, for SELECT alone); its tables and table functions are
looked at there. The connection that runs it is closed to files and settings besides: see `query`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import duckdb

from lake_assets.serving.errors import QueryRefused

TABLE_FUNCTIONS = frozenset({"range", "generate_series", "unnest"})
"""Those that read nothing."""

REFUSED_FUNCTIONS = frozenset({"current_setting", "getvariable"})
"""Those that tell how the server is configured."""


def tables_of(sql: str) -> frozenset[str]:
    """The served tables that a query names, whether or not there are such. `QueryRefused`."""
    nodes = list(_nodes(_parsed(sql)))
    common = {key for node in nodes for key in _common_tables(node)}
    if hidden := common & _system_views():
        raise _refused(f"{min(hidden)} is a name of DuckDB's own")
    for node in nodes:
        _check_function(node)
    names = {_table_name(node) for node in nodes if node.get("type") == "BASE_TABLE"}
    return frozenset(names - common)


def _parsed(sql: str) -> dict[str, Any]:
    with _parser().cursor() as connection:
        found = connection.execute("select json_serialize_sql(?::varchar)", [sql]).fetchone()
    try:
        record: dict[str, Any] = json.loads(found[0]) if found else {}
    except RecursionError:
        raise _refused("it is nested too deeply") from None
    if record.get("error"):
        unknown = record["error_type"] == "not implemented"
        raise _refused("it is no SELECT" if unknown else str(record["error_message"]))
    if len(record.get("statements", [])) != 1:
        raise _refused("it is not one statement")
    return record


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every object of a tree, in no order that counts."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            yield found
            waiting.extend(found.values())
        elif isinstance(found, list):
            waiting.extend(found)


def _common_tables(node: dict[str, Any]) -> list[str]:
    """The names that a node gives to queries of its own (WITH)."""
    return [entry["key"].lower() for entry in (node.get("cte_map") or {}).get("map", [])]


def _table_name(node: dict[str, Any]) -> str:
    path = node["qualified_name"]["path"]
    if len(path) != 1:
        raise _refused(f"{'.'.join(path)} is no served table")
    return str(path[0]).lower()


def _check_function(node: dict[str, Any]) -> None:
    name = str(node.get("function_name", "")).lower()
    if name in REFUSED_FUNCTIONS:
        raise _refused(f"{name} may not be asked")
    if node.get("type") == "TABLE_FUNCTION":
        called = str(node["function"]["function_name"])
        if called not in TABLE_FUNCTIONS:
            raise _refused(f"{called} may not be asked")
    if node.get("type") == "SHOW_REF" and node.get("query") is None:
        raise _refused("it asks for something else than rows of served tables")


@lru_cache(maxsize=1)
def _parser() -> duckdb.DuckDBPyConnection:
    """One for the process: to make one takes longer than to parse."""
    return duckdb.connect()


@lru_cache(maxsize=1)
def _system_views() -> frozenset[str]:
    """What DuckDB would find under a plain name, were it not for a query that takes the name."""
    with _parser().cursor() as connection:
        found = connection.execute("select view_name from duckdb_views() where internal").fetchall()
    return frozenset(row[0] for row in found)


def _refused(why: str) -> QueryRefused:
    return QueryRefused(f"The query is refused: {why}.", remedy="Ask one SELECT over served tables.")
