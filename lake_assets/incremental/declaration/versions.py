"""Versions of rows with the time until which each is valid: a type-2 dimension. DataFrames in, DataFrames out."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lake_assets.base.sql_text import is_true

VALID_TO = "valid_to"


def with_valid_to(rows: DataFrame, *, key: str, valid_from: str, deleted: str | None) -> DataFrame:
    """Return each version with `VALID_TO`, as `SessionContext.versions` describes, of all hours."""
    of_key = Window.partitionBy(key).orderBy(valid_from)
    found = rows.withColumn(VALID_TO, F.lead(valid_from).over(of_key))
    if deleted is None:
        return found
    return found.where(~is_true(deleted))
