"""The values that the steps of a session hand on: the attempt at a session, and what the attempt has staged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lake_assets.incremental.declaration import Target
from lake_assets.incremental.execution.session_log import ProcessState, SessionRecord
from lake_assets.incremental.planning.session import AuditResult, HeldHour, RowCounts, SessionPlan

if TYPE_CHECKING:
    from lake_assets.incremental.staging.prepared_rows import PreparedRows


@dataclass
class Attempt:
    """One attempt at a session.

    Attributes:
        state: State of the process when the session was planned or found open.
        record: Newest record of the session; each step replaces it.
        seconds: Step → wall time in seconds.
    """

    target: Target
    state: ProcessState
    record: SessionRecord
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def plan(self) -> SessionPlan:
        return self.record.plan

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Add the wall time of the block to a step."""
        began = time.perf_counter()
        try:
            yield
        finally:
            taken = time.perf_counter() - began
            self.seconds[step] = self.seconds.get(step, 0.0) + taken


@dataclass(frozen=True)
class Staged:
    """What an attempt has staged.

    Attributes:
        snapshot_id: The staged snapshot; None if there was no row to write.
        parent: The snapshot of main that it was staged on.
        hours: Hours whose partitions the snapshot writes or empties.
        rows: Rows that the snapshot adds.
        number: Number of the staging; 0 without a snapshot.
        unchanged: Planned hours whose rows equal the published ones; the snapshot leaves them out.
        prepared: The rows of the session; None for a session without rows.
        quarantined: Rows that are new to the quarantine, at most one more than the target's limit.
        held: Planned hours that audits hold back; the snapshot leaves them out.
    """

    snapshot_id: int | None
    parent: int | None
    hours: tuple[int, ...] = ()
    rows: int = 0
    number: int = 0
    unchanged: tuple[int, ...] = ()
    prepared: PreparedRows | None = None
    quarantined: tuple[dict[str, str], ...] = ()
    audits: tuple[AuditResult, ...] = ()
    held: tuple[HeldHour, ...] = ()

    @property
    def audited_hours(self) -> tuple[int, ...]:
        """The hours that audits evaluate, ascending; also those that should have been written and were not."""
        found = {*self.hours, *self.unchanged}
        if self.prepared is not None:
            found.update(self.prepared.hours)
        return tuple(sorted(found))

    @property
    def row_counts(self) -> RowCounts:
        if self.prepared is None:
            return RowCounts()
        return self.prepared.row_counts


def staged_as_recorded(record: SessionRecord, snapshot_id: int | None) -> Staged:
    """Return what an earlier attempt has staged, as far as its record has it.

    Args:
        snapshot_id: The snapshot that the earlier attempt staged or published.
    """
    return Staged(
        snapshot_id=snapshot_id,
        parent=None,
        hours=record.built,
        rows=record.rows_written,
        unchanged=record.unchanged,
        audits=record.audits,
        held=record.held,
    )


def staged_fields(staged: Staged) -> dict[str, Any]:
    """Return the fields of a session's record that describe what was staged."""
    return {
        "staging_number": staged.number,
        "staged_snapshot_id": staged.snapshot_id,
        "audits": staged.audits,
        "rows_read": staged.row_counts.read,
        "rows_written": staged.rows,
    }
