"""Asking Spark for the columns of queries, without rows, and storing them beside the declarations."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.base.columns import quoted, table_in_sql
from lake_assets.base.described import UNRESOLVED_COLUMN, Refusal, explain, find_refusal
from lake_assets.base.sql_text import column_line, find_mistake, is_true, is_understood
from lake_assets.base.values import parts_of
from lake_assets.connections.query_plans import REMEDY, functions_in_sql, order_dependent_in_sql, sums_of_floats
from lake_assets.errors import ConfigurationError, closest, suggestion
from lake_assets.incremental.declaration import Broken, Pipeline, Target
from lake_assets.incremental.declaration.model import IDENTIFIER, require_columns
from lake_assets.incremental.declaration.pipeline import (
    check_own_sql,
    conditions_of,
    require_condition,
    require_query,
)
from lake_assets.incremental.engine.audits import offending_rows
from lake_assets.incremental.engine.iceberg import fields_of, type_text
from lake_assets.incremental.sql.files import (
    Schema,
    StoredColumns,
    columns_file,
    fingerprint,
    write_columns,
)
from lake_assets.incremental.sql.folder import (
    SqlFolder,
    SqlTable,
    audits_of,
    check_sources,
    current_columns,
    located,
    mode_of,
    sources_of,
    target_of,
)
from lake_assets.incremental.sql.lineage import column_lineage, combines_rows, tables_read
from lake_assets.incremental.sql.query import PREVIOUS, SESSION_HOURS, explain_refusal, run_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NO_TABLE = "TABLE_OR_VIEW_NOT_FOUND"
"""Spark's condition for a table that does not exist."""

NO_FUNCTION = "UNRESOLVED_ROUTINE"
"""That for a function that does not exist."""


@dataclass(frozen=True)
class CheckedTable:
    """A query that Spark has analysed.

    Attributes:
        table: The table.
        columns: Column → Iceberg type.
        warnings: What works, but may not be meant.
        written: Whether the file of its columns was written: it was missing, or something has changed.
    """

    table: str
    columns: Schema
    warnings: tuple[str, ...]
    written: bool


def check_tables(
    folder: SqlFolder,
    spark: Callable[[], SparkSession],
    *,
    schemas: Mapping[str, Schema],
    only_changed: bool = False,
) -> tuple[list[CheckedTable], list[Target], list[Broken]]:
    """Analyse the queries of YAML files, and store their columns.

    Args:
        folder: The declarations.
        spark: Opens a session; called only if there is a query to analyse.
        schemas: Table → columns, of the tables that are declared elsewhere.
        only_changed: Leave out queries whose stored columns are current.

    Returns:
        What was analysed, the targets, and what cannot be used.
    """
    known = {**schemas, **folder.raw_schemas()}
    checked: list[CheckedTable] = []
    targets: list[Target] = []
    broken: list[Broken] = []
    for table in folder.tables:
        try:
            check_sources(table, {*known, *folder.raw_names}, (*folder.broken, *broken))
            _check_without_spark(table)
            current = current_columns(table, known, folder) if only_changed else None
            stored, warnings = (current, ()) if current is not None else analyse(table, known, spark())
            # Declared before the file is written, so that no file has columns that the declaration cannot use.
            target = target_of(table.declaration, table.sql, stored)
            with located(table.declaration):
                check_own_sql([target])
            targets.append(target)
            known[table.table] = stored.columns
            if current is None:
                written = write_columns(columns_file(table.declaration), stored)
                checked.append(CheckedTable(table.table, stored.columns, warnings, written))
        except ConfigurationError as error:
            broken.append(Broken(error, table.table))
    return checked, targets, broken


def analyse(
    table: SqlTable, schemas: Mapping[str, Schema], spark: SparkSession
) -> tuple[StoredColumns, tuple[str, ...]]:
    """Return the columns of a query with their types and lineage, and warnings.

    Args:
        table: The table.
        schemas: Table → columns, of all declared tables that it may read.
        spark: A session.

    Raises:
        ConfigurationError: Spark refuses the query, or a column cannot be stored.
    """
    empty = _empty_tables(table, schemas, spark)
    _check_rules(table, empty)
    try:
        rows = run_query(spark, table.sql, empty, ())
    except Exception as error:
        found = explain_refusal(table.sql, error)
        if found is None:
            raise
        place, text = found
        remedy = _similar_function(spark, error) or text.remedy
        raise ConfigurationError(f"{place}: {table.table}: {text.problem}.", remedy=remedy) from None
    columns = _columns_of(table, rows)
    _check_declared(table, columns)
    _check_audits(table, columns, spark)
    names = {source.sql_name: source.table for source in table.attributes.sources}
    readable = {name: rows.columns for name, rows in empty.items()} | {SESSION_HOURS: ["hour"]}
    lineage = column_lineage(table.sql.text, tuple(columns), names, readable)
    stored = StoredColumns(
        fingerprint=fingerprint(table.sql, table.attributes, table.source_schemas(schemas)),
        columns=columns,
        lineage=lineage.sources,
        unknown_lineage=lineage.unknown,
    )
    return stored, tuple(_warnings(table, stored))


