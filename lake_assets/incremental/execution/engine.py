"""The engine: decides what a process does next, and does it. Each step is safe to repeat.

It knows nothing of Dagster. It takes a pyiceberg catalog, a Spark session and a clock. Follow a session from here to
`driver` (settle, decide, guard, run), to `run` (stage, audit, publish, commit), to the modules of `steps`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog

from lake_assets.base.progress import Progress, unseen
from lake_assets.errors import TargetChanged, TargetError, TargetRolledBack, UsageError
from lake_assets.incremental.declaration import Pipeline, RawTable, Target
from lake_assets.incremental.declaration.own_sql import check_own_sql
from lake_assets.incremental.execution.driver import (
    MAX_OVERTAKEN,
    OVERTAKEN,
    OVERTAKEN_SECONDS,
    Decide,
    Driver,
)
from lake_assets.incremental.execution.erasure_guard import ErasureGuard
from lake_assets.incremental.execution.planner import Planner
from lake_assets.incremental.execution.published_audit import PublishedAudit, PublishedAuditor
from lake_assets.incremental.execution.run import Runner
from lake_assets.incremental.execution.session_log import ProcessState, SessionStore, create_tables
from lake_assets.incremental.execution.source_heads import Heads
from lake_assets.incremental.execution.steps.attempt import Attempt
from lake_assets.incremental.execution.steps.run_context import RunContext, is_published
from lake_assets.incremental.execution.stray_rows import delete_stray_rows
from lake_assets.incremental.execution.target_check import find_problem
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.metadata.erasure_registry import Erasures
from lake_assets.incremental.metadata.erasure_registry import create_table as create_erasure_table
from lake_assets.incremental.metadata.source_tables import load_raw
from lake_assets.incremental.planning import landed
from lake_assets.incremental.planning.landed import RawSnapshot
from lake_assets.incremental.planning.lateness import Lateness
from lake_assets.incremental.planning.plan.pending_hours import PendingHours, pending_hours
from lake_assets.incremental.planning.session import (
    Decision,
    NoSession,
    OpenedSession,
    SessionPlan,
    SessionReport,
    merged,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


OnSession = Callable[[SessionReport], object]


def _unseen(report: SessionReport) -> None:
    """Do nothing."""


class Engine:
    """Runs the processes of a pipeline on a catalog."""

    planner = Planner
    runner = Runner

    def __init__(
        self,
        catalog: Catalog,
        pipeline: Pipeline,
        *,
        clock: Callable[[], datetime],
        spark: Callable[[], SparkSession] | None = None,
        erasure_key: Callable[[], bytes] | None = None,
    ) -> None:
        """Make an engine.

        Args:
            clock: Gives the times that sessions and erasures are recorded with, and by which deferred hours are due.
            spark: Called when a session has rows to read, not before; None for an engine that only decides.
            erasure_key: Gives the key that ids of erased subjects are hashed with; None for the key of the settings.
        """
        self.catalog = catalog
        self.pipeline = pipeline
        self.clock = clock
        self.spark = spark
        self.store = SessionStore(catalog)
        self.erasures = Erasures(catalog, key=erasure_key)
        self.erasure_guard = ErasureGuard(catalog, pipeline, self.erasures)

    def create_tables(self, progress: Progress = unseen) -> list[str]:
        """Create every table of the pipeline and of the engine that does not exist. Return the names of those created.

        A target that was dropped is left out, because it would look like an empty one: see `problem`.

        Raises:
            ConfigurationError: A source is neither declared nor in the catalog, or a condition or an audit of a user
                is no SQL of its kind. No table was created.
        """
        check_own_sql(self.pipeline.targets)
        self.pipeline.check_undeclared_sources(self.catalog.table_exists)
        created = create_tables(self.catalog) + create_erasure_table(self.catalog)
        declared: list[RawTable | Target] = [*self.pipeline.raw, *self.pipeline.targets]
        created += [each.table for each in progress(declared) if self._create(each)]
        return created

    def _create(self, declared: RawTable | Target) -> bool:
        if isinstance(declared, RawTable):
            return not declared.exists_already and tables.create_raw(self.catalog, declared)
        return not self._was_dropped(declared) and tables.create_target(self.catalog, declared)

    def decide(self, target: Target) -> Decision:
        """Return the plan of the open session, or of the next one, or why there is none. Reads metadata only."""
        state = self.store.state(target.table)
        if state.open_session is not None:
            return state.open_session.plan
        return self._planner(target).next_session(state)

    def unsettled(self, target: Target) -> str | None:
        """Return why a target should wait for a target upstream of it, whose session is open or due; else None."""
        for upstream in self.pipeline.upstream_of(target):
            decision = self.decide(upstream)
            if isinstance(decision, SessionPlan):
                return f"{upstream.table} is about to change ({decision.session_id})"
        return None

    def run(
        self,
        target: Target,
        *,
        up_to: Heads | None = None,
        only: str | None = None,
        again: bool = False,
        force: bool = False,
        deferred: bool = False,
        run_id: str = "",
    ) -> SessionReport | NoSession:
        """Finish the open session of a target, or plan and run the next one.

        Args:
            up_to: Heads of the sources to plan up to; None for the current ones.
            only: Id that the next session must have. Heads that the watermark has passed would take the target back.
            again: Also run a session that an audit has stopped, though nothing has changed since.
            force: Also run a session that builds more than a day beyond the newest rows.
            deferred: Also build hours that wait by the policy for late rows.
            run_id: Recorded with a new session.

        Raises:
            AuditFailed: A blocking audit failed; nothing is published.
            StateMoved: Another run of the process has overtaken this one.
            SourceError: A source cannot be read as declared.
            TargetError: The target cannot be published to.
        """
        # After the guard has deleted rows, the given heads are not the newest any more.
        decide_again = partial(self._planner(target).next_session, retry_blocked=again, force=force, deferred=deferred)

        def decide(state: ProcessState) -> Decision:
            decision = decide_again(state, up_to=up_to)
            if only is not None and isinstance(decision, SessionPlan) and decision.session_id != only:
                return NoSession("idle", f"{only} is committed already, or another session has taken its place")
            return decision

        return self._driver(target).drive(
            decide,
            self._runner().run,
            run_id=run_id,
            decide_again=decide_again,
        )

    def open_session(self, target: Target, *, run_id: str = "") -> OpenedSession | NoSession:
        """Open the next session of a target for another program to write, or return the open one again."""
        decide = self._planner(target).external_session
        return self._driver(target).drive(decide, self._as_opened, run_id=run_id)

    def publish_session(self, target: Target) -> SessionReport:
        """Audit and publish what another program has written for the open session of a target.

        Raises:
            UsageError: No session is open, or nothing was written.
            NotAsPlanned: What was written is not what the plan says.
            PublishConflict: It was written onto another snapshot than main.
            AuditFailed: A blocking audit failed; nothing is published.
        """
        return self._driver(target).drive_open_session(self._runner().publish_written)

    def commit_session(self, target: Target) -> SessionReport:
        """Commit the watermarks of the open session of a target.

        Raises:
            UsageError: No session is open, or it is not published.
        """
        return self._driver(target).drive_open_session(self._commit_published)

    def rebuild(
        self,
        target: Target,
        hours: Collection[int],
        *,
        run_id: str = "",
        reset: bool = False,
        on_session: OnSession = _unseen,
    ) -> SessionReport | NoSession:
        """Rebuild hours from the sources as of the watermark, which stays. An open session is finished first.

        A session builds at most `MAX_HOURS`, so more hours take several. If this process ends before the last one, the
        remaining hours are pending.

        Args:
            reset: Read the sources at their current heads instead, and start the watermark anew there; all other hours
                that the sources have become pending. For a source that was replaced or whose history was cut. A target
                that was dropped is created again, and all its hours are rebuilt.
            on_session: Called with the report of each session as soon as it has ended.

        Returns:
            The report of all sessions together.
        """
        planner = self._planner(target)
        if reset:
            tables.create_target(self.catalog, target)

        def decide(state: ProcessState) -> Decision:
            return planner.rebuild(state, hours, run_id=run_id, reset=reset)

        wanted = target.grain.whole(hours)
        return self._rebuild(target, decide, wanted, run_id=run_id, on_session=on_session, only_wanted=reset)

    def rebuild_all(
        self, target: Target, *, run_id: str = "", on_session: OnSession = _unseen
    ) -> SessionReport | NoSession:
        """Create a target's table if it does not exist, and rebuild it as if it had no watermark: see `rebuild`.

        All hours that the sources or the target have are rebuilt, or are pending afterwards if a source is not
        complete.
        """
        tables.create_target(self.catalog, target)
        decide = self._planner(target).rebuild_all
        return self._rebuild(target, decide, run_id=run_id, on_session=on_session)

    def repair(self, target: Target, *, run_id: str = "", on_session: OnSession = _unseen) -> SessionReport | NoSession:
        """Rebuild the hours in which others have changed a target, and count the changes as dealt with: see `rebuild`.

        Rows of others in hours that no session may build yet, or never, are deleted.

        Raises:
            TargetDropped: The target does not exist any more.
            TargetReplaced: The target is another table than the one that was built.
        """
        planner = self._planner(target)

        def decide(state: ProcessState) -> Decision:
            if isinstance(self._problem(target, state), (TargetChanged, TargetRolledBack)):
                delete_stray_rows(self.catalog, target, *planner.buildable_range(state))
            return planner.repair(state, run_id=run_id)

        return self._rebuild(target, decide, run_id=run_id, on_session=on_session)

    def _rebuild(
        self,
        target: Target,
        decide: Decide,
        wanted: Collection[int] = (),
        *,
        run_id: str,
        on_session: OnSession,
        only_wanted: bool = False,
    ) -> SessionReport | NoSession:
        """Run a rebuild, and further ones for the hours that it leaves to later sessions, which are pending.

        The sensors may request a session for them meanwhile, so each rebuild is planned with those that still are.

        Args:
            decide: Plans the first session.
            wanted: Hours that are rebuilt even if they were pending before.
            only_wanted: Whether other hours that become pending by the rebuild stay so.
        """
        reports: list[SessionReport] = []
        left, pending = frozenset(wanted), frozenset[int]()
        overtaken = 0

        def next_rebuild(state: ProcessState) -> Decision:
            nonlocal pending
            pending = state.committed.pending
            if not reports:
                return decide(state)
            return self._planner(target).rebuild(state, left & pending, run_id=run_id, reset=False)

        while left or not reports:
            try:
                found = self._driver(target).drive(
                    next_rebuild, self._runner().run, run_id=run_id, after_open_session=True
                )
            except OVERTAKEN:
                overtaken += 1
                if not reports or overtaken > MAX_OVERTAKEN:
                    raise
                time.sleep(OVERTAKEN_SECONDS * overtaken)
                continue
            if isinstance(found, NoSession):
                return merged(reports) if reports else found
            overtaken = 0
            reports.append(found)
            on_session(found)
            plan = found.plan
            now_pending = frozenset(plan.pending).difference(each.hour for each in plan.deferred)
            if not plan.starts_anew:
                now_pending &= left if only_wanted else left | (now_pending - pending)
            left = now_pending
        return merged(reports)

    def problem(self, target: Target) -> TargetError | None:
        """Return in which way a target is not as its sessions left it; None if it is. Reads metadata only."""
        return self._problem(target, self.store.state(target.table))

    def audit(
        self, target: Target, hours: Collection[int] = (), *, names: Collection[str] | None = None
    ) -> PublishedAudit:
        """Evaluate audits on the published rows of a target. Changes nothing.

        Args:
            hours: The hours; empty for the newest complete one.
            names: Names of the audits; None for all.

        Raises:
            UsageError: There is nothing to audit, or a snapshot that the target was built from is gone.
        """
        assert self.spark is not None, "an engine without Spark can only decide"
        auditor = PublishedAuditor(
            self.catalog,
            target,
            self.store.state(target.table),
            start=self.pipeline.start_hour,
            open_spark=self.spark,
        )
        return auditor.audit(hours, names)

    def pending(self, target: Target) -> PendingHours:
        """Return which hours of a target wait to be built, and why. Reads metadata only."""
        return pending_hours(self.store.state(target.table).committed, self.decide(target))

    def acknowledge(self, target: Target, *, run_id: str = "") -> SessionReport | NoSession:
        """Move the watermark of a waiting target to the heads of its sources; hours that changed become pending."""
        decide = self._planner(target).acknowledgement
        return self._driver(target).drive(
            decide,
            self._runner().run,
            run_id=run_id,
            after_open_session=True,
        )

    def raw_activity(self, raw: RawTable, *, since: int | None) -> list[RawSnapshot]:
        """Return the snapshots of a raw table after a snapshot, oldest first.

        Args:
            since: Snapshot id; None, or one that has expired, for all retained snapshots.
        """
        table = load_raw(self.catalog, raw)
        return list(landed.raw_snapshots(table, raw, since, self.pipeline.start_hour))

    def raw_lateness(self, raw: RawTable, snapshot: RawSnapshot) -> Mapping[int, Lateness]:
        """Return how late the rows that a snapshot appended to a raw table landed: landing hour → lateness."""
        table = load_raw(self.catalog, raw)
        return landed.lateness(table, raw, snapshot, start=self.pipeline.start_hour)

    def _problem(self, target: Target, state: ProcessState) -> TargetError | None:
        return find_problem(self.catalog, target, state)

    def _was_dropped(self, target: Target) -> bool:
        if tables.find(self.catalog, target.table) is not None:
            return False
        return bool(self.store.state(target.table).watermarks)

    def _as_opened(self, attempt: Attempt) -> OpenedSession:
        table = tables.load(self.catalog, attempt.target.table)
        session_id = attempt.plan.session_id
        number = publish.next_staging_number(table, session_id)
        return OpenedSession(
            plan=attempt.plan,
            table=attempt.target.table,
            wap_id=publish.wap_id(session_id, number),
        )

    def _commit_published(self, attempt: Attempt) -> SessionReport:
        table = tables.load(self.catalog, attempt.target.table)
        if not is_published(attempt, table):
            raise UsageError(
                f"{attempt.plan.session_id} is not published.",
                remedy=f"Run `lake session publish {attempt.target.name}` first.",
            )
        return self._runner().run(attempt)

    def _planner(self, target: Target) -> Planner:
        return self.planner(self.catalog, self.pipeline, target, clock=self.clock)

    def _driver(self, target: Target) -> Driver:
        return Driver(
            target,
            self._planner(target),
            self.store,
            self.erasure_guard,
            clock=self.clock,
            create_tables=self.create_tables,
        )

    def _runner(self) -> Runner:
        context = RunContext(
            catalog=self.catalog,
            start_hour=self.pipeline.start_hour,
            store=self.store,
            clock=self.clock,
            open_spark=self.spark,
        )
        return self.runner(context)


def utc_now() -> datetime:
    """Return the current time, for processes that need a real clock."""
    return datetime.now(UTC)
