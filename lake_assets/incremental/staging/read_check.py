"""Whether Spark reads all rows of the sources of a session, by their metadata. Evaluated before anything is staged.

Audits cannot tell: they read a source by the same reader, and would count as many rows as it returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lake_assets.base.time_filters import within
from lake_assets.connections.row_checkpoint import aggregate
from lake_assets.incremental.metadata import least_rows, tables
from lake_assets.incremental.metadata.least_rows import LeastRows
from lake_assets.incremental.metadata.misread_files import check_files, has_foreign_files, live_paths
from lake_assets.incremental.staging.row_validation import is_in_bounds

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.incremental.declaration import Source
    from lake_assets.incremental.planning.session import SessionPlan
    from lake_assets.incremental.staging.target_build import TargetBuild


def check_sources(build: TargetBuild, catalog: Catalog, plan: SessionPlan) -> None:
    """Check that Spark reads the files of the sources rightly; and all rows of the sources that nobody else counts.

    The rows of the driving source are counted when they are classified. Those of another source are counted only if
    other programs have added files to it.

    Raises:
        FilesMisread: Spark does not read a file rightly.
        RowsUnread: Spark reads fewer rows than the metadata contain.
    """
    for place, (source, span) in enumerate(build.sources(plan)):
        table = tables.load(catalog, source.table)
        if not has_foreign_files(table):
            continue
        check_files(table, source.table, live_paths(table, span.to_snapshot_id))
        if place == 0:
            continue
        least = least_rows.in_hours(table, source.table, span.to_snapshot_id, source.time_column, plan.hour_numbers)
        if least.timed:
            rows = within(build.read(source.table, span.to_snapshot_id), source.time_column, plan.hour_numbers)
            counted = F.count_if(is_in_bounds(source.time_column, least)).alias("timed")
            timed = aggregate(rows, [counted])["timed"]
            least.check(read=timed, timed=timed)


def least_in_hours(catalog: Catalog, source: Source, plan: SessionPlan) -> LeastRows:
    """Return the least rows that the driving source has in the planned hours."""
    table = tables.load(catalog, source.table)
    up_to = plan.sources[0].to_snapshot_id
    return least_rows.in_hours(table, source.table, up_to, source.time_column, plan.hour_numbers)


def least_appended(catalog: Catalog, source: Source, plan: SessionPlan) -> LeastRows:
    """Return the least rows that an append reads of the driving source."""
    span = plan.sources[0]
    return least_rows.appended(
        tables.load(catalog, source.table),
        source.table,
        span.from_snapshot_id,
        span.to_snapshot_id,
        source.time_column,
        left_out=plan.left_out,
    )