def _check_without_spark(table: SqlTable) -> None:
    """Check what needs no types: mode, audits, sources, and the tables that the query reads."""
    _check_statement(table)
    mode_of(table.declaration)
    for number, audit in enumerate(audits_of(table.declaration)):
        require_query(f"{table.declaration.place('audits', number)}: {table.table}: ", audit)
    names = [source.sql_name for source in table.attributes.sources]
    for number, source in enumerate(sources_of(table.declaration)):
        for rule in source.rules:
            place = table.declaration.place("sources", number, "rules", rule.reason)
            require_condition(f"{place}: in the rule {rule.reason!r} of {source.table}", rule.where)
    with located(table.declaration, "columns"):
        require_columns(table.table, table.attributes.columns)
    known = [*names, SESSION_HOURS]
    if table.attributes.mode_name == "sequential":
        known.append(PREVIOUS)
    for read in tables_read(table.sql.text) or ():
        if read not in known:
            raise ConfigurationError(
                f"{table.sql.place(_line_with(table, read))}: the query of {table.table} reads {read!r},"
                " which is no source of it.",
                remedy=f"{suggestion(read, known)} A table that it reads is an item of `sources:`.",
            )
        if read == PREVIOUS and not table.attributes.columns:
            raise ConfigurationError(
                f"{table.sql.place(_line_with(table, read))}: the query of {table.table} reads `{PREVIOUS}`, its own"
                " rows, whose types are not known.",
                remedy="Declare them: add `columns:` with each column and its Iceberg type.",
            )


def _check_statement(table: SqlTable) -> None:
    """Check that a query is one SELECT with columns."""
    mistake = find_mistake(table.sql.text)
    if mistake is not None:
        line, found = mistake
        raise ConfigurationError(f"{table.sql.place(line)}: {table.table}: {found.problem}.", remedy=found.remedy)


def _line_with(table: SqlTable, name: str) -> int:
    """Return the first line of a query that contains a table's name."""
    for number, line in enumerate(table.sql.text.splitlines(), start=1):
        if name.lower() in line.lower():
            return number
    return 1


def _empty_tables(table: SqlTable, schemas: Mapping[str, Schema], spark: SparkSession) -> dict[str, DataFrame]:
    """Return name in the query → a DataFrame without rows."""
    found = {}
    for number, source in enumerate(table.attributes.sources):
        columns = schemas.get(source.table)
        if columns is None:
            found[source.sql_name] = _of_catalog(table, number, spark)
        else:
            found[source.sql_name] = spark.createDataFrame([], spark_schema(columns))
    if table.attributes.mode_name == "sequential" and table.attributes.columns:
        found[PREVIOUS] = spark.createDataFrame([], spark_schema(table.attributes.columns))
    return found


def _of_catalog(table: SqlTable, number: int, spark: SparkSession) -> DataFrame:
    """Return the rows of a source that nobody declares: another program has created it."""
    source = table.attributes.sources[number]
    try:
        rows = spark.table(table_in_sql(source.table)).limit(0)
        rows.schema  # noqa: B018 - a Connect client looks for the table when its columns are asked for
    except Exception as error:
        found = explain_refusal(table.sql, error)
        if found is None:
            raise
        reads = f"{table.declaration.place('sources', number)}: {table.table} reads {source.table}, which"
        if NO_TABLE not in str(error):
            raise ConfigurationError(
                f"{reads} Spark cannot read: {found[1].problem}.",
                remedy=f"Rename or drop that column in {source.table}, or let the table be written without it.",
            ) from None
        raise ConfigurationError(
            f"{reads} is neither declared nor in the catalog.",
            remedy="Correct the name, or declare the raw table: add `columns:` to the source.",
        ) from None
    return rows


def _check_rules(table: SqlTable, empty: Mapping[str, DataFrame]) -> None:
    """Check that Spark can evaluate the rules of the sources."""
    for number, source in enumerate(table.attributes.sources):
        for reason, condition in source.rules.items():
            try:
                empty[source.sql_name].where(is_true(condition)).schema  # noqa: B018 - Spark analyses the condition
            except Exception as error:
                place = table.declaration.place("sources", number, "rules", reason)
                raise _refused(f"{place}: in the rule {reason!r} of {source.table}", error) from None


def _check_audits(table: SqlTable, columns: Schema, spark: SparkSession) -> None:
    """Check that Spark can evaluate the queries of the audits."""
    for number, audit in enumerate(audits_of(table.declaration)):
        if audit.query is not None:
            place = table.declaration.place("audits", number)
            _check_query(f"{place}: {table.table}: in the audit {audit.name}", audit.query, columns, spark)


