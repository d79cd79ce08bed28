"""Versions of rows with the time until which each is valid: a type-2 dimension. DataFrames in, DataFrames out."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lake_assets.base.columns import column
from lake_assets.base.sql_text import is_true
from lake_assets.errors import ConfigurationError

VALID_TO = "valid_to"


def with_valid_to(rows: DataFrame, *, key: str, valid_from: str, deleted: str | None) -> DataFrame:
    """Return each version with `VALID_TO`, as `SessionContext.versions` describes, of all hours."""
    if VALID_TO in map(str.casefold, rows.columns):
        raise ConfigurationError(
            f"session.versions() adds the column {VALID_TO}, and the rows have a column of that name.",
            remedy=f'Rename or drop it before: rows.withColumnRenamed("{VALID_TO}", "own_{VALID_TO}").',
        )
    of_key = Window.partitionBy(column(key)).orderBy(column(valid_from))
    found = rows.withColumn(VALID_TO, F.lead(column(valid_from)).over(of_key))
    if deleted is None:
        return found
    return found.where(~is_true(deleted))
