"""The engagement lakes in Dagster: keys and groups, their tables for assets of users, and the resource of steps and
sensors.

    kafka/<stream> → <stream> → engagement → notification → engagement_metrics → serving

Each lake is a group of its own, to which its maintenance belongs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa
from dagster import TimeWindow
from dagster_deltalake import DeltaLakeIOManager, DeltaTableResource, LocalConfig
from dagster_deltalake.handler import DeltalakeBaseArrowTypeHandler
from dagster_deltalake.io_manager import TableConnection
from deltalake import DeltaTable, write_deltalake

from lake_assets.connections.addresses import kafka_address, required, zookeeper_address
from lake_assets.engagement.delta_log import is_table, read_rows, sql_literal
from lake_assets.engagement.lake import STREAMS, EngagementLake, StreamName
from lake_assets.engagement.lakes import configured_lakes
from lake_assets.engagement.tables import (
    CHECKPOINT,
    ENGAGEMENT,
    ENGAGEMENT_METRICS,
    NOTIFICATION,
    LakeTables,
    folder,
    open_tables,
    spark_tables,
)
from lake_assets.errors import UsageError
from lake_assets.incremental.dagster.lake_resource import ConfiguredBySettings
from lake_assets.settings import Settings

IO_MANAGER = "lake_assets_delta_io_manager"
GIVEN = (ENGAGEMENT, NOTIFICATION, ENGAGEMENT_METRICS)
"""Tables of a lake that assets of users take as inputs."""


class _Tables(DeltalakeBaseArrowTypeHandler[Any]):
    """Reads and writes whole tables or partitions, as pandas or Arrow.

    dagster-deltalake's own way reads no deletion vectors and not several partitions, and warns of statistics.
    """

    @property
    def supported_types(self) -> Sequence[type[object]]:
        from pandas import DataFrame

        return [DataFrame, pa.Table]

    def from_arrow(self, obj: Any, target_type: type) -> Any:
        return obj if target_type is pa.Table else obj.to_pandas()

    def to_arrow(self, obj: Any) -> tuple[Any, dict[str, Any]]:
        return (obj if isinstance(obj, pa.Table) else pa.Table.from_pandas(obj, preserve_index=False)), {}

    def load_input(self, context: dg.InputContext, table_slice: Any, connection: TableConnection) -> Any:
        if not is_table(connection.table_uri):
            raise UsageError(
                f"The input {context.name!r} loads {table_slice.schema}.{table_slice.table}, which has no table yet.",
                remedy="Materialize the asset that writes it; `lake engagement init LAKE` creates those of a lake.",
            )
        wanted = []
        if context.has_asset_partitions and not _are_all(context):
            wanted = [(name, "IN", keys) for name, keys in _partitions(table_slice).items()]
        rows = read_rows(DeltaTable(connection.table_uri), table_slice.columns or (), wanted)
        return self.from_arrow(rows, context.dagster_type.typing_type)

    def handle_output(self, context: dg.OutputContext, table_slice: Any, obj: Any, connection: TableConnection) -> None:
        if is_table(f"{connection.table_uri.rpartition('/')[0]}/{CHECKPOINT}"):
            raise UsageError(
                f"The output {context.name!r} would overwrite {table_slice.table} of the lake {table_slice.schema}.",
                remedy="Give the asset another key. Its last two parts are the folder and the name of its table.",
            )
        rows, _ = self.to_arrow(obj)
        partitions = _partitions(table_slice)
        is_part = bool(partitions) and is_table(connection.table_uri)
        where = " AND ".join(f'"{name}" IN {sql_literal(keys)}' for name, keys in partitions.items())
        write_deltalake(
            connection.table_uri,
            rows,
            mode="overwrite",
            schema_mode=None if is_part else "overwrite",
            partition_by=[*partitions] or None,
            predicate=where if is_part else None,
        )
        columns = [dg.TableColumn(field.name, str(field.type)) for field in rows.schema]
        context.add_output_metadata(
            {
                "dagster/row_count": rows.num_rows,
                "dagster/uri": connection.table_uri,
                "dagster/column_schema": dg.TableSchema(columns),
            }
        )


class DeltaTablesIOManager(DeltaLakeIOManager):
    """Loads tables of engagement lakes as inputs, and keeps assets of users as Delta tables beside them.

    An asset with the key `…/folder/name` is the table `folder/name` of the lakes' folder, so `engagement/LAKE/TABLE` is
    a table of a lake, which no output replaces. The annotation chooses the type: `pandas.DataFrame`, also without one,
    or `pyarrow.Table`. Metadata `partition_expr` of a partitioned asset names the column of its partitions.
    """

    @staticmethod
    def type_handlers() -> Sequence[Any]:
        return [_Tables()]

    @staticmethod
    def default_load_type() -> type:
        from pandas import DataFrame

        return DataFrame


def delta_resources(settings: Settings) -> dict[str, Any]:
    """Return the I/O manager `IO_MANAGER`, and a DeltaTableResource for each table: `lake_assets_<lake>_<table>`."""
    here = LocalConfig()
    found: dict[str, Any] = {IO_MANAGER: DeltaTablesIOManager(root_uri=folder(settings), storage_options=here)}
    for lake in configured_lakes(settings):
        for table in GIVEN:
            url = open_tables(settings, lake).location(table)
            found[f"lake_assets_{lake.name}_{table}"] = DeltaTableResource(url=url, storage_options=here)
    return found


def _are_all(context: dg.InputContext) -> bool:
    """Return whether an input has all partitions of its asset, then also those that Dagster does not know yet."""
    store = context.step_context.instance
    known = context.asset_partitions_def.get_partition_keys(dynamic_partitions_store=store)
    return set(known) == set(context.asset_partition_keys)


def _partitions(table_slice: Any) -> dict[str, list[str]]:
    """Return column → keys of the partitions that are read or written; empty for the whole table."""
    found = {}
    for each in table_slice.partition_dimensions or ():
        if isinstance(each.partitions, TimeWindow):
            raise UsageError(
                f"{table_slice.schema}.{table_slice.table} has times as partitions, which cannot be selected here.",
                remedy="Give the asset static or dynamic partitions: texts of the column that `partition_expr` names.",
            )
        found[each.partition_expr] = [*each.partitions]
    return found


def table_metadata(lake: EngagementLake, table: str, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return what Dagster shows of a table: its name, columns and kind."""
    return {
        "dagster/table_name": f"{lake.name}.{table}",
        "dagster/column_schema": dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns.items()]),
        "dagster/storage_kind": "delta",
    }


