"""`lake_assets.IncrementalTable` and `lake_assets.SourceTable`: components of tables that YAML and SQL declare.

All components in the folder of definitions are one pipeline: each shows its own tables, and the first one, by file,
also what the pipeline has as a whole: maintenance, freshness, alerts and comparisons. `incremental/sql` reads the same
files without Dagster. May import the engines, the stages, `resources` and what they may import.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import BaseModel

from lake_assets.base.extras import installed
from lake_assets.connections.addresses import dagster_folder, kafka_address
from lake_assets.connections.catalog import open_catalog
from lake_assets.engagement.dagster.graph import engagement_key
from lake_assets.engagement.lake import STREAMS
from lake_assets.engagement.lakes import configured_lakes
from lake_assets.errors import UsageError
from lake_assets.incremental.dagster.assets import incremental_definitions, sensor_definitions
from lake_assets.incremental.dagster.maintenance import maintenance_definitions
from lake_assets.incremental.dagster.sensors import SensorTiming
from lake_assets.incremental.dagster.watch import verification_definitions, watch_definitions
from lake_assets.incremental.declaration import IDENTIFIER, Pipeline
from lake_assets.incremental.engine.engine import utc_now
from lake_assets.incremental.from_settings import declared_pipeline, maintenance_policy, with_delay_of
from lake_assets.incremental.operations.alerts import Webhook
from lake_assets.incremental.operations.health import OF_LAKES, OF_LANDING, OF_SERVING, Problem
from lake_assets.incremental.sql.files import (
    SourceTableAttributes,
    StoredColumns,
    TableAttributes,
    columns_file,
    fingerprint,
    write_columns,
)
from lake_assets.incremental.sql.folder import open_folder
from lake_assets.incremental.sql.lineage import column_lineage
from lake_assets.landing.erasure import erases_landed
from lake_assets.landing.messages import feeds
from lake_assets.resources import lake_resources
from lake_assets.settings import Settings, settings


def watching_definitions(pipeline: Pipeline, settings: Settings) -> dg.Definitions:
    """Return the maintenance of all tables of a pipeline, their checks, their alerts, and the comparisons.

    Args:
        pipeline: Declares raw tables and targets.
        settings: Schedules, limits and the address of alerts.
    """
    webhook = Webhook(settings.alert_webhook) if settings.alert_webhook else None
    return dg.Definitions.merge(
        maintenance_definitions(
            pipeline,
            clock=utc_now,
            policy=maintenance_policy(settings),
            cron=settings.maintenance_cron,
            folder=dagster_folder(settings.home),
            days=settings.run_days,
            elsewhere=erases_landed(settings, pipeline, utc_now),
        ),
        watch_definitions(
            pipeline,
            clock=utc_now,
            webhook=webhook,
            elsewhere={
                OF_LANDING: partial(_landing_problems, pipeline, settings),
                OF_SERVING: partial(_push_problems, pipeline, settings),
                OF_LAKES: partial(_lake_problems, settings),
            },
            assets=_lake_streams(settings),
        ),
        verification_definitions(
            pipeline,
            clock=utc_now,
            hours=settings.verify_hours,
            cron=settings.verify_cron,
        ),
    )


def _lake_streams(settings: Settings) -> list[dg.AssetKey]:
    """Return the assets of the streams of the configured lakes."""
    if not installed("landing"):
        return []
    return [engagement_key(lake, name) for lake in configured_lakes(settings) for name in STREAMS]


def _lake_problems(settings: Settings, instance: dg.DagsterInstance) -> list[Problem]:
    """Return what is wrong with the streams of the configured lakes, and the turns that were refused."""
    if not installed("landing"):
        return []
    from lake_assets.engagement.dagster.checks import refused_turns
    from lake_assets.engagement.monitoring import lake_problems

    return [*lake_problems(settings, utc_now()), *refused_turns(instance, configured_lakes(settings))]


def _landing_problems(pipeline: Pipeline, settings: Settings, _: dg.DagsterInstance) -> list[Problem]:
    """Return what is wrong with landing now."""
    declared = feeds(pipeline, prefix=settings.landing_prefix, max_bytes=settings.landing_message_bytes)
    if not declared:
        return []
    from lake_assets.landing.problems import problems

    return problems(settings, declared, now=utc_now(), catalog=open_catalog(settings), servers=kafka_address(settings))


def _push_problems(pipeline: Pipeline, settings: Settings, _: dg.DagsterInstance) -> list[Problem]:
    """Return the served tables whose last push failed."""
    if not settings.has_segments and not any(target.served for target in pipeline.targets):
        return []
    from lake_assets.serving.served_tables import push_problems

    return push_problems(settings)


def timing_of(settings: Settings) -> SensorTiming:
    """Return how often sensors are evaluated, and how long targets wait for each other."""
    return SensorTiming(tick_seconds=settings.tick_seconds, settle_seconds=settings.settle_seconds)


TABLE = """\
type: lake_assets.IncrementalTable
attributes:
  table: core.{name}
  mode: stateless
  sources:
    - table: raw.{stem}s
      time_column: event_ts
      key: {stem}_id
      rules: {{amount is negative: amount < 0}}
      columns: {{{stem}_id: string, account_id: string, amount: long, event_ts: timestamptz}}
  key: {stem}_id
  time_column: happened_at
  sql: {name}.sql
  audits: [source_target_counts, no_missing_events, unique_key, {{not_null: [account_id]}}]
