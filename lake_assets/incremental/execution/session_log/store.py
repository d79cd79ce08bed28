"""The operations on the log of sessions: read the state of a process, record a session, move the watermarks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, In
from pyiceberg.table import Table

from lake_assets.base.hours import hour_key
from lake_assets.incremental.execution.session_log.history_reader import HistoryReader
from lake_assets.incremental.execution.session_log.process_log import (
    COMMIT_SECONDS,
    ProcessLog,
    append_revision,
    arrow_rows,
    equal_to,
)
from lake_assets.incremental.execution.session_log.records import ProcessState, SessionRecord
from lake_assets.incremental.execution.session_log.schemas import add_missing_columns, check_format
from lake_assets.incremental.execution.session_log.session_rows import session_record, session_row
from lake_assets.incremental.execution.session_log.watermark_rows import (
    decode_committed,
    decode_target,
    watermark,
    watermark_rows,
)
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.damaged_files import naming_damaged_file
from lake_assets.incremental.metadata.state_tables import HIGH_WATERMARK, QUARANTINE, SESSION
from lake_assets.incremental.planning.plan import Committed
from lake_assets.incremental.planning.session import SessionPlan, TargetVersion

Row = Mapping[str, Any]

FORGETS = "forgets the sessions that the file may hold, so that their targets rebuild their hours"
"""What `lake doctor --repair` does about a damaged file of the log."""


class SessionStore:
    """Reads and moves the state of processes. It keeps nothing between calls, so one store serves all processes."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def state(self, process: str) -> ProcessState:
        """Return the current state of a process; an empty one if it never ran or the tables do not exist.

        Raises:
            StoredByNewerVersion: A later version has changed the tables.
            TableDamaged: A file of the log cannot be read.
        """
        sessions = self._newest_rows(SESSION, process)
        session = None
        if sessions:
            session = session_record(sessions[0])
        marks = self._newest_rows(HIGH_WATERMARK, process)
        if not marks:
            return ProcessState(process, session)
        metadata = json.loads(marks[0]["metadata"])
        published = metadata.get("published_snapshot_id")
        return ProcessState(
            process=process,
            session=session,
            watermarks={row["source"]: watermark(row) for row in marks},
            committed=decode_committed(metadata),
            revision=marks[0]["revision"],
            published_snapshot_id=published,
            target=decode_target(marks[0], published),
        )

    def watermark_session(self, process: str) -> str | None:
        """Return the id of the session that moved the watermarks of a process last."""
        _, session_id = self.last_move(process)
        return session_id

    def last_move(self, process: str) -> tuple[int, str | None]:
        """Return the revision of the watermarks of a process, 0 before the first, and the session that moved them."""
        marks = self._newest_rows(HIGH_WATERMARK, process)
        return (marks[0]["revision"], marks[0]["session_id"]) if marks else (0, None)

    def session_revision(self, process: str) -> int:
        """Return the revision of the newest record of a process, 0 before the first; by the bounds of the files alone.

        Raises:
            TableDamaged: A file of the log cannot be read.
        """
        with naming_damaged_file(self.catalog, SESSION, repair=FORGETS):
            table = tables.find(self.catalog, SESSION)
            return 0 if table is None else ProcessLog(table, process).revision

    def record(self, record: SessionRecord, *, after: SessionRecord | None) -> SessionRecord:
        """Append the next state of a session.

        Args:
            record: The next state; its revision is set here.
            after: The newest record of the process, which this one follows; None for the first.

        Returns:
            The record with its revision.

        Raises:
            StateMoved: Another run has moved the process meanwhile.
        """
        expected = after.revision if after else 0
        moved = replace(record, revision=expected + 1)
        self._append(SESSION, record.plan.process, [session_row(moved)], expected=expected)
        return moved

    def move_watermarks(
        self,
        state: ProcessState,
        plan: SessionPlan,
        committed: Committed,
        published: int | None,
        *,
        target: TargetVersion | None = None,
    ) -> None:
        """Move all watermarks of a process to where the ranges of a plan end.

        Args:
            state: The state of the process that the move starts from.
            published: The target's snapshot after the session.
            target: The state of the target in which the engine answers for every row.

        Raises:
            StateMoved: The watermarks are not where `state` has them.
        """
        add_missing_columns(self.catalog)
        rows = watermark_rows(state, plan, committed, published, target)
        self._append(HIGH_WATERMARK, plan.process, rows, expected=state.revision)

    def quarantine(self, target: str, rows: Sequence[Row]) -> int:
        """Add rows to the quarantine of a target, unless it has them already.

        Args:
            rows: Each with source, row_hash, session_id, reason and row; all strings.

        Returns:
            How many rows were added.
        """
        if not rows:
            return 0
        for attempt in tables.retrying(seconds=COMMIT_SECONDS):
            with attempt:
                table = tables.load(self.catalog, QUARANTINE)
                added = _not_quarantined(table, target, rows)
                if added:
                    table.append(arrow_rows(table, added))
                return len(added)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def history(self, process: str, *, newest: int | None = None, after: int = 0) -> list[SessionRecord]:
        """Return sessions of a process in their newest state, oldest move first.

        Args:
            newest: How many sessions to return: those that moved last. None for all. Only the end of the log is read.
            after: Only sessions that moved after this revision.

        Raises:
            TableDamaged: A file of the log cannot be read.
        """
        with naming_damaged_file(self.catalog, SESSION, repair=FORGETS):
            reader = HistoryReader(tables.load(self.catalog, SESSION), process)
            rows = reader.newest_states(newest, after=after)
        return [session_record(row) for row in rows]

    def builds(self, process: str, hour: int) -> list[SessionRecord]:
        """Return the sessions whose published rows are, or were, those of an hour, oldest move first.

        Raises:
            TableDamaged: A file of the log cannot be read.
        """
        with naming_damaged_file(self.catalog, SESSION, repair=FORGETS):
            rows = HistoryReader(tables.load(self.catalog, SESSION), process).builds(hour_key(hour))
        return [session_record(row) for row in rows]

    def _newest_rows(self, name: str, process: str) -> list[dict[str, Any]]:
        with naming_damaged_file(self.catalog, name, repair=FORGETS):
            table = tables.find(self.catalog, name)
            if table is None:
                return []
            check_format(table)
            return ProcessLog(table, process).newest_rows()

    def _append(self, name: str, process: str, rows: Sequence[Row], *, expected: int) -> None:
        with naming_damaged_file(self.catalog, name, repair=FORGETS):
            append_revision(self.catalog, name, process, rows, expected=expected)


def _not_quarantined(table: Table, target: str, rows: Sequence[Row]) -> list[Row]:
    hashes = {row["row_hash"] for row in rows}
    same_hash = In("row_hash", hashes)  # type: ignore[call-arg, arg-type]
    candidates = And(equal_to("target", target), same_hash)
    stored = table.scan(candidates, selected_fields=("source", "row_hash")).to_arrow()
    known = {(row["source"], row["row_hash"]) for row in stored.to_pylist()}
    added: dict[tuple[str, str], Row] = {}
    for row in rows:
        identity = (row["source"], row["row_hash"])
        if identity not in known:
            added[identity] = {"target": target, **row}
    return list(added.values())
