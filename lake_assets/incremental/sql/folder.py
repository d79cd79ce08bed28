"""The tables that a folder of YAML files declares, in the order in which they are built, and their pipeline. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration import TABLE, Pipeline, RawTable, Subject, Target
from lake_assets.incremental.declaration.names import require_name
from lake_assets.incremental.sql.declare import located, raw_tables_of, target_of
from lake_assets.incremental.sql.files import (
    Declaration,
    Schema,
    SqlText,
    StoredColumns,
    TableAttributes,
    columns_file,
    fingerprint,
    read_columns,
    read_folder,
    read_sql,
    shown,
)


@dataclass(frozen=True)
class SqlTable:
    """A table that is built by SQL.

    Attributes:
        declaration: Its YAML document.
        attributes: What it declares.
        sql: Its query.
    """

    declaration: Declaration
    attributes: TableAttributes
    sql: SqlText

    @property
    def table(self) -> str:
        """The table, `namespace.name`."""
        return self.attributes.table

    def source_schemas(self, schemas: Mapping[str, Schema]) -> dict[str, Schema | None]:
        """Return source table → its columns; None for a table that only the catalog knows.

        Args:
            schemas: Table → columns, of all declared tables.
        """
        return {source.table: schemas.get(source.table) for source in self.attributes.sources}


@dataclass(frozen=True)
class SqlFolder:
    """What a folder declares.

    Attributes:
        path: The folder.
        declarations: Its YAML documents, by file.
        raw: The raw tables.
        tables: The tables that are built, each after those that it is built from.
    """

    path: Path
    declarations: tuple[Declaration, ...]
    raw: tuple[RawTable, ...]
    tables: tuple[SqlTable, ...]

    @property
    def first_table(self) -> str:
        """The table of the first declaration."""
        return self.declarations[0].attributes.table

    def shown_with(self, table: str) -> frozenset[str]:
        """Return the table of a declaration, and the raw tables that its sources declare before any other does."""
        owner: dict[str, str] = {}
        for declaration in self.declarations:
            for raw in raw_tables_of(declaration):
                owner.setdefault(raw.table, declaration.attributes.table)
        shown_tables = {raw for raw, of_table in owner.items() if of_table == table}
        return frozenset({table, *shown_tables})

    def raw_schemas(self) -> dict[str, Schema]:
        """Return raw table → its columns, with those of landing."""
        return {raw.table: raw.all_columns for raw in self.raw}

    def subjects(self) -> tuple[Subject, ...]:
        """Return the subjects of all declarations: one of several has the columns of all."""
        columns: dict[str, dict[str, None]] = {}
        for declaration in self.declarations:
            for name, found in declaration.attributes.subjects.items():
                columns.setdefault(name, {}).update(dict.fromkeys(found))
        return tuple(Subject(name, tuple(found)) for name, found in sorted(columns.items()))


def open_folder(path: Path) -> SqlFolder:
    """Return what a folder declares.

    Raises:
        ConfigurationError: A file cannot be read, or declarations contradict each other.
    """
    declarations = read_folder(path)
    tables: dict[str, SqlTable] = {}
    for declaration in declarations:
        attributes = declaration.attributes
        if not isinstance(attributes, TableAttributes):
            continue
        with located(declaration, "table"):
            require_name(TABLE, attributes.table, "The table")
        if attributes.table in tables:
            other = tables[attributes.table].declaration.place()
            raise ConfigurationError(
                f"{declaration.place('table')}: {attributes.table} is also declared at {other}.",
                remedy="Declare each table once.",
            )
        tables[attributes.table] = SqlTable(declaration, attributes, read_sql(declaration))
    raw = _raw_tables(declarations)
    return SqlFolder(path, tuple(declarations), raw, tuple(_in_order(tables)))


def folder_pipeline(path: Path, *, start: str) -> Pipeline:
    """Return the pipeline that a folder declares. Starts no Spark.

    Args:
        path: The folder.
        start: The first event hour, a key such as `2026-01-01-00:00`.

    Raises:
        ConfigurationError: Something in the declarations cannot work, or the columns of a query are not known.
    """
    folder = open_folder(path)
    schemas = folder.raw_schemas()
    targets: list[Target] = []
    for table in folder.tables:
        stored = current_columns(table, schemas)
        if stored is None:
            raise _columns_unknown(folder, table)
        target = target_of(table.declaration, table.sql, stored)
        schemas[target.table] = target.columns
        targets.append(target)
    return assembled(folder, targets, start=start)


def current_columns(table: SqlTable, schemas: Mapping[str, Schema]) -> StoredColumns | None:
    """Return the stored columns of a query; None if there are none, or the query or a source has changed since."""
    stored = read_columns(columns_file(table.declaration))
    if stored is None:
        return None
    now = fingerprint(table.sql, table.attributes, table.source_schemas(schemas))
    return stored if stored.fingerprint == now else None


def assembled(folder: SqlFolder, targets: Iterable[Target], *, start: str) -> Pipeline:
    """Return the pipeline of a folder's targets. An error names the file of the table that it begins with."""
    try:
        return Pipeline(raw=folder.raw, targets=tuple(targets), start=start, subjects=folder.subjects())
    except ConfigurationError as error:
        for table in folder.tables:
            if error.problem.startswith(f"{table.table} "):
                place = table.declaration.place()
                raise ConfigurationError(f"{place}: {error.problem}", remedy=error.remedy) from None
        raise


def _columns_unknown(folder: SqlFolder, table: SqlTable) -> ConfigurationError:
    file = columns_file(table.declaration)
    if file.is_file():
        problem = f"The query of {table.table}, or a source, has changed since {shown(file)} was written"
    else:
        problem = f"The column types of {table.table} are not known: there is no {shown(file)}"
    return ConfigurationError(
        f"{table.sql.place()}: {problem}.",
        remedy=f"Run `lake check {shown(folder.path)}`, which asks Spark for them and writes the file.",
    )


def _raw_tables(declarations: Iterable[Declaration]) -> tuple[RawTable, ...]:
    """Return the raw tables. Several sources may declare the same one, with the same columns."""
    found: dict[str, tuple[RawTable, str]] = {}
    for declaration in declarations:
        for raw in raw_tables_of(declaration):
            other, place = found.setdefault(raw.table, (raw, declaration.place()))
            if (other.columns, other.renamed_from) != (raw.columns, raw.renamed_from):
                raise ConfigurationError(
                    f"{declaration.place()}: {raw.table} has other columns than at {place}.",
                    remedy="Declare the columns once: the other sources need none.",
                )
    return tuple(raw for raw, _ in found.values())


def _in_order(tables: Mapping[str, SqlTable]) -> list[SqlTable]:
    upstream: dict[str, list[str]] = {}
    for name, table in tables.items():
        upstream[name] = [source.table for source in table.attributes.sources if source.table in tables]
    try:
        return [tables[name] for name in TopologicalSorter(upstream).static_order()]
    except CycleError as error:
        circle: list[str] = error.args[1]
        raise ConfigurationError(
            f"{tables[circle[0]].declaration.place('sources')}: tables are built from each other in a circle:"
            f" {' → '.join(circle)}.",
            remedy="A table that needs its own earlier rows is sequential: it reads `previous`, and is no source.",
        ) from None
