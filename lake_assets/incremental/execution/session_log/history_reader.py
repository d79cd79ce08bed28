"""Reads the sessions of a process from the log, no more of it than is asked for.

A session has a row for each of its moves, and the newest one counts. The log only grows. The last sessions
are read from its end: files are chosen by the bounds of their revisions.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import And, BooleanExpression, GreaterThan, In
from pyiceberg.table import Table

from lake_assets.incremental.execution.session_log.process_log import ProcessLog, equal_to

MOVES = 6
"""Rows that a session has at most, as a rule; if the last sessions have more, more of the log is read."""

PUBLISHED = ("published", "committed")
READ_COLUMNS = (
    "session_id",
    "revision",
    "etl_pattern_id",
    "state",
    "built_hours",
    "unchanged_hours",
    "rows_read",
    "rows_written",
    "audits",
    "staging_number",
    "staged_snapshot_id",
    "published_snapshot_id",
    "run_id",
    "started_at",
    "ended_at",
    "plan",
)
"""Those that a record is made of; the other columns say the same for readers of the table."""

BUILD_COLUMNS = ("session_id", "revision", "state", "built_hours")

Row = dict[str, Any]


class HistoryReader:
    """The sessions of one process in one state of the table `etl.session`."""

    def __init__(self, table: Table, process: str) -> None:
        self.table = table
        self.process = process

    def newest_states(self, count: int | None, *, after: int = 0) -> list[Row]:
        """Return the newest row of each session, ascending by revision.

        Args:
            count: Of how many sessions; None for all.
            after: Only rows with a greater revision are read.
        """
        if count is None:
            return self._rows(_newest(self._read(READ_COLUMNS, after)))
        last = ProcessLog(self.table, self.process).revision
        span = count * MOVES
        while True:
            first = max(after, last - span)
            found = _newest(self._read(READ_COLUMNS, first))
            if len(found) >= count or first == after:
                return self._rows(found[max(0, len(found) - count) :])
            span *= 4

    def builds(self, key: str) -> list[Row]:
        """Return the newest row of each session that published the hour with this key, ascending by revision."""
        found = []
        for row in self._rows(_newest(self._read(BUILD_COLUMNS, 0))):
            if row["state"] in PUBLISHED and key in json.loads(row["built_hours"]):
                found.append(row["revision"])
        return self._rows(_newest(self._read_revisions(found)))

    def _read(self, columns: Collection[str], after: int) -> pa.Table:
        later = GreaterThan("revision", after)  # type: ignore[call-arg, arg-type]
        return self._scan(later, columns)

    def _read_revisions(self, revisions: Collection[int]) -> pa.Table:
        chosen = In("revision", set(revisions))  # type: ignore[call-arg, arg-type]
        return self._scan(chosen, READ_COLUMNS)

    def _scan(self, rows: BooleanExpression, columns: Collection[str]) -> pa.Table:
        of_process = And(equal_to("process_name", self.process), rows)
        return self.table.scan(of_process, selected_fields=tuple(columns)).to_arrow()

    def _rows(self, found: pa.Table) -> list[Row]:
        return cast("list[Row]", found.to_pylist())


def _newest(rows: pa.Table) -> pa.Table:
    """Return the row with the greatest revision of each session, ascending. A revision has one row."""
    newest = rows.group_by("session_id").aggregate([("revision", "max")])
    kept = rows.filter(pc.is_in(rows["revision"], newest["revision_max"].combine_chunks()))
    return kept.sort_by("revision")