def mistakes_in_own_sql(pipeline: Pipeline, spark: Callable[[], SparkSession]) -> list[ConfigurationError]:
    """Return what Spark refuses of the conditions and audits in Python that cannot be understood without it.

    Args:
        pipeline: The declarations.
        spark: Opens a session; called only if there is such a text.
    """
    found = []
    declared = {raw.table: raw.all_columns for raw in pipeline.raw}
    declared |= {target.table: dict(target.columns) for target in pipeline.targets}
    for target in pipeline.targets:
        try:
            _check_own_sql(target, declared, spark)
        except ConfigurationError as error:
            found.append(error)
    return found


def _check_own_sql(target: Target, declared: Mapping[str, Schema], spark: Callable[[], SparkSession]) -> None:
    for source in target.sources:
        columns = _of_plain_types(declared.get(source.table) or {})
        for what, condition in conditions_of(source):
            if not is_understood(condition, columns):
                _check_condition(f"{target.table}: {what}", condition, columns, spark())
    for audit in target.audits:
        staged = _of_plain_types(target.columns)
        if audit.query is not None and staged and not is_understood(audit.query):
            _check_query(f"{target.table}: in the audit {audit.name}", audit.query, staged, spark())


def _of_plain_types(columns: Schema) -> Schema:
    """Return columns if a DataFrame with all of them can be made from their types, else none."""
    return columns if all(map(has_spark_type, columns.values())) else {}


def _check_condition(what: str, condition: str, columns: Schema, spark: SparkSession) -> None:
    """Check that Spark can evaluate a condition. Without columns, a column that is not found is no mistake."""
    rows = spark.createDataFrame([], spark_schema(columns)) if columns else spark.range(0)
    try:
        rows.where(is_true(condition)).schema  # noqa: B018 - Spark analyses the condition
    except Exception as error:
        refusal = find_refusal(error)
        if columns or refusal is None or not (refusal.condition or "").startswith(UNRESOLVED_COLUMN):
            raise _refused(what, error) from None


def _check_query(what: str, query: str, columns: Schema, spark: SparkSession) -> None:
    """Check that Spark can evaluate the query of an audit. Other tables that it reads may be created later."""
    try:
        offending_rows(query, spark.createDataFrame([], spark_schema(columns))).schema  # noqa: B018 - as above
    except Exception as error:
        refusal = find_refusal(error)
        if refusal is None or refusal.condition != NO_TABLE:
            raise _refused(what, error) from None


def _refused(what: str, error: Exception) -> Exception:
    """Return what Spark refuses about a text as an error of the declaration; an error of another kind as it is."""
    refusal = find_refusal(error)
    if refusal is None:
        return error
    found = explain(Refusal(refusal.condition, refusal.message, refusal.parameters))
    return ConfigurationError(f"{what}, {found.problem}.", remedy=found.remedy)


def _columns_of(table: SqlTable, rows: DataFrame) -> dict[str, str]:
    columns: dict[str, str] = {}
    for number, field in enumerate(rows.schema.fields, start=1):
        name = field.name.lower()
        if name in columns:
            raise ConfigurationError(
                f"{_place(table, name)}: the query of {table.table} selects the column {name!r} more than once.",
                remedy="Give the others another name, or remove them.",
            )
        columns[name] = _stored_type(table, number, field.name, field.dataType.simpleString())
    return columns


def _stored_type(table: SqlTable, number: int, name: str, spark_type: str) -> str:
    """Return the Iceberg type of a column of a query."""
    place = _place(table, name)
    if not IDENTIFIER.fullmatch(name.lower()):
        raise ConfigurationError(
            f"{place}: column {number} of the query of {table.table} is called {name!r}.",
            remedy="Give it a name of lower-case letters, digits and _: add AS name.",
        )
    if spark_type == NO_TYPE:
        raise ConfigurationError(
            f"{place}: the column {name!r} of {table.table} is an untyped NULL.",
            remedy=f"Give it a type: CAST(NULL AS string) AS {name}.",
        )
    stored = iceberg_type(spark_type)
    if stored is None:
        raise ConfigurationError(
            f"{place}: the column {name!r} of {table.table} is {spark_type}, which a table of SQL cannot store.",
            remedy=f"Select its parts, or its text: to_json({name}) AS {name}, or CAST({name} AS string).",
        )
    return stored


