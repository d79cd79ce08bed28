"""Where served tables come from: the lake's own tables, Iceberg's and Delta's, read without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyarrow import ArrowException
from pyiceberg.expressions import And, GreaterThanOrEqual, LessThan

from lake_assets.base.hours import hour_key, hour_start
from lake_assets.errors import TableMissing, UsageError
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.partitions import rows_between, rows_by_hour

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from lake_assets.incremental.declaration import Pipeline


@dataclass(frozen=True)
class Reading:
    """What is to be pushed. of: which rows these are, in words. expected: how many, as the table's metadata tell.

    head: of the source as they were read, as `Source.head` tells it; None if they have no source of the lake.
    """

    rows: pa.RecordBatchReader
    of: str
    expected: int
    head: str | None = None


class Source(Protocol):
    """A table of the lake that is served."""

    @property
    def name(self) -> str:
        """Of the served table."""

    @property
    def table(self) -> str:
        """Of the lake, its words with dots between: core.account_state_dim."""

    def head(self, catalog: Catalog) -> str | None:
        """Another one when there is something else to push; None while there is nothing. Reads metadata alone."""

    def read(self, catalog: Catalog) -> Reading:
        """The rows as they are now. `TableMissing`, `UsageError` while there is nothing to push."""


@dataclass(frozen=True)
class NewestHour:
    """The newest complete hour of an Iceberg table that holds all rows in each hour."""

    name: str
    table: str
    time_column: str

    def head(self, catalog: Catalog) -> str | None:
        try:
            return self._head(tables.load(catalog, self.table))
        except TableMissing:
            return None

    def read(self, catalog: Catalog) -> Reading:
        found = tables.load(catalog, self.table)
        through = tables.complete_through(found, self.table)
        hours = [hour for hour in rows_by_hour(found, self.time_column) if through is not None and hour <= through]
        if (head := self._head(found)) is None or not hours:
            raise UsageError(f"{self.table} has no complete hour yet.", remedy="Push it when a session has published.")
        newest = max(hours)
        first, after = (hour_start(hour).isoformat() for hour in (newest, newest + 1))
        not_before = GreaterThanOrEqual(self.time_column, first)  # type: ignore[call-arg, arg-type]
        within = And(not_before, LessThan(self.time_column, after))  # type: ignore[call-arg, arg-type]
        rows = found.scan(row_filter=within).to_arrow_batch_reader()
        return Reading(rows, hour_key(newest), rows_between(found, self.time_column, newest, newest), head)

    def _head(self, found: Table) -> str | None:
        """Complete-through moves also without a snapshot."""
        snapshot, through = found.metadata.current_snapshot_id, tables.complete_through(found, self.table)
        return None if snapshot is None or through is None else f"{snapshot}@{hour_key(through)}"


@dataclass(frozen=True)
class WholeDelta:
    """All rows of a Delta table. location: its address."""

    name: str
    table: str
    location: str

    def head(self, catalog: Catalog) -> str | None:
        found = self._opened()
        return str(found.version()) if found and found.count() else None

    def read(self, catalog: Catalog) -> Reading:
        if (found := self._opened()) is None:
            raise UsageError(
                f"{self.table} is not there.", remedy="Create its lake: `lake engagement init LAKE --org ORG`."
            )
        rows, version = found.to_pyarrow_dataset().scanner().to_reader(), str(found.version())
        return Reading(rows, f"version {version}", found.count(), version)

    def _opened(self) -> DeltaTable | None:
        try:
            return DeltaTable(self.location)
        except TableNotFoundError:
            return None


def from_parquet(file: Path) -> pa.RecordBatchReader:
    """The rows of a Parquet file; `UsageError` if it is none."""
    try:
        opened = pq.ParquetFile(file)
    except (OSError, ArrowException) as error:
        raise UsageError(f"{file} cannot be read as Parquet: {error}.", remedy="Name a Parquet file.") from error
    return pa.RecordBatchReader.from_batches(opened.schema_arrow, opened.iter_batches())


ACCOUNT_STATE = NewestHour("account_state", "core.account_state_dim", "state_hour")


def pipeline_sources(pipeline: Pipeline) -> list[Source]:
    """Those tables of a pipeline that are served."""
    built = {target.table for target in pipeline.targets}
    return [source for source in (ACCOUNT_STATE,) if source.table in built]


def metrics_sources(locations: Mapping[str, str]) -> list[Source]:
    """The metrics of engagement lakes. locations: lake → the address of its metrics."""
    return [
        WholeDelta(f"{lake}_metrics", f"engagement.{lake}.engagement_metrics", location)
        for lake, location in locations.items()
    ]
