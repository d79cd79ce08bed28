"""Reading a snapshot with the columns that its table has now.

A reader of a snapshot gets the columns of that time: without those that were added since, and by their former names and
types. Iceberg's ids say which column is which, so the rows are given the present columns: an added one is null, as it
is in the present head of the table. Spark and pyiceberg both read a snapshot with its own columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    FixedType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from lake_assets.base.columns import ELEMENT, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SPARK_NAMES: dict[type[IcebergType], str] = {
    LongType: "bigint",
    TimestamptzType: "timestamp",
    TimestampType: "timestamp_ntz",
    UUIDType: "string",
    FixedType: "binary",
    BinaryType: "binary",
}
"""Spark's names of types that Iceberg calls otherwise."""


def with_present_columns(rows: DataFrame, table: Table, snapshot_id: int) -> DataFrame:
    """Return the rows of a snapshot, as Spark reads it, with the present columns of its table."""
    found = selected(schema_at(table, snapshot_id), table.schema())
    return rows if found is None else rows.selectExpr(*found)


def at_present(table: Table, snapshot_id: int | None) -> Table:
    """Return a table whose scans of a snapshot have its present columns."""
    if snapshot_id is None or selected(schema_at(table, snapshot_id), table.schema()) is None:
        return table
    snapshots = []
    for each in table.metadata.snapshots:
        if each.snapshot_id == snapshot_id:
            each = each.model_copy(update={"schema_id": table.metadata.current_schema_id})
        snapshots.append(each)
    metadata = table.metadata.model_copy(update={"snapshots": snapshots})
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog)


def schema_at(table: Table, snapshot_id: int) -> Schema:
    """Return the columns that a table had at a snapshot; the present ones if nothing tells."""
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None or snapshot.schema_id is None:
        return table.schema()
    return table.schemas().get(snapshot.schema_id, table.schema())


def selected(then: Schema, now: Schema) -> list[str] | None:
    """Return the SQL expressions that make present columns of former ones; None if they are the same.

    Args:
        then: The columns of the rows.
        now: The columns to return, in this order.
    """
    if then.schema_id == now.schema_id or _is_same(then.as_struct(), now.as_struct()):
        return None
    values = _values(then.fields, now.fields, "", 0)
    return [f"{value} AS {quoted(each.name)}" for value, each in zip(values, now.fields, strict=True)]


def _values(then: tuple[NestedField, ...], now: tuple[NestedField, ...], prefix: str, depth: int) -> list[str]:
    """Return the expression of each field of a struct. prefix: the struct with a dot; empty for the columns."""
    by_id = {each.field_id: each for each in then}
    found = []
    for each in now:
        former = by_id.get(each.field_id)
        if former is None:
            default = "NULL" if each.initial_default is None else _text(str(each.initial_default))
            found.append(f"CAST({default} AS {spark_type(each.field_type)})")
        else:
            value = prefix + quoted(former.name)
            if former.name != each.name:
                value = _unfiltered(value)
            found.append(_value(value, former.field_type, each.field_type, depth))
    return found


def _value(value: str, then: IcebergType, now: IcebergType, depth: int) -> str:
    if _is_same(then, now):
        return value
    element = f"{ELEMENT}{depth}"
    if isinstance(then, StructType) and isinstance(now, StructType):
        values = _values(then.fields, now.fields, f"{value}.", depth)
        parts = [f"{_text(each.name)}, {part}" for each, part in zip(now.fields, values, strict=True)]
        return f"if({value} IS NULL, NULL, named_struct({', '.join(parts)}))"
    if isinstance(then, ListType) and isinstance(now, ListType):
        return f"transform({value}, {element} -> {_value(element, then.element_type, now.element_type, depth + 1)})"
    if isinstance(then, MapType) and isinstance(now, MapType):
        key = _value(f"{element}.key", then.key_type, now.key_type, depth + 1)
        of_value = _value(f"{element}.value", then.value_type, now.value_type, depth + 1)
        return f"map_from_entries(transform(map_entries({value}), {element} -> struct({key}, {of_value})))"
    return f"CAST({value} AS {spark_type(now)})"


def _unfiltered(value: str) -> str:
    """Return a column so that Spark leaves no filter on it to Iceberg.

    Iceberg 1.12 plans the scan of a snapshot with that time's name of a column among the columns of now: it does not
    find it ("Cannot find field 'metres' in struct"), or it takes another column that has the name now.
    """
    return f"element_at(array({value}), 1)"


def _is_same(then: IcebergType, now: IcebergType) -> bool:
    """Whether rows of both types are the same: names, ids and types of all fields, in their order."""
    if isinstance(then, StructType) and isinstance(now, StructType):
        return len(then.fields) == len(now.fields) and all(
            (one.field_id, one.name) == (other.field_id, other.name) and _is_same(one.field_type, other.field_type)
            for one, other in zip(then.fields, now.fields, strict=True)
        )
    if isinstance(then, ListType) and isinstance(now, ListType):
        return _is_same(then.element_type, now.element_type)
    if isinstance(then, MapType) and isinstance(now, MapType):
        return _is_same(then.key_type, now.key_type) and _is_same(then.value_type, now.value_type)
    return then == now


def spark_type(found: IcebergType) -> str:
    """Return an Iceberg type as Spark's SQL has it."""
    if isinstance(found, StructType):
        return f"struct<{', '.join(f'{quoted(each.name)}: {spark_type(each.field_type)}' for each in found.fields)}>"
    if isinstance(found, ListType):
        return f"array<{spark_type(found.element_type)}>"
    if isinstance(found, MapType):
        return f"map<{spark_type(found.key_type)}, {spark_type(found.value_type)}>"
    if isinstance(found, DecimalType):
        return f"decimal({found.precision}, {found.scale})"
    return _SPARK_NAMES.get(type(found), str(found))


def _text(value: str) -> str:
    """Return a text as a literal of Spark's SQL."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
