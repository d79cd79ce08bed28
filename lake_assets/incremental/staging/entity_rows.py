"""Rows by entity: those of the entities that changed, and those of all others. DataFrames in, DataFrames out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

CHANGED = "_changed"
SIGN = "_sign"


@dataclass(frozen=True)
class ChangedEntities:
    """The entities whose source rows changed.

    Attributes:
        entity: The column that has an entity's id, in any DataFrame. Null is an id like any other.
        ids: The ids, one column: `CHANGED`.
    """

    entity: str
    ids: DataFrame

    def of(self, rows: DataFrame) -> DataFrame:
        """Return the rows of these entities."""
        return self._join_ids(rows, "left_semi")

    def others(self, rows: DataFrame) -> DataFrame:
        """Return the rows of all other entities."""
        return self._join_ids(rows, "left_anti")

    def _join_ids(self, rows: DataFrame, how: str) -> DataFrame:
        # The plan made sure that they are few. Broadcast, they filter rows where those are read, without a shuffle.
        same_entity = F.col(self.entity).eqNullSafe(F.col(CHANGED))
        return rows.join(F.broadcast(self.ids), same_entity, how)


def ids_of(rows: Iterable[DataFrame], entity: str) -> DataFrame:
    """Return the ids of all entities in these rows, each once, as column `CHANGED`."""
    ids = [each.select(F.col(entity).alias(CHANGED)) for each in rows]
    return reduce(DataFrame.union, ids).distinct()


def differing(before: DataFrame, after: DataFrame) -> DataFrame:
    """Return the rows that occur more often in one of two states of a table than in the other, each once.

    The columns are those that both states have.
    """
    columns_before = before.columns
    columns = [column for column in after.columns if column in columns_before]
    removed = before.select(*columns, F.lit(-1).alias(SIGN))
    added = after.select(*columns, F.lit(1).alias(SIGN))
    by_row = removed.union(added).groupBy(*columns)
    balance = by_row.agg(F.sum(SIGN).alias(SIGN))
    return balance.where(F.col(SIGN) != 0).drop(SIGN)
