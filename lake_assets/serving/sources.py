"""Where served tables come from: the lake's own tables, read by pyiceberg. No Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ArrowException
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import And, GreaterThanOrEqual, LessThan

from lake_assets.errors import UsageError
from lake_assets.incremental import tables
from lake_assets.incremental.erasures import ERASURE
from lake_assets.incremental.hours import hour_start
from lake_assets.incremental.partitions import rows_between, rows_by_hour

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


@dataclass(frozen=True)
class Source:
    """What is pushed as a served table: the newest complete hour of one of the lake, where each has all rows."""

    name: str
    table: str
    time_column: str

    def read(self, catalog: Catalog) -> tuple[pa.RecordBatchReader, int]:
        """The rows, and the hour that they are of. `TableMissing`; `UsageError` while no hour is complete."""
        table = tables.load(catalog, self.table)
        through = tables.complete_through(table, self.table)
        hours = [hour for hour in rows_by_hour(table, self.time_column) if through is not None and hour <= through]
        if not hours:
            raise UsageError(f"{self.table} has no complete hour yet.", remedy="Push it when a session has published.")
        first, after = (hour_start(hour).isoformat() for hour in (max(hours), max(hours) + 1))
        not_before = GreaterThanOrEqual(self.time_column, first)  # type: ignore[call-arg, arg-type]
        within = And(not_before, LessThan(self.time_column, after))  # type: ignore[call-arg, arg-type]
        return table.scan(row_filter=within).to_arrow_batch_reader(), max(hours)

    def count(self, catalog: Catalog, hour: int) -> int:
        """The rows of an hour, as manifests tell."""
        return rows_between(tables.load(catalog, self.table), self.time_column, hour, hour)


def from_parquet(file: Path) -> pa.RecordBatchReader:
    """The rows of a Parquet file; `UsageError` if it is none."""
    try:
        opened = pq.ParquetFile(file)
    except (OSError, ArrowException) as error:
        raise UsageError(f"{file} cannot be read as Parquet: {error}.", remedy="Name a Parquet file.") from error
    return pa.RecordBatchReader.from_batches(opened.schema_arrow, opened.iter_batches())


def last_erasure(catalog: Catalog) -> datetime | None:
    """When an erasure was recorded last, asked for or done; None if there never was one."""
    try:
        table = catalog.load_table(ERASURE)
    except NoSuchTableError:
        return None
    times = table.scan(selected_fields=("recorded_at",)).to_arrow()["recorded_at"].to_pylist()
    return max(times, default=None)


ACCOUNT_STATE = Source("account_state", "core.account_state_dim", "state_hour")
SOURCES: Mapping[str, Source] = {source.name: source for source in (ACCOUNT_STATE,)}


def source_named(name: str) -> Source:
    """The source of a served table; `UsageError` if there is none."""
    if name not in SOURCES:
        raise UsageError(
            f"No table of the lake is served as {name!r}.", remedy=f"Name {', '.join(SOURCES)}, or push a --file."
        )
    return SOURCES[name]
