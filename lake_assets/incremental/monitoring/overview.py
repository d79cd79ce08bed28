"""All that the tables tell about lateness, sessions and what catching up cost: read with pyiceberg alone, no Spark.

Of raw tables two columns are read, some data files at a time; of targets metadata; of `etl.session` and
`etl.quarantine` the rows that are asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import DataScan, FileScanTask

from lake_assets.incremental.declaration import LANDED, Pipeline, RawTable, Target
from lake_assets.incremental.execution.session_log import SessionStore
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.partitions import rows_by_hour
from lake_assets.incremental.metadata.state_tables import QUARANTINE
from lake_assets.incremental.monitoring.session_costs import Saving, SessionCost, costs, saving
from lake_assets.incremental.planning.lateness import LOOKBACK_HOURS, ArrivalCounter, Arrivals
from lake_assets.incremental.planning.session import HeldHour

ROWS_AT_ONCE = 2_000_000
"""Data files are read in portions of about so many rows: pyiceberg holds all files of one reading in memory."""


@dataclass(frozen=True)
class Standing:
    """How far one table goes. complete_through: the last hour, inclusive; None while nobody has said."""

    table: str
    kind: str
    complete_through: int | None


@dataclass(frozen=True)
class SetAside:
    """Rows in quarantine, of one target, source and reason."""

    source: str
    reason: str
    rows: int


@dataclass(frozen=True)
class TargetOverview:
    """One target: its sessions, oldest first; what they cost and saved; hours not built; rows set aside.

    held: hours that audits hold back.
    """

    table: str
    sessions: tuple[SessionCost, ...]
    saving: Saving
    pending: tuple[int, ...]
    skipped: tuple[int, ...]
    quarantine: tuple[SetAside, ...]
    held: tuple[HeldHour, ...] = ()


@dataclass(frozen=True)
class Overview:
    """A pipeline as its tables tell it. lookback_hours: of the fixed lookback that sessions are compared with."""

    made_at: datetime
    lookback_hours: int
    standings: tuple[Standing, ...]
    arrivals: tuple[Arrivals, ...]
    targets: tuple[TargetOverview, ...]


def overview(catalog: Catalog, pipeline: Pipeline, *, now: datetime) -> Overview:
    """Read it all. Raises `TableMissing` for a table that is not there yet, `ColumnMismatch`."""
    set_aside = _quarantine(catalog)
    return Overview(
        made_at=now,
        lookback_hours=LOOKBACK_HOURS,
        standings=tuple(_standings(catalog, pipeline)),
        arrivals=tuple(arrivals(catalog, raw, start=pipeline.start_hour) for raw in pipeline.raw),
        targets=tuple(
            _target(catalog, target, pipeline.start_hour, set_aside.get(target.table, ()))
            for target in pipeline.in_order()
        ),
    )


def arrivals(catalog: Catalog, raw: RawTable, *, start: int) -> Arrivals:
    """How the rows of a raw table came. start: the pipeline's first event hour."""
    table = tables.load(catalog, raw.table)
    tables.check_columns(table, raw.table, {raw.time_column: "timestamptz", LANDED: "timestamptz"})
    counter = ArrivalCounter(raw.table, raw.time_column, start, LOOKBACK_HOURS)
    for batch in _batches(table.scan(selected_fields=(raw.time_column, LANDED))):
        counter.add(batch)
    return counter.result()


def _batches(scan: DataScan) -> Iterator[pa.RecordBatch]:
    from pyiceberg.io.pyarrow import ArrowScan

    for tasks in _portions(scan.plan_files()):
        reader = ArrowScan(scan.table_metadata, scan.io, scan.projection(), scan.row_filter, scan.case_sensitive)
        yield from reader.to_record_batches(tasks)


def _portions(tasks: Iterable[FileScanTask]) -> Iterator[list[FileScanTask]]:
    portion: list[FileScanTask] = []
    rows = 0
    for task in tasks:
        portion.append(task)
        rows += task.file.record_count
        if rows >= ROWS_AT_ONCE:
            yield portion
            portion, rows = [], 0
    if portion:
        yield portion


def _standings(catalog: Catalog, pipeline: Pipeline) -> Iterator[Standing]:
    kinds = [(raw.table, "raw") for raw in pipeline.raw]
    kinds += [(target.table, type(target.mode).__name__.lower()) for target in pipeline.in_order()]
    for name, kind in kinds:
        yield Standing(name, kind, tables.complete_through(tables.load(catalog, name), name))


def _target(catalog: Catalog, target: Target, start: int, set_aside: tuple[SetAside, ...]) -> TargetOverview:
    store = SessionStore(catalog)
    committed = store.state(target.table).committed
    found = costs(
        store.history(target.table),
        rows_by_hour=rows_by_hour(tables.load(catalog, target.table), target.time_column),
        start=start,
        hours=LOOKBACK_HOURS,
        grain=target.grain,
    )
    return TargetOverview(
        table=target.table,
        sessions=found,
        saving=saving(found),
        pending=tuple(sorted(committed.pending)),
        skipped=tuple(sorted(committed.skipped)),
        quarantine=set_aside,
        held=committed.held,
    )


def _quarantine(catalog: Catalog) -> dict[str, tuple[SetAside, ...]]:
    """Target → its rows in quarantine by source and reason, most first."""
    counts: Counter[tuple[str, str, str]] = Counter()
    scan = tables.load(catalog, QUARANTINE).scan(selected_fields=("target", "source", "reason"))
    for batch in _batches(scan):
        for row in (
            pa.Table.from_batches([batch]).group_by(batch.schema.names).aggregate([([], "count_all")]).to_pylist()
        ):
            counts[row["target"], row["source"], row["reason"]] += row["count_all"]
    found: dict[str, tuple[SetAside, ...]] = {}
    for (target, source, reason), rows in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        found[target] = (*found.get(target, ()), SetAside(source, reason, rows))
    return found
