"""Which tables a query reads, and which source columns each of its columns comes from, by sqlglot. Needs no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.lineage import Node, lineage
from sqlglot.optimizer.scope import traverse_scope

from lake_assets.base.sql_text import DIALECT
from lake_assets.incremental.sql.query import RESERVED


@dataclass(frozen=True)
class Lineage:
    """Where the columns of a query come from.

    Attributes:
        sources: Column → the source columns that it comes from, `raw.payments.amount`; none for a constant.
        unknown: The columns of which this cannot be told.
    """

    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


def tables_read(query: str) -> tuple[str, ...] | None:
    """Return the tables that a query reads, in lower case, in alphabetical order; None if sqlglot cannot tell."""
    found: set[str] = set()
    try:
        for scope in traverse_scope(sqlglot.parse_one(query, dialect=DIALECT)):
            for source in scope.sources.values():
                if isinstance(source, exp.Table) and source.name:
                    found.add(".".join(part.name for part in source.parts).lower())
    except (SqlglotError, RecursionError, AttributeError):
        return None
    return tuple(sorted(found))


def unknown_column(query: str, tables: Mapping[str, Iterable[str]]) -> str | None:
    """Return the first column that a query names, and that neither it nor a table has; None if sqlglot sees none.

    Args:
        query: The query.
        tables: Name in the query → its columns, for every table that the query may read.
    """
    try:
        parsed = sqlglot.parse_one(query, dialect=DIALECT)
    except (SqlglotError, RecursionError):
        return None
    used = list(parsed.find_all(exp.Column, bfs=False))
    named = {each.alias_or_name.casefold() for each in parsed.find_all(exp.Table, exp.Subquery, exp.CTE)}
    known = {name.casefold() for columns in tables.values() for name in columns}
    # Whatever the query names itself: aliases, columns of common table expressions, parameters of lambdas.
    own = (each for each in parsed.find_all(exp.Identifier) if not isinstance(each.parent, exp.Column))
    known |= {each.name.casefold() for each in own}
    for column in used:
        is_field = column.table and column.table.casefold() not in named
        if not is_field and not column.find(exp.Star) and column.name.casefold() not in known:
            return ".".join(part.name for part in column.parts)
    return None


_COMBINING: Mapping[type[exp.Expr], str] = {
    exp.Group: "GROUP BY",
    exp.Distinct: "DISTINCT",
    exp.Window: "OVER",
    exp.Limit: "LIMIT",
    exp.AggFunc: "",
}
"""Part of a query whose result depends on several rows → its name; of a function, its own."""


def combines_rows(query: str) -> tuple[str, ...]:
    """Return what a query combines rows by, in alphabetical order; none if sqlglot cannot tell."""
    try:
        found = list(sqlglot.parse_one(query, dialect=DIALECT).find_all(*_COMBINING))
    except (SqlglotError, RecursionError):
        return ()
    named = {name for node in found for kind, name in _COMBINING.items() if name and isinstance(node, kind)}
    functions = {f"{node.sql_name().lower()}()" for node in found if isinstance(node, exp.AggFunc)}
    return tuple(sorted(named or functions))


def column_lineage(
    query: str,
    columns: Sequence[str],
    tables: Mapping[str, str],
    schemas: Mapping[str, Iterable[str]],
) -> Lineage:
    """Return where the columns of a query come from.

    Args:
        query: The query.
        columns: Its columns.
        tables: Name in the query → source table.
        schemas: Name in the query → its columns, for every table that the query may read.
    """
    schema = {name: dict.fromkeys(of_table, "unknown") for name, of_table in schemas.items()}
    sources: dict[str, tuple[str, ...]] = {}
    unknown = []
    for column in columns:
        found = _sources_of(column, query, schema, tables)
        if found is None:
            unknown.append(column)
            sources[column] = ()
        else:
            sources[column] = found
    return Lineage(sources, tuple(unknown))


def _sources_of(
    column: str, query: str, schema: dict[str, dict[str, str]], tables: Mapping[str, str]
) -> tuple[str, ...] | None:
    try:
        root = lineage(column, query, schema=schema, dialect=DIALECT)
    except (SqlglotError, ValueError, KeyError, RecursionError, AttributeError):
        return None
    found: set[str] = set()
    for node in root.walk():
        if node.downstream:
            continue
        source = _source_column(node, schema, tables)
        if source is None:
            return None
        found.update(source)
    return tuple(sorted(found))


def _reads_columns(expression: exp.Expr) -> bool:
    """Return whether an expression names a column, or has a star that stands for columns: that of count(*) does not."""
    if expression.find(exp.Column) is not None:
        return True
    return any(not isinstance(star.parent, exp.Count) for star in expression.find_all(exp.Star))


def _source_column(
    leaf: Node, schema: Mapping[str, Mapping[str, str]], tables: Mapping[str, str]
) -> tuple[str, ...] | None:
    """Return the source column of a leaf; none for a constant, `previous` and the hours; None if it cannot be told."""
    if not isinstance(leaf.expression, exp.Table):
        return None if _reads_columns(leaf.expression) else ()
    table = leaf.expression.name.lower()
    column = leaf.name.rpartition(".")[2].strip('`"')
    if column not in schema.get(table, {}):
        return None
    if table in RESERVED:
        return ()
    return (f"{tables[table]}.{column}",)
