"""What the log of sessions holds, as values: one session, and the state of one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from lake_assets.incremental.planning.changes import Watermark
from lake_assets.incremental.planning.plan import Committed
from lake_assets.incremental.planning.session import AuditResult, HeldHour, SessionPlan, SessionReport, TargetVersion
from lake_assets.incremental.planning.verdicts import held_by

State = Literal["planned", "staged", "published", "committed", "blocked", "abandoned"]
OPEN: frozenset[State] = frozenset({"planned", "staged", "published"})


@dataclass(frozen=True)
class SessionRecord:
    """The newest row of one session.

    Attributes:
        revision: Number of the row among those of its process, from 1; 0 before it is stored.
        pattern_id: The `etl_pattern_id` of the target's mode.
        staging_number: Number of the last staging; 0 for none.
        built: Hours that the published snapshot wrote or emptied.
        unchanged: Planned hours whose rows equal the published ones.
    """

    plan: SessionPlan
    state: State
    revision: int
    pattern_id: int
    run_id: str
    started_at: datetime
    ended_at: datetime | None = None
    staging_number: int = 0
    staged_snapshot_id: int | None = None
    published_snapshot_id: int | None = None
    built: tuple[int, ...] = ()
    unchanged: tuple[int, ...] = ()
    rows_read: int = 0
    rows_written: int = 0
    audits: tuple[AuditResult, ...] = ()

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    @property
    def held(self) -> tuple[HeldHour, ...]:
        """Planned hours that audits held back while the others were published; none for a blocked session."""
        if self.state == "blocked":
            return ()
        return held_by(self.plan, self.audits)

    def report(self) -> SessionReport:
        """Return the report of a committed session; counts that are not stored are 0."""
        version = str(self.published_snapshot_id) if self.published_snapshot_id else None
        return SessionReport(
            plan=self.plan,
            status="committed",
            hours_built=self.built,
            hours_unchanged=self.unchanged,
            held=self.held,
            staged_snapshot_id=self.staged_snapshot_id,
            published_snapshot_id=self.published_snapshot_id,
            rows_read=self.rows_read,
            rows_written=self.rows_written,
            audits=self.audits,
            data_version=version,
        )


@dataclass(frozen=True)
class ProcessState:
    """The state of one process.

    Attributes:
        session: The newest session, open or not; None before the first.
        watermarks: Source → the state of it that the process has read.
        revision: Number of the last move of the watermarks; 0 before the first.
        published_snapshot_id: The target's snapshot that a committed session published last.
        target: The newest state of the target in which the engine answers for every row; None before the first move
            of the watermarks, or if an older version stored it and had published nothing.
    """

    process: str
    session: SessionRecord | None = None
    watermarks: Mapping[str, Watermark] = field(default_factory=dict)
    committed: Committed = field(default_factory=Committed)
    revision: int = 0
    published_snapshot_id: int | None = None
    target: TargetVersion | None = None

    @property
    def open_session(self) -> SessionRecord | None:
        if self.session is not None and self.session.is_open:
            return self.session
        return None
