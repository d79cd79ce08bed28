"""What steps, checks, sensors and assets of users get of a data directory: its catalog, Spark, and rows of its tables.

The Spark session is opened on first use. The I/O manager reads raw tables and targets as the published snapshot has
them. Keys of resources of this project begin with `lake_assets`, so that no key of a user is one of them.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from dagster_pyspark.resources import spark_session_from_config
from pydantic import BaseModel, Field
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import schema_to_pyarrow

from lake_assets.base.hours import hour_of
from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.spark import prepare_client, require_listener, session_conf
from lake_assets.errors import UsageError
from lake_assets.incremental.dagster.asset_specs import asset_key
from lake_assets.incremental.declaration import Pipeline, RawTable, Target
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.columns import load_raw
from lake_assets.incremental.engine.engine import Engine, utc_now
from lake_assets.incremental.engine.publish import main_id
from lake_assets.incremental.from_settings import open_pipeline
from lake_assets.settings import Settings, settings, settings_at

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

LAKE = "lake_assets"
"""The key of `LakeResource`, in every code location that has the tables."""


class ConfiguredBySettings(BaseModel):
    """Has the settings of this process, unless a field says otherwise. A field may be a `dagster.EnvVar`."""

    home: str | None = Field(default=None, description="data directory, whose lake.env counts, too")
    catalog_uri: str | None = Field(default=None, description="catalog database or REST address")
    warehouse: str | None = Field(default=None, description="location of all tables")
    spark_remote: str | None = Field(default=None, description="Spark Connect server, sc://host:port")
    kafka: str | None = Field(default=None, description="Kafka bootstrap servers, host:port,...")
    zookeeper: str | None = Field(default=None, description="ZooKeeper ensemble, host:port,...")

    chosen: ClassVar[Settings | None] = None

    @classmethod
    def of(cls, chosen: Settings) -> Self:
        """Return the resource of given settings. Dagster does not show these, because they may have secrets."""
        kind: type[Self] = type(cls.__name__, (cls,), {"__module__": cls.__module__, "chosen": chosen})
        return kind()

    def given(self) -> dict[str, Any]:
        """Return the fields that say otherwise."""
        fields = {name: getattr(self, name) for name in ConfiguredBySettings.model_fields}
        return {name: value for name, value in fields.items() if value is not None}

    def settings(self) -> Settings:
        """Return the settings.

        Raises:
            ConfigurationError: They are not valid together.
        """
        if self.chosen is not None:
            return self.chosen
        given = self.given()
        return _settings(tuple(given.items())) if given else settings()


@lru_cache(maxsize=16)
def _settings(given: tuple[tuple[str, str], ...]) -> Settings:
    fields = dict(given)
    home = fields.pop("home", None)
    return settings_at(Path(home).expanduser().resolve() if home else settings().home, **fields)


class LakeResource(ConfiguredBySettings, LazyPySparkResource):
    """The tables of a data directory, for steps, checks and sensors: the parameter `lake_assets`.

    By default a client of Spark Connect waits for 15 minutes, without a word, for a server that is gone. This one
    raises `ServiceError` if no server listens, and gives up after 20 s later on.
    """

    spark_config: dict[str, Any] = Field(default={}, description="properties of the Spark session")

    def catalog(self) -> Catalog:
        """Return the pyiceberg catalog `lake`. A process has one for each home: opening one takes a connection."""
        return catalog_of(self.settings())

    def _init_session(self) -> None:
        if self._spark_session is not None:
            return
        conf = {**session_conf(self.settings()), **self.spark_config}
        remote = conf.get("spark.remote")
        if remote is not None:
            require_listener(remote)
        self._spark_session = spark_session_from_config(conf)  # type: ignore[no-untyped-call]
        if remote is not None:
            prepare_client(self._spark_session)


_catalogs: dict[tuple[str, str], Catalog] = {}


def catalog_of(found: Settings) -> Catalog:
    """Return the pyiceberg catalog of settings, which the process keeps."""
    key = found.catalog_address, found.warehouse_address
    if key not in _catalogs:
        _catalogs[key] = open_catalog(found)
    return _catalogs[key]


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
    from lake_assets.incremental.engine.readable import check_files
    from lake_assets.incremental.engine.stage import read_at

    catalog = lake.catalog()
    tables: list[RawTable | Target] = [*pipeline.raw, *pipeline.targets]
    declared = {asset_key(each.table): each for each in tables}
    found = declared.get(context.asset_key)
    if found is None:
        raise UsageError(
            f"The input {context.name!r} loads {'.'.join(context.asset_key.path)}, which is no table of the pipeline.",
            remedy=f"Name the key of one of its assets: {', '.join(key.to_user_string() for key in declared)}.",
        )
    name = found.table
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
    iceberg.require_scannable(table, name)
    which = AlwaysTrue() if hours is None else iceberg.within(table, time_column, hours)
    scan = table.scan(which, selected_fields=tuple(columns or "*"))
    arrow = scan.to_arrow().cast(schema_to_pyarrow(scan.projection(), include_field_ids=False))
    return arrow if wanted is pa.Table else arrow.to_pandas(integer_object_nulls=True)


def _hours(context: dg.InputContext) -> list[int] | None:
    """Return the hours of the partitions that an input asks for; None for all of its table."""
    step = context.step_context
    asset = step.job_def.asset_layer.get_assets_def_for_node(step.node_handle)
    mapping = asset.get_partition_mapping_for_dep(context.asset_key) if asset else None
    has_partitions = asset is not None and asset.partitions_def is not None
    if isinstance(mapping, dg.AllPartitionMapping) or (mapping is None and not has_partitions):
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
