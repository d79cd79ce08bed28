"""Which queries are allowed: one SELECT over served tables. All others are refused before anything is read.

DuckDB's own parse tree of the query (`json_serialize_sql`, which accepts only SELECT) is searched for tables and table
functions. In addition, the process that runs the query cannot read other files or settings: see `query_worker`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import duckdb

from lake_assets.serving.errors import QueryRefused
from lake_assets.settings import SERVED_TABLE

ALLOWED_TABLE_FUNCTIONS = frozenset({"range", "generate_series", "unnest"})
"""They read nothing."""

REFUSED_FUNCTIONS = frozenset({"current_setting", "getvariable"})
"""They return settings of the server."""


def tables_of(sql: str) -> frozenset[str]:
    """Return the tables that a query names, in lower case, whether or not they are served.

    Raises:
        QueryRefused: The query is not allowed, or cannot be parsed.
    """
    nodes = list(_nodes(_parsed(sql)))
    common: set[str] = set()
    for node in nodes:
        common.update(_common_tables(node))
    hidden = common & _system_views()
    if hidden:
        raise _refused(f"{min(hidden)} is a name of DuckDB's own")
    for node in nodes:
        _check_function(node)
    paths = {_table_path(node) for node in nodes if node.get("type") == "BASE_TABLE"}
    return frozenset(".".join(path) for path in paths if len(path) > 1 or path[0] not in common)


def _parsed(sql: str) -> dict[str, Any]:
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        raise _refused(f"its character {error.start + 1} is half of a pair (U+{ord(sql[error.start]):04X})") from None
    with _parser().cursor() as connection:
        found = connection.execute("select json_serialize_sql(?::varchar)", [sql]).fetchone()
    try:
        record: dict[str, Any] = json.loads(found[0]) if found else {}
    except RecursionError:
        raise _refused("it is nested too deeply") from None
    if record.get("error"):
        is_other_statement = record["error_type"] == "not implemented"
        raise _refused("it is not a SELECT" if is_other_statement else str(record["error_message"]))
    if len(record.get("statements", [])) != 1:
        raise _refused("it is not one statement")
    return record


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a tree, in any order."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            yield found
            waiting.extend(found.values())
        elif isinstance(found, list):
            waiting.extend(found)


def _common_tables(node: dict[str, Any]) -> list[str]:
    """The names of common table expressions (WITH)."""
    expressions = node.get("cte_map") or {}
    return [entry["key"].lower() for entry in expressions.get("map", [])]


def _table_path(node: dict[str, Any]) -> tuple[str, ...]:
    """The name of a table, such as orders or sales.orders, in lower case."""
    path = tuple(str(part).lower() for part in node["qualified_name"]["path"])
    if not SERVED_TABLE.fullmatch(".".join(path)):
        raise _refused(f"{'.'.join(path)} is not a served table")
    return path


def _check_function(node: dict[str, Any]) -> None:
    name = str(node.get("function_name", "")).lower()
    if name in REFUSED_FUNCTIONS:
        raise _refused(f"the function {name} is not allowed")
    if node.get("type") == "TABLE_FUNCTION":
        called = str(node["function"]["function_name"])
        if called not in ALLOWED_TABLE_FUNCTIONS:
            raise _refused(f"the table function {called} is not allowed")
    if node.get("type") == "SHOW_REF" and node.get("query") is None:
        raise _refused("it selects something else than rows of served tables")


@lru_cache(maxsize=1)
def _parser() -> duckdb.DuckDBPyConnection:
    """One per process: creating one takes longer than parsing a query."""
    return duckdb.connect()


@lru_cache(maxsize=1)
def _system_views() -> frozenset[str]:
    """DuckDB's own views, which a query could read under a plain name if a common table expression hid the name."""
    with _parser().cursor() as connection:
        found = connection.execute("select view_name from duckdb_views() where internal").fetchall()
    return frozenset(row[0] for row in found)


def _refused(why: str) -> QueryRefused:
    return QueryRefused(f"The query is refused: {why}.", remedy="Write one SELECT over served tables.")
