"""The components of tables that are declared in YAML and SQL.

All components in the folder of definitions are one pipeline: each shows its own tables, and the first one, by file,
also what the pipeline has as a whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import BaseModel

from lake_assets.components.dagster.pipeline_definitions import timing_of, watching_definitions
from lake_assets.components.dagster.scaffolding import IncrementalTableScaffolder, SourceTableScaffolder
from lake_assets.incremental.dagster.assets import incremental_definitions, sensor_definitions
from lake_assets.incremental.engine.engine import utc_now
from lake_assets.incremental.from_settings import declared_pipeline, with_delay_of
from lake_assets.incremental.sql.files import SourceTableAttributes, TableAttributes
from lake_assets.incremental.sql.folder import open_folder
from lake_assets.resources import lake_resources
from lake_assets.settings import settings


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
