"""What every step of a session uses: the catalog, the log of sessions, a clock, and Spark when there are rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lake_assets.errors import StateMoved
from lake_assets.incremental.execution.session_log import SessionStore
from lake_assets.incremental.execution.steps.attempt import Attempt
from lake_assets.incremental.metadata import publish, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class RunContext:
    """What the steps of a session use.

    Attributes:
        start_hour: First hour of the pipeline.
        open_spark: Called when a session has rows to read, not before; None for an engine that only decides.
    """

    catalog: Catalog
    start_hour: int
    store: SessionStore
    clock: Callable[[], datetime]
    open_spark: Callable[[], SparkSession] | None

    def spark(self) -> SparkSession:
        assert self.open_spark is not None, "an engine without Spark can only decide"
        return self.open_spark()

    def target_table(self, attempt: Attempt) -> Table:
        """Load the current state of the target's table."""
        return tables.load(self.catalog, attempt.target.table)

    def record_progress(self, attempt: Attempt, **fields: Any) -> None:
        """Append the next record of the session, with these fields of `SessionRecord` changed.

        Raises:
            StateMoved: Another run has moved the process meanwhile.
        """
        changed = replace(attempt.record, **fields)
        attempt.record = self.store.record(changed, after=attempt.record)

    def check_not_overtaken(self, attempt: Attempt) -> None:
        """Check that the session's newest record is this attempt's: a run that was paused must stop.

        Raises:
            StateMoved: Another run has moved the process meanwhile.
        """
        found = self.store.session_revision(attempt.target.table)
        expected = attempt.record.revision
        if found != expected:
            raise StateMoved(attempt.target.table, expected=expected, found=found)

    def release_rows(self, attempt: Attempt) -> None:
        """Free the rows that Spark keeps for a session."""
        if has_no_rows(attempt):
            return
        from lake_assets.connections.row_checkpoint import release_checkpoints  # a session without rows needs no Spark

        release_checkpoints(self.spark())


def has_no_rows(attempt: Attempt) -> bool:
    """Return whether a session reads no row: it builds no hour, and brings no row that may belong in quarantine."""
    return attempt.plan.load == "none" and not attempt.plan.processing_uris


def is_published(attempt: Attempt, table: Table) -> bool:
    """Return whether an earlier attempt has published the session, by its record or by the target's table."""
    return attempt.record.state == "published" or publish.is_published(table, attempt.plan.session_id)