PREFIX = "engagement"


def engagement_key(lake: EngagementLake, *name: str) -> dg.AssetKey:
    """Return the key of a part of a lake: engagement/<lake>/<name>."""
    return dg.AssetKey([PREFIX, lake.name, *name])


def topic_key(lake: EngagementLake, stream: StreamName) -> dg.AssetKey:
    """Return the key of the topic that a stream reads."""
    return engagement_key(lake, "kafka", stream)


def group_of(lake: EngagementLake) -> str:
    """Return the group of a lake."""
    return f"{PREFIX}_{lake.name}"


def external_specs(lake: EngagementLake) -> list[dg.AssetSpec]:
    """Return the topics and tables of a lake, each with what it comes from."""
    specs = []
    for stream in STREAMS:
        topic = lake.topic(stream)
        told = f"The Kafka topic {topic}, which the {stream} of {lake.name} reads. Other programs send its messages."
        specs.append(
            dg.AssetSpec(topic_key(lake, stream), group_name=group_of(lake), kinds={"kafka"}, description=told)
        )
    streams = [engagement_key(lake, stream) for stream in STREAMS]
    rows = engagement_key(lake, ENGAGEMENT)
    specs.append(_table(lake, ENGAGEMENT, streams, "The rows that the streams append, change and delete."))
    specs.append(_table(lake, NOTIFICATION, [rows], "Which orgs each data commit changed. Readers poll it."))
    return specs


def _table(lake: EngagementLake, name: str, deps: list[dg.AssetKey], description: str) -> dg.AssetSpec:
    (columns,) = (schema.columns for schema in spark_tables(lake) if schema.name == name)
    return dg.AssetSpec(
        engagement_key(lake, name),
        deps=deps,
        group_name=group_of(lake),
        kinds={"delta"},
        description=description,
        metadata=table_metadata(lake, name, columns),
    ).with_io_manager_key(IO_MANAGER)


class EngagementResource(ConfiguredBySettings, dg.ConfigurableResource[Any]):
    """The tables and services of the engagement lakes, according to the settings of this process."""

    def tables(self, lake: EngagementLake) -> LakeTables:
        """Return the tables of a lake."""
        return open_tables(self.settings(), lake)

    def kafka_servers(self) -> str:
        """Return the address of Kafka.

        Raises:
            ServiceError: No Kafka is named, and none runs for this data directory.
        """
        return required(kafka_address(self.settings()), "Kafka")

    def zookeeper_hosts(self) -> str:
        """Return the address of ZooKeeper.

        Raises:
            ServiceError: No ZooKeeper is named, and none runs for this data directory.
        """
        return required(zookeeper_address(self.settings()), "ZooKeeper")
