"""The function of a table that is declared in SQL: it runs a query over DataFrames that the query names as tables.

No view is registered, so none is left in the session.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from lake_assets.base.columns import quoted
from lake_assets.base.described import Refusal, explain, find_refusal
from lake_assets.base.hours import ranges
from lake_assets.base.sql_text import names_in_sql, nested, with_placeholders
from lake_assets.errors import ErrorText, function_failed
from lake_assets.incremental.sql.files import SqlText, TableAttributes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.incremental.declaration import SessionContext

PREVIOUS = "previous"
"""The name of a sequential table's own rows of the hour or day before the session's first one."""

SESSION_HOURS = "session_hours"
"""The name of the hours that the session builds: one column `hour`, the start of each hour."""

RESERVED = (PREVIOUS, SESSION_HOURS)

LINES_BEFORE = 1
"""Lines of the text that Spark receives before the first line of the query."""

SYNTAX_ERROR = "PARSE_SYNTAX_ERROR"
"""Spark's name of it."""

_LINE = re.compile(r"\(?line (\d+)(?:, pos|\))?")


def run_query(spark: SparkSession, sql: SqlText, tables: Mapping[str, DataFrame], hours: Sequence[int]) -> DataFrame:
    """Return the rows of a query, which Spark has analysed.

    Args:
        spark: The session of the DataFrames.
        sql: The query.
        tables: Name in the query → its rows.
        hours: What `session_hours` contains; numbers of `base.hours`.
    """
    placed = {f"rows_{number}": rows for number, rows in enumerate(tables.values())}
    rows = spark.sql(query_text(sql.text, tuple(tables), hours), None, **placed)
    rows.schema  # noqa: B018 - a Connect client sends a query for analysis when its columns are asked for
    return rows


def query_text(query: str, tables: Sequence[str], hours: Sequence[int]) -> str:
    """Return the query with each table, and `session_hours`, as a common table expression in front.

    Pure. Spark replaces `{rows_0}` by the DataFrame of the first table; braces of the query stay as they are. Tables
    that the query defines itself, by WITH, hide these.
    """
    parts = [f"{quoted(name)} AS (SELECT * FROM {{rows_{number}}})" for number, name in enumerate(tables)]
    parts.append(f"{SESSION_HOURS} AS ({_hours_text(hours)})")
    return f"WITH {', '.join(parts)} SELECT * FROM {nested(with_placeholders(query, ()))}"


def explain_refusal(sql: SqlText, error: Exception) -> tuple[str, ErrorText] | None:
    """Return `file:line` in the query and what Spark refuses there; None if the error is none of Spark's."""
    refusal = find_refusal(error)
    if refusal is None:
        return None
    line, last = _line_of(sql, refusal), len(sql.text.splitlines())
    if line > last and refusal.condition == SYNTAX_ERROR:
        return sql.place(last), _wrong_end(refusal)
    found = explain(Refusal(refusal.condition, refusal.message, refusal.parameters))
    return sql.place(min(line, last)), found


def place_in_query(sql: SqlText, refusal: Refusal) -> str | None:
    """Return `file:line` in the query of an expression that failed on a row; None if it is in another SQL text.

    Conditions of rules and queries of audits are SQL texts, too, so the line must have the text that Spark reports.
    """
    named = _LINE.match(refusal.sql or "")
    lines = dict(enumerate(sql.text.splitlines(), start=1))
    line = int(named[1]) - LINES_BEFORE if named else 0
    if refusal.sql is None or line not in lines:
        return None
    text = refusal.sql.partition(": ")[2]
    parts = [part.strip() for part in re.split(r"…|\.\.\.", text)]
    return sql.place(line) if max(parts, key=len) in lines[line] else None


def _wrong_end(refusal: Refusal) -> ErrorText:
    """Return what is wrong if Spark stumbles over the text that follows the query, which begins with `)`."""
    if "extra input" in refusal.parameters.get("hint", ""):
        return ErrorText("the query closes a bracket that it has not opened", "Remove one ')'.")
    return ErrorText("the query ends where more must follow", "Complete it: an expression, or a closing bracket.")


def _line_of(sql: SqlText, refusal: Refusal) -> int:
    """Return the line of the query that Spark names, or the first one with an expression that Spark names."""
    for text in (refusal.sql or "", refusal.message):
        found = _LINE.search(text)
        if found:
            return max(1, int(found[1]) - LINES_BEFORE)
    for value in refusal.parameters.values():
        for number, line in enumerate(sql.text.splitlines(), start=1):
            if value.strip('"`') in line:
                return number
    return 1


def _hours_text(hours: Sequence[int]) -> str:
    # One list, however many runs there are: a chain of UNION ALL nests as deep as it is long.
    runs = ", ".join(f"sequence({first}L, {last}L)" for first, last in ranges(hours))
    numbers = f"flatten(array({runs}))" if runs else "CAST(array() AS ARRAY<BIGINT>)"
    return f"SELECT timestamp_seconds(number * 3600) AS hour FROM (SELECT explode({numbers}) AS number)"


class SqlTransform:
    """Runs a query with the sources as tables, and `previous` and `session_hours`.

    Attributes:
        defined_at: `file:line` of the query, for messages.
    """

    def __init__(self, attributes: TableAttributes, sql: SqlText, columns: Sequence[str]) -> None:
        self.__name__ = attributes.name
        self.__doc__ = attributes.description
        self.defined_at = sql.place()
        self._sql = sql
        self._table = attributes.table
        self._names = [source.sql_name for source in attributes.sources]
        self._time_column = attributes.time_column
        self._columns = list(columns)

    def __call__(self, session: SessionContext, *inputs: DataFrame) -> DataFrame:
        """Return the rows of the query.

        Raises:
            LakeError: Spark refuses the query.
        """
        tables = dict(zip(self._names, inputs, strict=True))
        if session.published is not None:
            tables[PREVIOUS] = self._previous(session, session.published)
        try:
            return run_query(inputs[0].sparkSession, self._sql, tables, session.hours)
        except Exception as error:
            found = explain_refusal(self._sql, error)
            if found is None:
                raise
            place, text = found
            raise function_failed(self._table, self.__name__, place, text) from error

    def reads(self, column: str) -> bool:
        """Return whether the query may read a column of this name, of any source."""
        return self._named is None or column.casefold() in self._named

    @cached_property
    def _named(self) -> frozenset[str] | None:
        return names_in_sql(self._sql.text)

    def place_in_query(self, refusal: Refusal) -> str | None:
        """Return `file:line` of an expression that failed on a row; None if it is not in the query."""
        return place_in_query(self._sql, refusal)

    def _previous(self, session: SessionContext, published: DataFrame) -> DataFrame:
        from lake_assets.base.time_filters import within

        first = session.hours[0]
        before = range(session.grain.first(first - 1), first)
        return within(published.select(*self._columns), self._time_column, before)
