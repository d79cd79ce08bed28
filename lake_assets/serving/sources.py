"""Where served tables come from: the lake's own tables, read by pyiceberg. No Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from lake_assets.incremental.partitions import rows_by_hour

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


@dataclass(frozen=True)
class Source:
    """What is pushed as a served table. table: of the lake. read: its rows, and the hour that they are of."""

    name: str
    table: str
    read: Callable[[Catalog], tuple[pa.RecordBatchReader, int]]


def newest_hour(catalog: Catalog, name: str, time_column: str) -> tuple[pa.RecordBatchReader, int]:
    """The rows of the newest complete hour of a table that holds all of them for every hour; and that hour.

    `TableMissing`; `UsageError` while no hour is complete.
    """
    table = tables.load(catalog, name)
    through = tables.complete_through(table, name)
    hours = [hour for hour in rows_by_hour(table, time_column) if through is not None and hour <= through]
    if not hours:
        raise UsageError(f"{name} has no complete hour yet.", remedy="Push it when its first session has published.")
    first, after = (hour_start(hour).isoformat() for hour in (max(hours), max(hours) + 1))
    not_before = GreaterThanOrEqual(time_column, first)  # type: ignore[call-arg, arg-type]
    within = And(not_before, LessThan(time_column, after))  # type: ignore[call-arg, arg-type]
    return table.scan(row_filter=within).to_arrow_batch_reader(), max(hours)


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


ACCOUNT_STATE = Source(
    "account_state",
    "core.account_state_dim",
    lambda catalog: newest_hour(catalog, "core.account_state_dim", "state_hour"),
)
SOURCES: Mapping[str, Source] = {source.name: source for source in (ACCOUNT_STATE,)}


def source_named(name: str) -> Source:
    """The source of a served table; `UsageError` if there is none."""
    if name not in SOURCES:
        raise UsageError(
            f"No table of the lake is served as {name!r}.", remedy=f"Name {', '.join(SOURCES)}, or push a --file."
        )
    return SOURCES[name]
