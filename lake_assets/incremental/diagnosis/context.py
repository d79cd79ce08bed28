"""What the checks of a home share: its settings, its pipeline and a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from pyiceberg.catalog import Catalog

from lake_assets.connections.catalog import connect, is_blank, table_names
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.diagnosis.forget import LOGS
from lake_assets.incremental.maintenance.maintainer import ENGINE_TABLES
from lake_assets.incremental.maintenance.snapshot_references import SnapshotReferences, read_references
from lake_assets.incremental.metadata.declared_columns import Declared, declared_columns
from lake_assets.settings import Settings


@dataclass(frozen=True)
class Context:
    """A home to be checked.

    Attributes:
        settings: Its settings.
        pipeline: Its pipeline; None if it cannot be loaded.
        clock: Returns the present moment.
    """

    settings: Settings
    pipeline: Pipeline | None
    clock: Callable[[], datetime]

    @cached_property
    def catalog(self) -> Catalog:
        """The catalog, whether or not it has the tables of the home."""
        return connect(self.settings)

    @cached_property
    def present(self) -> frozenset[str]:
        """The tables of the catalog. A blank one is not connected to, because that would write it."""
        return frozenset() if is_blank(self.settings) else table_names(self.catalog)

    @cached_property
    def references(self) -> SnapshotReferences | None:
        """The newest rows of the session log; None if it is missing or cannot be read, which its check reports."""
        try:
            return read_references(self.catalog) if set(LOGS) <= self.present else None
        except Exception:  # whatever a damaged file makes its reader raise
            return None

    @property
    def targets(self) -> frozenset[str]:
        """The declared targets."""
        return frozenset(target.table for target in self.pipeline.targets) if self.pipeline else frozenset()

    @cached_property
    def columns(self) -> Mapping[str, Declared]:
        """Table → its declared columns."""
        return declared_columns(self.pipeline) if self.pipeline else {}

    @property
    def declared(self) -> frozenset[str]:
        """The tables that `lake init` creates."""
        raw = {raw.table for raw in self.pipeline.raw} if self.pipeline else set()
        return self.targets.union(raw, ENGINE_TABLES)
