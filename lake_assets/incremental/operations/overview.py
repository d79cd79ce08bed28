"""What `lake report` shows of the tables: how far each is complete, late rows, sessions and quarantine. Without Spark.

Of raw tables, two columns are read, a group of data files at a time; of targets, metadata; of `etl.session` and
`etl.quarantine`, the needed columns and rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.catalog import Catalog

from lake_assets.base.described import describe
from lake_assets.errors import TableMissing
from lake_assets.incremental.declaration import LANDED, Pipeline, RawTable, Target
from lake_assets.incremental.declaration.pipeline import column_sources
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.arrivals import Arrivals, arrivals
from lake_assets.incremental.engine.columns import check_time_columns
from lake_assets.incremental.engine.iceberg import QUARANTINE, rows_of_files
from lake_assets.incremental.engine.model import HeldHour
from lake_assets.incremental.engine.planner import source_complete_through
from lake_assets.incremental.engine.session_log import SessionLog, SessionRecord
from lake_assets.incremental.engine.state import State, read_state

if TYPE_CHECKING:
    from lake_assets.incremental.engine.engine import Progress


SESSIONS = 1000
"""How many of a target's newest sessions are shown: those of some weeks."""


@dataclass(frozen=True)
class TableProgress:
    """How far one table is complete.

    Attributes:
        table: Its name.
        kind: `raw`, or the mode of a target in lower case.
        complete_through: Last complete hour, inclusive; None if nothing has declared one.
        problem: Why its rows or its progress cannot be read; None if they can.
        remedy: What to do about the problem.
    """

    table: str
    kind: str
    complete_through: int | None
    problem: str | None = None
    remedy: str = ""


@dataclass(frozen=True)
class QuarantinedRows:
    """Number of rows of one source in quarantine, by reason."""

    source: str
    reason: str
    rows: int


@dataclass(frozen=True)
class ColumnOverview:
    """One column of a target, as declared.

    Attributes:
        name: Its name.
        iceberg_type: Its type.
        description: What is in it; empty if the declaration does not say.
        sources: The source columns that it comes from, each `namespace.name.column`.
    """

    name: str
    iceberg_type: str
    description: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class TargetOverview:
    """One target.

    Attributes:
        table: Its name.
        sessions: Its newest sessions, oldest first.
        pending: Hours that changed and are not rebuilt yet.
        skipped: Hours beyond the catch-up threshold that are not built.
        quarantine: Rows in quarantine, most first.
        held: Hours that audits hold back.
        problem: In which way it is not as its sessions left it, or why it cannot be read; None if all is well.
        columns: Its columns, in order.
        remedy: What to do about the problem.
    """

    table: str
    sessions: tuple[SessionRecord, ...]
    pending: tuple[int, ...]
    skipped: tuple[int, ...]
    quarantine: tuple[QuarantinedRows, ...]
    held: tuple[HeldHour, ...] = ()
    problem: str | None = None
    columns: tuple[ColumnOverview, ...] = ()
    remedy: str = ""


@dataclass(frozen=True)
class Overview:
    """A pipeline, according to its tables.

    Attributes:
        made_at: When the overview was made.
        standings: How far each table is complete.
        arrivals: When the rows of each raw table arrived; without the raw tables that have a problem or no `landed_at`.
        targets: The targets, upstream ones first.
    """

    made_at: datetime
    standings: tuple[TableProgress, ...]
    arrivals: tuple[Arrivals, ...]
    targets: tuple[TargetOverview, ...]


def overview(catalog: Catalog, pipeline: Pipeline, *, now: datetime, progress: Progress = iter) -> Overview:
    """Return the present overview of a pipeline.

    A table that is missing, damaged or not as declared has a problem in the overview; the others are read all the same.

    Raises:
        TableMissing: The engine's own tables are not in the catalog: nobody has run `lake init`.
    """
    quarantine = _quarantine(catalog)
    log = SessionLog(catalog)
    standings, found_arrivals, targets = [], [], []
    for raw in progress(pipeline.raw):
        standing, found = _read_raw(catalog, pipeline, raw)
        standings.append(standing)
        found_arrivals += [found] if found else []
    for target in progress(pipeline.in_order()):
        standings.append(_target_progress(catalog, target))
        targets.append(_target_overview(log, pipeline, target, quarantine.get(target.table, ())))
    return Overview(now, tuple(standings), tuple(found_arrivals), tuple(targets))


def _read_raw(catalog: Catalog, pipeline: Pipeline, raw: RawTable) -> tuple[TableProgress, Arrivals | None]:
    try:
        table = iceberg.load(catalog, raw.table)
        progress = TableProgress(raw.table, "raw", source_complete_through(table, raw.table, pipeline))
        if not raw.exists_already and LANDED not in table.schema().column_names:  # nobody knows when its rows arrived
            return progress, None
        if raw.exists_already:
            check_time_columns(table, raw)
        else:
            iceberg.check_columns(table, raw.table, {raw.time_column: "timestamptz", LANDED: "timestamptz"})
        return progress, arrivals(table, raw, start=pipeline.start_hour)
    except Exception as error:  # whatever another program's table makes its reader raise concerns only this table
        text = describe(error)
        return TableProgress(raw.table, "raw", None, text.problem, text.remedy), None


def _target_progress(catalog: Catalog, target: Target) -> TableProgress:
    kind = type(target.mode).__name__.lower()
    try:
        table = iceberg.find(catalog, target.table)
        return TableProgress(target.table, kind, iceberg.complete_through(table, target.table) if table else None)
    except Exception as error:  # concerns only this target
        text = describe(error)
        return TableProgress(target.table, kind, None, text.problem, text.remedy)


def _target_overview(
    log: SessionLog, pipeline: Pipeline, target: Target, quarantine: Sequence[QuarantinedRows]
) -> TargetOverview:
    problem = None
    try:
        state = read_state(log.catalog, log, target.table)
        if state.table is None:
            problem = describe(TableMissing(target.table))
    except Exception as error:  # concerns only this target
        state, problem = State(target.table), describe(error)
    sources = column_sources(pipeline, target)
    columns = []
    for name, iceberg_type in target.columns.items():
        columns.append(ColumnOverview(name, iceberg_type, target.descriptions.get(name, ""), sources.get(name, ())))
    return TargetOverview(
        table=target.table,
        sessions=tuple(log.history(target.table, newest=SESSIONS)),
        pending=tuple(sorted(state.committed.pending)),
        skipped=tuple(sorted(state.committed.skipped)),
        quarantine=tuple(quarantine),
        held=state.committed.held,
        problem=problem.problem if problem else None,
        columns=tuple(columns),
        remedy=problem.remedy if problem else "",
    )


def _quarantine(catalog: Catalog) -> Mapping[str, Sequence[QuarantinedRows]]:
    """Return each target's rows in quarantine by source and reason, most first."""
    counts: Counter[tuple[str, str, str]] = Counter()
    table = iceberg.load(catalog, QUARANTINE)
    for batch in rows_of_files(table, table.scan().plan_files(), ("target", "source", "reason")):
        grouped = pa.Table.from_batches([batch]).group_by(batch.schema.names)
        for row in grouped.aggregate([([], "count_all")]).to_pylist():
            counts[row["target"], row["source"], row["reason"]] += row["count_all"]
    found: defaultdict[str, list[QuarantinedRows]] = defaultdict(list)
    for (target, source, reason), rows in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        found[target].append(QuarantinedRows(source, reason, rows))
    return found
