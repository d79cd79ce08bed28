"""Rows by entity: those of the entities that changed, and those of all others. DataFrames in, DataFrames out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

CHANGED, SIGN = "_changed", "_sign"


@dataclass(frozen=True)
class ChangedEntities:
    """entity: the column that tells them, in any frame. ids: one column, `CHANGED`; null is one of them, as any."""

    entity: str
    ids: DataFrame

    def of(self, rows: DataFrame) -> DataFrame:
        """The rows of these entities."""
        return self._joined(rows, "left_semi")

    def others(self, rows: DataFrame) -> DataFrame:
        """The rows of all others."""
        return self._joined(rows, "left_anti")

    def _joined(self, rows: DataFrame, how: str) -> DataFrame:
        # Few, as planned: rows are filtered where they are read, and not shuffled.
        return rows.join(F.broadcast(self.ids), F.col(self.entity).eqNullSafe(F.col(CHANGED)), how)


def ids_of(rows: Iterable[DataFrame], entity: str) -> DataFrame:
    """The entities of all these rows, each once, as `CHANGED`."""
    return reduce(DataFrame.union, [r.select(F.col(entity).alias(CHANGED)) for r in rows]).distinct()


def differing(before: DataFrame, after: DataFrame) -> DataFrame:
    """The rows that one of two states of a table has and the other lacks, or has less often; each once."""
    columns = [c for c in after.columns if c in before.columns]
    sides = before.select(*columns, F.lit(-1).alias(SIGN)).union(after.select(*columns, F.lit(1).alias(SIGN)))
    return sides.groupBy(*columns).agg(F.sum(SIGN).alias(SIGN)).where(F.col(SIGN) != 0).drop(SIGN)