def _check_declared(table: SqlTable, columns: Schema) -> None:
    """Check that a query has the columns that its table declares, if it declares any."""
    declared = table.attributes.columns
    for name, written in declared.items():
        found = columns.get(name)
        if found is None:
            raise ConfigurationError(
                f"{table.sql.place()}: the query of {table.table} has no column {name!r}, which it declares.",
                remedy=suggestion(name, tuple(columns)),
            )
        if found.replace(" ", "") != written.replace(" ", ""):
            raise ConfigurationError(
                f"{_place(table, name)}: the column {name!r} of {table.table} is {found}, and declared as {written}.",
                remedy=f"Declare it as {found}, or cast it in the query.",
            )
    for name in columns:
        if declared and name not in declared:
            raise ConfigurationError(
                f"{table.declaration.place('columns')}: {table.table} declares no column {name!r}, which its query"
                " selects.",
                remedy=f"Add `{name}: {columns[name]}` to `columns:`, or remove it from the query.",
            )


def _place(table: SqlTable, column: str) -> str:
    """Return `file:line` of the query where it selects a column."""
    return table.sql.place(column_line(table.sql.text, column.lower()))


def _similar_function(spark: SparkSession, error: Exception) -> str | None:
    """Return which function is meant, if a query calls one that does not exist and has a similar name."""
    refusal = find_refusal(error)
    if refusal is None or refusal.condition != NO_FUNCTION:
        return None
    names = [row.function for row in spark.sql("SHOW FUNCTIONS").collect()]
    near = closest(refusal.parameters.get("routineName", "").strip("`").lower(), names)
    return f"Did you mean {near!r}?" if near else None


def _warnings(table: SqlTable, stored: StoredColumns) -> list[str]:
    found = []
    functions = sorted(functions_in_sql(table.sql.text))
    if functions:
        called = ", ".join(f"{name}()" for name in functions)
        found.append(f"{called}: the value changes with every run, so a rebuilt hour never equals the published one")
    key = table.attributes.key
    keys = {*([key] if isinstance(key, str) else key), *(each.key for each in table.attributes.sources if each.key)}
    for name in sorted(order_dependent_in_sql(table.sql.text, keys)):
        found.append(f"{name}: the result depends on the order of rows, which Spark does not keep; {REMEDY[name]}")
    combined = combines_rows(table.sql.text) if table.attributes.mode_name == "stateless" else ()
    if combined:
        found.append(
            f"{', '.join(combined)}: a session of a stateless table reads only the rows that are new, so each adds a"
            " result of its own to the hour; use mode: {stateful: {load: changed}} to build hours as a whole"
        )
    floats = [column for column, type_ in stored.columns.items() if type_ in ("double", "float")]
    if floats and sums_of_floats(table.sql.text):
        found.append(
            f"{', '.join(floats)}: the last digits of a sum of floating point numbers depend on the order of rows, so"
            " values that differ by a billionth count as equal; sum decimals for exact ones"
        )
    for column, type_ in stored.columns.items():
        if type_ == NO_TIME_ZONE:
            found.append(f"{column} is TIMESTAMP_NTZ, which has no time zone; to_timestamp_ltz or CAST gives it one")
    if stored.unknown_lineage:
        found.append(f"the source columns of {', '.join(stored.unknown_lineage)} are unknown")
    return found


SPARK_TYPES = {
    "string": "string",
    "uuid": "string",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "date": "date",
    "timestamptz": "timestamp",
    "timestamp": "timestamp_ntz",
    "binary": "binary",
}
"""Iceberg type → Spark's name of it. `decimal` is the same in both."""

ICEBERG_TYPES = {
    **{spark: iceberg for iceberg, spark in SPARK_TYPES.items() if iceberg != "uuid"},
    "smallint": "int",
    "tinyint": "int",
}

NO_TYPE = "void"
"""Spark's type of an untyped NULL."""

NO_TIME_ZONE = "timestamp"
"""The Iceberg type of Spark's TIMESTAMP_NTZ."""

_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")


def iceberg_type(spark_type: str) -> str | None:
    """Return the Iceberg type of a Spark type, such as `bigint`; None if a table cannot store it."""
    decimal = _DECIMAL.fullmatch(spark_type)
    if decimal:
        return f"decimal({decimal[1]}, {decimal[2]})"
    return ICEBERG_TYPES.get(spark_type)


def has_spark_type(iceberg: str) -> bool:
    """Return whether `spark_schema` knows the Spark type of an Iceberg type."""
    nested = parts_of(iceberg)
    if nested:
        return all(map(has_spark_type, nested[1].values()))
    return iceberg in SPARK_TYPES or iceberg.startswith("fixed") or _DECIMAL.fullmatch(iceberg) is not None


def spark_schema(columns: Mapping[str, str]) -> str:
    """Return columns with Iceberg types as a schema of Spark: `amount decimal(9, 2), paid_at timestamp`."""
    fields = fields_of((column, kind, None) for column, kind in columns.items())
    return ", ".join(f"{quoted(each.name)} {type_text(each.field_type, sql=True)}" for each in fields)