"""
QUERY = """\
SELECT {stem}_id, account_id, amount, event_ts AS happened_at
FROM {stem}s
"""
SOURCE = """\
type: lake_assets.SourceTable
attributes:
  table: raw.{name}
  columns: {{event_id: string, account_id: string, event_ts: timestamptz}}
  time_column: event_ts
"""


class IncrementalTableScaffolder(dg.Scaffolder[Any]):
    """Writes the declaration of a stateless table, its query, and the columns of the query."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write the files into the folder of the request."""
        write_table(Path(request.target_path))


class SourceTableScaffolder(dg.Scaffolder[Any]):
    """Writes the declaration of a raw table."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write the file into the folder of the request."""
        folder = Path(request.target_path)
        _write(folder / "defs.yaml", SOURCE.format(name=_checked_name(folder)))


def write_table(folder: Path) -> None:
    """Write the files of a table into a folder that has its name.

    Raises:
        UsageError: The folder has a name that a table cannot have.
    """
    name = _checked_name(folder)
    stem = name.removesuffix("_fact").removesuffix("_dim")
    _write(folder / f"{name}.sql", QUERY.format(name=name, stem=stem))
    _write(folder / "defs.yaml", TABLE.format(name=name, stem=stem))
    declared = open_folder(folder)
    (table,) = declared.tables
    schemas = declared.raw_schemas()
    columns = {f"{stem}_id": "string", "account_id": "string", "amount": "long", "happened_at": "timestamptz"}
    source = f"{stem}s"
    raw = f"raw.{source}"
    lineage = column_lineage(table.sql.text, tuple(columns), {source: raw}, {source: schemas[raw]})
    stored = StoredColumns(
        fingerprint=fingerprint(table.sql, table.attributes, table.source_schemas(schemas)),
        columns=columns,
        lineage=lineage.sources,
    )
    write_columns(columns_file(table.declaration), stored)


def _checked_name(folder: Path) -> str:
    if not IDENTIFIER.fullmatch(folder.name):
        raise UsageError(
            f"The table would be called {folder.name!r}.",
            remedy="Use lower-case letters, digits and _, a letter first.",
        )
    return folder.name


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


class _Table(dg.Component):
    """A table that a YAML file declares. `model` checks its attributes; the folder of all files is read as a whole."""

    model: type[TableAttributes] | type[SourceTableAttributes]

    def __init__(self, table: str) -> None:
        self.table = table

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """Return the class of the attributes."""
        return cls.model

    @classmethod
    def load(cls, attributes: Any, context: dg.ComponentLoadContext) -> _Table:
        """Return the component of a YAML document."""
        return cls(attributes.table)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions of the table, and with the first table of the folder those of the pipeline."""
        return table_definitions(Path(context.defs_module_path), self.table)


@dg.scaffold_with(IncrementalTableScaffolder)
class IncrementalTable(_Table):
    """A fact or dimension table that a SQL query builds, and that stays right while its sources come late."""

    model = TableAttributes

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Return what Dagster shows of this component."""
        return dg.ComponentTypeSpec(description=cls.__doc__, produces=["asset", "asset_check", "sensor"])


@dg.scaffold_with(SourceTableScaffolder)
class SourceTable(_Table):
    """A raw table that another program writes, and that queries of `lake_assets.IncrementalTable` read."""

    model = SourceTableAttributes

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Return what Dagster shows of this component."""
        return dg.ComponentTypeSpec(description=cls.__doc__, produces=["asset"])


def table_definitions(folder: Path, table: str) -> dg.Definitions:
    """Return the definitions of one declaration of a folder.

    Args:
        folder: The folder of all YAML files of the pipeline.
        table: The table that the declaration declares.
    """
    chosen = settings()
    pipeline = with_delay_of(chosen, declared_pipeline(folder, start=chosen.start))
    pipeline.refuse_broken(table)
    declared = open_folder(folder)
    timing = timing_of(chosen)
    own = incremental_definitions(
        pipeline, clock=utc_now, end=chosen.end, timing=timing, tables=declared.shown_with(table)
    )
    if declared.first_table != table:
        return own
    return dg.Definitions.merge(
        own,
        sensor_definitions(pipeline, clock=utc_now, end=chosen.end, timing=timing),
        watching_definitions(pipeline, chosen),
        dg.Definitions(resources=lake_resources(chosen)),
    )
