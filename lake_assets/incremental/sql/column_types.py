"""Iceberg types as Spark's, and Spark's as Iceberg's. Pure: both are texts."""

from __future__ import annotations

import re
from collections.abc import Mapping

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
    """Return whether `spark_schema` knows the Spark type of an Iceberg type: it knows none that has fields."""
    return iceberg in SPARK_TYPES or iceberg.startswith("fixed") or _DECIMAL.fullmatch(iceberg) is not None


def spark_schema(columns: Mapping[str, str]) -> str:
    """Return columns with Iceberg types as a schema of Spark: `amount decimal(9, 2), paid_at timestamp`."""
    parts = []
    for column, found in columns.items():
        shown = "binary" if found.startswith("fixed") else SPARK_TYPES.get(found, found)
        parts.append(f"`{column}` {shown}")
    return ", ".join(parts)
