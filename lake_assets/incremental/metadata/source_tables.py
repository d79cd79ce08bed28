"""Loading the sources of targets, and checking that they can be read as declared. Metadata only.

A raw table that declares no columns exists: another program has created it, and it is read as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.types import IcebergType, TimestampType, TimestamptzType, TimeType

from lake_assets.base.columns import PREFIX, is_own
from lake_assets.errors import (
    ColumnNameTaken,
    ColumnUnreadable,
    ConfigurationError,
    SourceTableMissing,
    TimeColumnUnusable,
)
from lake_assets.incremental.declaration import RawTable
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.declared_columns import Declared, check_source, of_raw_table, of_target
from lake_assets.incremental.metadata.misread_files import check_head

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from lake_assets.incremental.declaration import Pipeline, Source, Subject, Target

RESERVED_BY_ICEBERG = {
    "_file",
    "_pos",
    "_deleted",
    "_spec_id",
    "_partition",
    "_row_id",
    "_last_updated_sequence_number",
}
"""The columns that each table has for Spark besides its own (Iceberg's `MetadataColumns`)."""

TIMESTAMPS = (TimestampType, TimestamptzType)
"""The types of a time column. A timestamp without a zone is taken as UTC."""


def load_source(catalog: Catalog, pipeline: Pipeline, source: Source, *, reader: Target) -> Table:
    """Return a source, if it has the declared columns that a target reads.

    Raises:
        SourceError: It does not exist, lacks such a column, or its time column is no timestamp.
    """
    raw = pipeline.raw_table(source.table)
    if raw is None and all(target.table != source.table for target in pipeline.targets):
        raw = RawTable(source.table, time_column=source.time_column)
    if raw is None or not raw.exists_already:
        table = tables.load(catalog, source.table)
        _check_columns(source.table, _types(table))
        check_source(table, _declared_columns(pipeline, raw, source.table), source, reader)
        return table
    landed_column = source.landed_column or raw.landed_column
    table = load_existing(catalog, replace(raw, time_column=source.time_column, landed_column=landed_column))
    named = dict.fromkeys(source.named_columns)
    tables.check_columns(table, source.table, named)
    return table


def check_existing(catalog: Catalog, pipeline: Pipeline) -> None:
    """Check that the raw tables that other programs have created can be read as declared.

    Raises:
        SourceError: One of them is missing, its time column cannot be used, or Spark does not read its files rightly.
    """
    for raw in pipeline.raw:
        if raw.exists_already:
            check_head(load_existing(catalog, raw), raw.table)


def load_raw(catalog: Catalog, raw: RawTable) -> Table:
    """Return a raw table, if it exists; if another program has created it, only if it can be read as declared."""
    return load_existing(catalog, raw) if raw.exists_already else tables.load(catalog, raw.table)


def load_existing(catalog: Catalog, raw: RawTable) -> Table:
    """Return a table that another program has created, if it can be read as declared.

    Raises:
        SourceTableMissing: It does not exist.
        TimeColumnUnusable: Its time column does not exist, or is no timestamp.
        TableDamaged: Its metadata file cannot be read.
    """
    table = tables.find(catalog, raw.table)
    if table is None:
        raise SourceTableMissing(raw.table, known=_names_beside(catalog, raw.table))
    check_time_columns(table, raw)
    return table


def check_time_columns(table: Table, raw: RawTable) -> None:
    """Check that the columns of the time and of the landing of a table are timestamps, and that Spark can name all.

    Raises:
        TimeColumnUnusable: A column does not exist, or is no timestamp.
        ColumnNameTaken: A column has a name of the engine's own, or that of another column but for its case.
    """
    types = _types(table)
    _check_columns(raw.table, types)
    timestamps = [name for name, found in types.items() if isinstance(found, TIMESTAMPS)]
    found = types.get(raw.time_column)
    if not isinstance(found, TIMESTAMPS):
        raise TimeColumnUnusable(raw.table, raw.time_column, found=_text(found), timestamps=timestamps)
    if raw.landed_column is not None and not isinstance(types.get(raw.landed_column), TIMESTAMPS):
        landed = _text(types.get(raw.landed_column))
        raise TimeColumnUnusable(
            raw.table, raw.landed_column, found=landed, timestamps=timestamps, names="landed_column"
        )


def subject_columns(catalog: Catalog, raw: RawTable, subject: Subject) -> tuple[str, ...]:
    """Return the columns of a raw table that contain an id of a subject: the declared ones, or those that exist.

    Raises:
        ConfigurationError: Such a column of a table that exists is no string.
        SourceError: A table that should exist does not, or cannot be read as declared.
    """
    if not raw.exists_already:
        return subject.columns_of(raw.columns)
    types = _types(load_existing(catalog, raw))
    columns = subject.columns_of(types)
    for column in columns:
        if str(types[column]) != "string":
            raise ConfigurationError(
                f"{raw.table}.{column}, an id of the subject {subject.name}, is {types[column]}.",
                remedy="Name string columns only as columns= of the subject.",
            )
    return columns


def _check_columns(table: str, types: Mapping[str, IcebergType]) -> None:
    """Refuse columns because of which Spark could not read the table, or not tell them from others."""
    known: dict[str, str] = {}
    for name, found in types.items():
        other = known.setdefault(name.casefold(), name)
        if isinstance(found, TimeType):
            raise ColumnUnreadable(table, name, why="Spark cannot read a table with a column of type time")
        if name in RESERVED_BY_ICEBERG:
            raise ColumnNameTaken(table, name, why="Iceberg has a column of this name itself")
        if is_own(name):
            raise ColumnNameTaken(table, name, why=f"names that begin with {PREFIX} belong to lake-assets")
        if other != name:
            raise ColumnNameTaken(table, name, why=f"Spark does not tell it from {other!r}")


def _declared_columns(pipeline: Pipeline, raw: RawTable | None, table: str) -> Declared:
    if raw is not None:
        return of_raw_table(raw)
    (target,) = (target for target in pipeline.targets if target.table == table)
    return of_target(target)


def _types(table: Table) -> Mapping[str, IcebergType]:
    return {field.name: field.field_type for field in table.schema().fields}


def _text(found: IcebergType | None) -> str | None:
    return None if found is None else str(found)


def _names_beside(catalog: Catalog, name: str) -> list[str]:
    """Return the tables of the namespace of a table."""
    namespace = name.split(".")[0]
    try:
        return sorted(".".join(identifier) for identifier in catalog.list_tables(namespace))
    except NoSuchNamespaceError:
        return []
