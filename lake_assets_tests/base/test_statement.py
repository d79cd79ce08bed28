"""What a query is, by its tokens alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lake_assets.base.sql_text import column_line, find_mistake, without_semicolon

MISTAKES = {
    "-- why\nDELETE FROM p": (2, "the query is no SELECT: it begins with 'DELETE'"),
    "SHOW TABLES": (1, "the query is no SELECT: it begins with 'SHOW'"),
    "SELECT 1;\nSELECT 2": (1, "the query has more than one statement"),
    "WITH a AS (SELECT 1)\nSELECT\nFROM a": (2, "the query selects no column"),
}
RIGHT = (
    "SELECT 1",
    "-- DELETE\nWITH a AS (SELECT ';' AS x) SELECT x FROM a",
    "(SELECT 1) UNION ALL (SELECT 2)",
    "FROM p |> SELECT amount",
    "VALUES (1)",
    "-- only a comment",
)


@pytest.mark.parametrize("query", MISTAKES)
def test_a_query_is_one_select_with_columns(query: str) -> None:
    line, problem = MISTAKES[query]
    found = find_mistake(query)
    assert found is not None
    assert (found[0], found[1].problem) == (line, problem)


@pytest.mark.parametrize("query", RIGHT)
def test_what_may_be_a_query_is_left_to_spark(query: str) -> None:
    assert find_mistake(query) is None


def test_a_semicolon_at_the_end_is_left_out_and_no_other() -> None:
    assert without_semicolon("SELECT 1 ;\n") == "SELECT 1"
    assert without_semicolon("SELECT 1; -- the end;\n/* ; */\n") == "SELECT 1"
    assert without_semicolon("SELECT ';' -- a;") == "SELECT ';' -- a"
    assert without_semicolon("SELECT 1; SELECT 2;") == "SELECT 1; SELECT 2"


def test_the_line_in_which_a_column_is_selected() -> None:
    query = "WITH a AS (\n SELECT x, y FROM p)\nSELECT\n x,\n f(\n y) AS `Y`,\n 1 AS z -- x\nFROM a\nWHERE x = y"
    assert [column_line(query, name) for name in ("x", "y", "z", "unknown")] == [4, 6, 7, 1]


def test_definitions_load_without_sqlglot() -> None:
    """It takes most of a second to import, which every code server and run would wait for."""
    code = "import sys; from lake_assets.incremental.sql import folder, query; assert 'sqlglot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
