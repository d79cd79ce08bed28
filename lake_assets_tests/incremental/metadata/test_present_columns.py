"""A snapshot read by Spark with the present columns of its table, against pyiceberg's own projection by ids."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)
from pyspark.sql import SparkSession

from lake_assets.incremental.engine.audit_reads import rows_at
from lake_assets.incremental.engine.columns import at_present
from lake_assets.incremental.engine.stage import read_at

POINT = StructType(NestedField(11, "x", IntegerType()), NestedField(12, "gone", StringType()))
COLUMNS = Schema(
    NestedField(1, "k", StringType()),
    NestedField(2, "a b`c", IntegerType()),
    NestedField(3, "price", DecimalType(9, 2)),
    NestedField(4, "share", FloatType()),
    NestedField(5, "point", POINT),
    NestedField(6, "points", ListType(13, POINT, element_required=False)),
    NestedField(7, "named", MapType(14, StringType(), 15, POINT, value_required=False)),
    NestedField(8, "gone", StringType()),
    NestedField(20, "c", StringType()),
    NestedField(21, "d", StringType()),
    NestedField(22, "place", StructType(NestedField(23, "at", StringType()), NestedField(24, "x", IntegerType()))),
)
ROWS: list[dict[str, Any]] = [
    {
        "k": "one",
        "a b`c": 7,
        "price": Decimal("1.50"),
        "share": 0.5,
        "point": {"x": 1, "gone": "g"},
        "points": [{"x": 2, "gone": "g"}, None],
        "named": {"n": {"x": 3, "gone": "g"}, "none": None},
        "gone": "g",
        "c": "one",
        "d": "two",
        "place": {"at": "here", "x": 1},
    },
    dict.fromkeys((each.name for each in COLUMNS.fields), None) | {"k": "two"},
]


def test_spark_reads_a_snapshot_with_the_columns_of_now(spark: SparkSession, catalog: Catalog) -> None:
    catalog.create_namespace_if_not_exists("raw")
    table = catalog.create_table("raw.changing", COLUMNS)
    table.append(pa.Table.from_pylist(ROWS, schema=schema_to_pyarrow(table.schema(), include_field_ids=False)))
    first = table.metadata.current_snapshot_id
    assert first is not None
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("gone").delete_column("point.gone")
        update.rename_column("a b`c", "c`b a").update_column("a b`c", LongType())
        update.update_column("price", DecimalType(12, 2)).update_column("share", DoubleType())
        update.update_column("point.x", LongType()).rename_column("points.element.x", "y")
        update.add_column(("named", "value", "z"), DateType()).add_column("since", TimestamptzType())
        update.add_column("more", ListType(99, POINT, element_required=False)).move_first("share")
    with table.update_schema() as update:
        update.add_column("gone", IntegerType())
        # Two columns change their names with each other; a struct and a field of it have others.
        update.rename_column("c", "d").rename_column("d", "c").rename_column("place", "spot")
        update.rename_column("place.at", "was").rename_column("place.x", "at")
    names = [each.name for each in table.schema().fields]
    expected = at_present(table, first).scan(snapshot_id=first).to_arrow().to_pylist()
    assert expected[0]["gone"] is None
    assert expected[0]["named"] == [("n", {"x": 3, "gone": "g", "z": None}), ("none", None)]
    for rows in (read_at(spark, catalog, "raw.changing", first), rows_at(spark, table, first)):
        assert rows.columns == names
        found = [row.asDict(recursive=True) for row in rows.orderBy("k").collect()]
        for each in found:
            each["named"] = None if each["named"] is None else sorted(each["named"].items())
        assert found == sorted(expected, key=lambda row: row["k"])
        # Filters on columns that had other names: Iceberg would look for these names among the present ones.
        assert rows.where("`c``b a` = 7 and c is not null").count() == 1
        assert rows.where("k is not null and d = 'one' and spot.at = 1").count() == 1
        assert _types(rows) == _types(spark.table("lake.raw.changing"))


def _types(rows: Any) -> list[str]:
    return [each.dataType.simpleString() for each in rows.schema.fields]
