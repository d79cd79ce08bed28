"""Rows by entity: those of the entities that changed, those of all others, and those that an index finds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.base.columns import ENTITY, SIGN, column, columns
from lake_assets.base.conditions import union_by_name
from lake_assets.incremental.declaration import Source
from lake_assets.incremental.key_index.lookup import KeyIndex
from lake_assets.incremental.key_index.spark_rows import distinct_values, local_rows
from lake_assets.incremental.planning.session import SessionPlan, SourceRange
from lake_assets.incremental.staging.target_build import FoundRows, TargetBuild


@dataclass(frozen=True)
class ChangedEntities:
    """The entities whose source rows changed.

    Attributes:
        entity: The column that has an entity's id, in any DataFrame. Null is an id like any other.
        ids: The ids, one column: `ENTITY`.
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
        same_entity = column(self.entity).eqNullSafe(F.col(ENTITY))
        return rows.join(F.broadcast(self.ids), same_entity, how)


def ids_of(rows: Iterable[DataFrame], entity: str) -> DataFrame:
    """Return the ids of all entities in these rows, each once, as column `ENTITY`."""
    return union_by_name(*[each.select(column(entity).alias(ENTITY)) for each in rows]).distinct()


def differing(before: DataFrame, after: DataFrame) -> DataFrame:
    """Return the rows that occur more often in one of two states of a table than in the other, each once.

    The columns are those that both states have.
    """
    names_before = before.columns
    common = columns(name for name in after.columns if name in names_before)
    removed = before.select(*common, F.lit(-1).alias(SIGN))
    added = after.select(*common, F.lit(1).alias(SIGN))
    by_row = removed.union(added).groupBy(*common)
    balance = by_row.agg(F.sum(SIGN).alias(SIGN))
    return balance.where(F.col(SIGN) != 0).drop(SIGN)


def rows_of_entities(build: TargetBuild, plan: SessionPlan, kept: DataFrame, entity: str) -> FoundRows | None:
    """Return the rows of each source that the entities of a session have, found by indexes.

    A source without an index has few files, or so many rows that Spark reads it faster: it is read whole.

    Args:
        kept: Rows of the driving source in the planned hours.
        entity: The column of the entity's id.

    Returns:
        None if no source has an index, or if the entities are too many or one has no id: all rows are to be read.
    """
    index = build.index
    sources = build.sources(plan)
    if index is None or not any(index.covers(source.table, span.to_snapshot_id, entity) for source, span in sources):
        return None
    entities = distinct_values(kept, entity)
    if entities is None or None in entities:
        return None
    found = []
    for source, span in sources:
        rows = _indexed_rows(index, source, span, entity, entities)
        if rows is None:
            found.append(build.read(source.table, span.to_snapshot_id))
        else:
            found.append(local_rows(build.spark, rows))
    return found


def _indexed_rows(
    index: KeyIndex, source: Source, span: SourceRange, entity: str, entities: set[object]
) -> pa.Table | None:
    """Return the rows of some entities in a source; of each row, all deliveries, whatever entity they name."""
    if source.has_versions:
        return None
    rows = index.rows(source.table, span.to_snapshot_id, entity, entities)
    if rows is None or source.trusted or source.key is None or source.key == entity:
        return rows
    keys = set(rows.column(source.key).drop_null().to_pylist())
    return index.rows(source.table, span.to_snapshot_id, source.key, keys)
