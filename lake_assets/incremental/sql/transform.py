"""The function of a table that is declared in SQL: it runs the query over the rows of a session."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from lake_assets.base.sql_text import names_in_sql
from lake_assets.errors import FunctionFailed
from lake_assets.incremental.sql.attributes import TableAttributes
from lake_assets.incremental.sql.files import SqlText
from lake_assets.incremental.sql.query import PREVIOUS, explain_refusal, place_in_query, run_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lake_assets.errors.refusals import Refusal
    from lake_assets.incremental.declaration import SessionContext


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
            FunctionFailed: Spark refuses the query.
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
            raise FunctionFailed(self._table, self.__name__, place, text) from error

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
