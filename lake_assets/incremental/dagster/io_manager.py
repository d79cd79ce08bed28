"""The I/O manager that gives assets of users the rows of raw tables and targets, as the published snapshot has them."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NoReturn

import dagster as dg
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import schema_to_pyarrow

from lake_assets.base.hours import hour_of
from lake_assets.errors import UsageError
from lake_assets.incremental.dagster.lake_resource import LAKE, ConfiguredBySettings, LakeResource
from lake_assets.incremental.declaration import Pipeline, RawTable, Target
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.columns import load_raw
from lake_assets.incremental.engine.engine import Engine, utc_now
from lake_assets.incremental.engine.publish import main_id
from lake_assets.incremental.from_settings import open_pipeline

if TYPE_CHECKING:
    from pyiceberg.table import Table

COLUMNS = "columns"
"""Metadata of an input: a list of the columns to read."""


class LakeIOManager(ConfiguredBySettings, dg.ConfigurableIOManager):
    """Loads raw tables and targets as inputs of assets. It stores nothing.

    The annotation of the parameter chooses the type: `pandas.DataFrame` (also without an annotation), `pyarrow.Table`,
    or `pyspark.sql.DataFrame`. An input has the columns of the table, and the rows of the partitions that Dagster maps
    to the run; all rows if these are all partitions of the table. A partition of a raw table is the hour of landing.

    `incremental_definitions` has one, under the key `lake_assets_io_manager`, which its assets name. Another code
    location makes one of its own.
    """

    def handle_output(self, context: dg.OutputContext, obj: object) -> NoReturn:
        """Refuse to store anything.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"The output {context.name!r} has the I/O manager of lake-assets, which only loads tables.",
            remedy="Name another I/O manager as io_manager_key= of the asset.",
        )

    def load_input(self, context: dg.InputContext) -> object:
        """Return the rows of an input.

        Raises:
            UsageError: The pipeline has no such table, it has no such partition yet, or the annotation is another type.
            SourceError: The table is not in the catalog, or cannot be read as declared.
            TargetError: A target is not the table that its sessions have built.
        """
        found = self.settings()
        return _load(context, open_pipeline(found), LakeResource(**self.given()))


def io_manager_of(pipeline: Pipeline) -> dg.IOManagerDefinition:
    """Return the I/O manager of a code location: it reads the tables of a pipeline with the location's resource."""

    class OfLocation(dg.IOManager):
        def handle_output(self, context: dg.OutputContext, obj: object) -> None:
            LakeIOManager().handle_output(context, obj)

        def load_input(self, context: dg.InputContext) -> object:
            return _load(context, pipeline, getattr(context.resources, LAKE))

    return dg.IOManagerDefinition(lambda _: OfLocation(), required_resource_keys={LAKE})


def _load(context: dg.InputContext, pipeline: Pipeline, lake: LakeResource) -> object:
    """Return the rows of an input, in the type that its parameter is annotated with."""
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from lake_assets.base.columns import columns as quoted_columns
    from lake_assets.base.time_filters import within
    from lake_assets.incremental.engine.prepare import read_at
    from lake_assets.incremental.engine.readable import check_files

    catalog = lake.catalog()
    name = ".".join(context.asset_key.path)
    tables: list[RawTable | Target] = [*pipeline.raw, *pipeline.targets]
    declared = {each.table: each for each in tables}
    if name not in declared:
        raise UsageError(
            f"The input {context.name!r} loads {name}, which is no table of the pipeline.",
            remedy=f"Name the key of one of its assets: {', '.join(each.replace('.', '/') for each in declared)}.",
        )
    found = declared[name]
    table = load_raw(catalog, found) if isinstance(found, RawTable) else iceberg.load(catalog, name)
    hours, time_column = _hours(context), found.time_column
    if hours is not None and isinstance(found, Target):
        _require_built(Engine(catalog, pipeline, clock=utc_now), found, table, hours)
    elif hours is not None and isinstance(found, RawTable):
        if found.landed_column is None:
            raise UsageError(
                f"{name} has no landed_column, so nothing says which of its rows are those of a partition.",
                remedy="Declare landed_column= of the raw table, or read all of it, with AllPartitionMapping().",
            )
        time_column = found.landed_column
    columns = (context.definition_metadata or {}).get(COLUMNS)
    wanted = context.dagster_type.typing_type
    if isinstance(wanted, type) and issubclass(wanted, DataFrame):
        check_files(table, name, main_id(table))
        rows = read_at(lake.spark_session, catalog, name, main_id(table))
        rows = rows if hours is None else within(rows, time_column, hours)
        return rows.select(*quoted_columns(columns)) if columns else rows
    if wanted not in (pd.DataFrame, pa.Table, Any):
        raise UsageError(
            f"The input {context.name!r} is annotated with {wanted}, and {name} cannot be loaded as that.",
            remedy="Annotate it with pandas.DataFrame, pyarrow.Table or pyspark.sql.DataFrame.",
        )
    which = AlwaysTrue() if hours is None else iceberg.within(table, time_column, hours)
    scan = table.scan(which, selected_fields=tuple(columns or "*"))
    arrow = scan.to_arrow().cast(schema_to_pyarrow(scan.projection(), include_field_ids=False))
    return arrow if wanted is pa.Table else arrow.to_pandas(integer_object_nulls=True)


def _hours(context: dg.InputContext) -> list[int] | None:
    """Return the hours of the partitions that an input asks for; None for all of its table."""
    step = context.step_context
    asset = step.job_def.asset_layer.get_assets_def_for_node(step.node_handle)
    mapping = asset.get_partition_mapping_for_dep(context.asset_key) if asset else None
    if asset is None or asset.partitions_def is None or isinstance(mapping, dg.AllPartitionMapping):
        return None
    partitions = context.asset_partitions_def if context.has_asset_partitions else None
    if not isinstance(partitions, dg.TimeWindowPartitionsDefinition):
        raise UsageError(
            f"{context.asset_key.to_user_string()} has neither hours nor days as partitions in this code location.",
            remedy="Add dg.AssetSpec(key, partitions_def=...) with those that it has in its own code location.",
        )
    windows = [partitions.time_window_for_partition_key(key) for key in context.asset_partition_keys]
    return [hour for window in windows for hour in range(hour_of(window.start), hour_of(window.end))]


def _require_built(engine: Engine, target: Target, table: Table, hours: Collection[int]) -> None:
    """Check that sessions have built all of the hours, or that these are complete and have no rows.

    Raises:
        UsageError: A partition is not built yet.
    """
    committed = engine.state(target).committed
    through = committed.complete_through
    unbuilt = {hour for hour in hours if through is None or hour > through or hour in committed.waiting}
    if unbuilt:
        of_partition = target.grain.first
        built = {of_partition(hour) for hour in iceberg.rows_by_hour(table, target.time_column, unbuilt)}
        unbuilt = {hour for hour in unbuilt if of_partition(hour) not in built}
    if unbuilt:
        raise UsageError(
            f"{target.table} is not built yet for {target.grain.format_hours(unbuilt)}.",
            remedy=f"`lake plan {target.name}` says what it waits for; run the asset again after the next session.",
        )
