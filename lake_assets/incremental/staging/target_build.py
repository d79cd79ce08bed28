"""Building a target's rows: its sources as of the plan's snapshots, its published rows, and its transform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake_assets.base.columns import column
from lake_assets.base.time_filters import before
from lake_assets.incremental.declaration import SessionContext, Source, Target
from lake_assets.incremental.key_index.lookup import KeyIndex
from lake_assets.incremental.planning.session import SessionPlan, SourceRange
from lake_assets.incremental.staging import row_validation
from lake_assets.incremental.staging.reading import coalesce_if_few, read_at
from lake_assets.incremental.user_code.call_function import call_function

FoundRows = Sequence[DataFrame]
"""Rows of each source, in the order of the declaration; of each row, all deliveries."""

LimitRows = Callable[[DataFrame], DataFrame]
"""Limits the rows of a source to those of some entities."""


PERTURBATION = 1e-14
"""How much a perturbed rebuild changes each floating point number of its sources at most, as a part of it.

Two orders of addition give two sums. By how much they differ is not seen in the sums, but is of the size of the numbers
that were added, as is what the perturbation changes: about as much as the rounding of some hundred additions."""


@dataclass(frozen=True)
class TargetBuild:
    """Builds rows of one target on one Spark session.

    Attributes:
        catalog: Has the metadata of the tables.
        start: First hour of the pipeline; rows before it are not valid.
        main: The target's published snapshot to build on; None for an empty target.
        max_rows: About how many rows a session reads of any table, at most.
        index: Finds rows by a column's values; None to read tables whole.
        is_perturbed: Whether the floating point numbers that the transform gets are changed by a random part of
            `PERTURBATION`. Such rows are compared, and never published.
    """

    spark: SparkSession
    catalog: Catalog
    target: Target
    start: int
    main: int | None
    max_rows: float
    index: KeyIndex | None = None
    is_perturbed: bool = False

    def published(self) -> DataFrame:
        """Return the published rows of the target."""
        return self.read(self.target.table, self.main)

    def read(self, table: str, snapshot_id: int | None) -> DataFrame:
        """Return the rows of a table as of a snapshot; no rows for None."""
        return coalesce_if_few(read_at(self.spark, self.catalog, table, snapshot_id), self.max_rows)

    def sources(self, plan: SessionPlan) -> list[tuple[Source, SourceRange]]:
        """Return the sources, the driving one first, each with its range in a plan."""
        return list(zip(self.target.sources, plan.sources, strict=True))

    def build_hours(
        self,
        plan: SessionPlan,
        hours: Sequence[int],
        *,
        published: DataFrame | None,
        limit: LimitRows | None = None,
        found: FoundRows | None = None,
    ) -> DataFrame:
        """Build hours from all rows of the sources up to the last of them.

        Args:
            hours: Ascending.
            published: The target's rows before the session, for a sequential target.
            limit: Limits the rows of each source; None for all rows.
            found: The rows of each source that the hours depend on; None to read all rows.
        """
        inputs = []
        for place, (source, span) in enumerate(self.sources(plan)):
            rows = self.read(source.table, span.to_snapshot_id) if found is None else found[place]
            rows = self.counted_rows(source, rows, through=hours[-1])
            if limit is not None:
                rows = limit(rows)
            inputs.append(rows)
        return self.transform(plan.session_id, hours, inputs, published=published)

    def transform(
        self,
        session_id: str,
        hours: Sequence[int],
        inputs: Sequence[DataFrame],
        *,
        published: DataFrame | None = None,
    ) -> DataFrame:
        """Return the result of the target's transform, with the columns of the target in their order.

        Raises:
            FunctionFailed: The transform raised an error, or its result lacks a column.
        """
        if self.is_perturbed:
            inputs = [perturbed(rows) for rows in inputs]
            published = None if published is None else perturbed(published)
        context = SessionContext(session_id, tuple(hours), published, self.target.grain)
        return call_function(self.target, context, inputs)

    def counted_rows(self, source: Source, rows: DataFrame, *, through: int) -> DataFrame:
        """Return the valid rows of a source up to the end of an hour, each delivery once.

        If the source keeps all versions, those of later hours and deletions, too: a version is valid until the next.

        Args:
            rows: Rows of the source; of each row, all deliveries.
        """
        if not source.has_versions:
            rows = before(rows, source.time_column, through + 1)
        if source.trusted:
            return rows
        rows = row_validation.classify(rows, source, schema=rows.schema, start=self.start)
        if source.keep == "all":
            counted = rows.where(row_validation.is_version())
        else:
            # Only now: a later version may stand in a later hour.
            counted = before(rows.where(row_validation.is_counted()), source.time_column, through + 1)
        return row_validation.drop_classification(counted)


def perturbed(rows: DataFrame) -> DataFrame:
    """Return rows whose floating point numbers are changed at random by at most `PERTURBATION`, as doubles."""
    selected = []
    for place, field in enumerate(rows.schema.fields):
        value = column(field.name)
        if field.dataType.typeName() in ("double", "float"):
            value = value.cast("double") * (1 + PERTURBATION * (2 * F.rand(place) - 1))
        selected.append(value.alias(field.name))
    return rows.select(*selected)
