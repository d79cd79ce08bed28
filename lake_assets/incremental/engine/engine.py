"""The engine: decides what a process does next, and does it. Each step is safe to repeat.

It knows nothing of Dagster. It takes a pyiceberg catalog, a Spark session and a clock. Follow a session from
`Engine._run` (read the state, plan) to `session.Session.run` (stage, audit, commit).

`catch_up` runs every session that is due, in one process: what the sensors would request, without a daemon. Targets
run in topological order, so no target has to wait until the targets upstream of it have settled. The heads of raw
tables are read once for the whole call, and those of targets when the target that reads them has its turn: so the call
ends, however busy the writers are. Two calls may run side by side: where one is overtaken, it goes on from there.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import BooleanExpression, GreaterThanOrEqual, IsNull, LessThan

from lake_assets.base.columns import table_in_sql
from lake_assets.base.described import failure_of, is_machines_fault
from lake_assets.base.failpoints import reach
from lake_assets.base.hours import hour_start
from lake_assets.errors import (
    AuditFailed,
    ErrorText,
    LakeError,
    PublishConflict,
    TableDamaged,
    TargetError,
    TargetGone,
    TargetRolledBack,
    UsageError,
    hours_held,
    main_moved,
)
from lake_assets.incremental.declaration import Pipeline, RawTable, Target
from lake_assets.incremental.declaration.pipeline import check_own_sql
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.columns import load_raw
from lake_assets.incremental.engine.erasures import ErasureGuard, Erasures, delete_rows
from lake_assets.incremental.engine.erasures import create_table as create_erasure_table
from lake_assets.incremental.engine.model import (
    Decision,
    NoSession,
    OpenedSession,
    SessionPlan,
    SessionReport,
    merged,
    verdicts_in_words,
)
from lake_assets.incremental.engine.planner import Heads, Planner, present_heads
from lake_assets.incremental.engine.planning import PendingHours, pending_hours
from lake_assets.incremental.engine.session import Session, find_written, next_wap_id
from lake_assets.incremental.engine.session_log import (
    EXTERNAL_RUN,
    SessionLog,
    SessionRecord,
    create_tables,
    plan_from_json,
    plan_to_json,
    record_of,
)
from lake_assets.incremental.engine.state import (
    OPENED,
    State,
    carrying_plan,
    number_of,
    outside_changes,
    published_state,
    read_state,
)
from lake_assets.settings import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.incremental.engine.arrivals import Lateness, RawSnapshot
    from lake_assets.incremental.engine.audit_run import PublishedAudit

SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
"""An id of a session that a caller gives."""

OnSession = Callable[[SessionReport], object]
OnOvertaken = Callable[[Exception], object]

Item = TypeVar("Item")


class Progress(Protocol):
    """Yields the items of a step in their order, and may show how many are done. `iter` shows nothing."""

    def __call__(self, items: Sequence[Item], /) -> Iterable[Item]:
        """Return the items."""


MAX_OVERTAKEN = 30
"""How often a session is planned anew because another process has overtaken it."""

OVERTAKEN_SECONDS = 0.2
"""Pause after a session was overtaken again; it grows by as much each time."""

SHORTENED_EVERY = 50
"""Number of sessions of a target after which the histories of its tables are shortened."""

OVERTAKEN = (PublishConflict, CommitFailedException)
"""Errors of a session that another process has overtaken."""


STRAYS = "lake.strays"
"""Snapshot property: how many rows this snapshot deleted because no session would ever have overwritten them."""


def _unseen(found: object) -> None:
    """Do nothing."""


class Engine:
    """Runs the processes of a pipeline on a catalog."""

    planner = Planner
    leaves_out_unchanged = True

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
        self.log = SessionLog(catalog)
        self.erasures = Erasures(catalog, key=erasure_key)
        self.erasure_guard = ErasureGuard(catalog, pipeline, self.erasures, self.rewrite_without_delete_files)

    def create_tables(self, progress: Progress = iter) -> list[str]:
        """Create every table of the pipeline and of the engine that does not exist. Return the names of those created.

        A target that was dropped is left out, because it would look like an empty one: see `problem`.

        Raises:
            ConfigurationError: A condition or an audit of a user is no SQL of its kind. No table was created.
        """
        check_own_sql(self.pipeline.targets)
        created = create_tables(self.catalog) + create_erasure_table(self.catalog)
        declared: list[RawTable | Target] = [*self.pipeline.raw, *self.pipeline.targets]
        for each in progress(declared):
            try:
                if isinstance(each, RawTable):
                    is_new = not each.exists_already and iceberg.create_raw(self.catalog, each)
                else:
                    was_dropped = isinstance(self.problem(each), TargetGone)
                    is_new = not was_dropped and iceberg.create_target(self.catalog, each)
            except TableDamaged:  # its target, or the target that reads it, fails with this error
                continue
            if is_new:
                created.append(each.table)
        return created

    def state(self, target: Target, *, accept_rollback: bool = False) -> State:
        """Return the state of a target, with the target as it is now. Reads metadata only.

        Args:
            accept_rollback: Whether to go on from an older state if the target was rolled back.

        Raises:
            TargetError: The target is not the table that its sessions have built.
        """
        if accept_rollback:
            self._complete_log(target)
        state = read_state(self.catalog, self.log, target.table, accept_rollback=accept_rollback)
        if state.n or not state.watermarks:
            return state
        # The version before knew neither the hours of a target nor this kind of code version.
        committed = state.committed
        versions = {target.code_version_before: target.code_version}
        waiting = {
            hour: replace(waits, code_version=versions.get(waits.code_version, waits.code_version))
            for hour, waits in committed.waiting.items()
        }
        known = [hour for hour in (committed.last_built, committed.complete_through) if hour is not None]
        span = (self.pipeline.start_hour, max(known)) if known else None
        version = versions.get(committed.code_version, committed.code_version)
        return replace(state, committed=replace(committed, waiting=waiting, span=span, code_version=version))

    def problem(self, target: Target) -> TargetError | None:
        """Return why no session of a target can be planned; None if one can. Reads metadata only."""
        try:
            self.state(target)
        except (TargetGone, TargetRolledBack) as error:
            return error
        return None

    def decide(self, target: Target) -> Decision:
        """Return the plan of the next session, or why there is none. Reads metadata only."""
        return self.planner_for(target).next_session(self.state(target))

    def pending(self, target: Target) -> PendingHours:
        """Return which hours of a target wait to be built, and why. Reads metadata only."""
        return pending_hours(self.state(target).committed, self.decide(target))

    def unsettled(self, target: Target) -> str | None:
        """Return why a target should wait for a target upstream of it, whose session is due; else None."""
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
        on_overtaken: OnOvertaken = _unseen,
    ) -> SessionReport | NoSession:
        """Plan and run the next session of a target.

        Args:
            up_to: Heads of the sources to plan up to; None for the current ones.
            only: Id that the next session must have. Heads that the watermark has passed would take the target back.
            again: Also run a session that an audit has stopped, though nothing has changed since.
            force: Also run a session that builds more than a day beyond the newest rows.
            deferred: Also build hours that wait by the policy for late rows.
            run_id: Recorded with a new session.
            on_overtaken: Called with the error when another process has overtaken the session again.

        Raises:
            AuditFailed: A blocking audit failed; nothing is published.
            PublishConflict: Others move the target all the time.
            SourceError: A source cannot be read as declared.
            TargetError: The target cannot be published to.
        """
        planner = self.planner_for(target)
        heads, wanted = up_to, only

        def decide(state: State) -> Decision:
            decision = planner.next_session(state, up_to=heads, retry_blocked=again, force=force, deferred=deferred)
            if wanted is not None and isinstance(decision, SessionPlan) and decision.session_id != wanted:
                return NoSession("idle", f"{wanted} is committed already, or another session has taken its place")
            return decision

        def guard(decision: Decision) -> bool:
            nonlocal heads, wanted
            deleted = self.erasure_guard.delete_erased_rows(decision)
            if deleted:  # the given heads are not the newest any more
                heads = wanted = None
            return deleted

        return self._run(target, decide, run_id=run_id, guard=guard, on_overtaken=on_overtaken)

    def acknowledge(self, target: Target, *, run_id: str = "") -> SessionReport | NoSession:
        """Move the watermark of a waiting target to the heads of its sources; hours that changed become pending."""
        return self._run(target, self.planner_for(target).acknowledgement, run_id=run_id)

    def _run(
        self,
        target: Target,
        decide: Callable[[State], Decision],
        *,
        run_id: str,
        read: Callable[[], State] | None = None,
        guard: Callable[[Decision], bool] | None = None,
        on_overtaken: OnOvertaken = _unseen,
    ) -> SessionReport | NoSession:
        """Plan and run a session; where another process overtakes it, plan it anew.

        Args:
            decide: Plans it.
            read: Returns the state that it is planned on; None for the present one.
            guard: Deletes rows that the plan must not read, and returns whether there were any: it is planned anew.

        Raises:
            AuditFailed: A blocking audit failed; nothing is published.
            PublishConflict: Others move main all the time.
        """
        overtaken = 0
        while True:
            try:
                began = time.perf_counter()
                state = read() if read else self.state(target)
                if self._prepare(target, state):
                    continue
                self.log.complete(state)
                decision = decide(state)
                if (guard or self.erasure_guard.delete_erased_rows)(decision):
                    continue
                if isinstance(decision, NoSession):
                    return decision
                session = Session(self, target, state, decision, run_id)
                session.seconds["plan"] = time.perf_counter() - began
                reach("after-planned")
                try:
                    report = session.run()
                except (AuditFailed, *OVERTAKEN):
                    raise
                except Exception as error:  # of the user's code, of Spark or of a library
                    if not is_machines_fault(error):
                        session.remember_error(error)
                    raise
            except OVERTAKEN as error:
                overtaken += 1
                if overtaken > MAX_OVERTAKEN:
                    raise
                if overtaken > 1:
                    on_overtaken(error)
                    time.sleep(OVERTAKEN_SECONDS * overtaken)
                continue
            if (state.highest + 1) % SHORTENED_EVERY == 0:
                self._shorten_histories(target)
            return report

    def _shorten_histories(self, target: Target) -> None:
        """Expire old snapshots of a target, and of the raw tables of this project that it reads."""
        from lake_assets.incremental.engine.retention import shorten

        raw = [self.pipeline.raw_table(source.table) for source in target.sources]
        self.log.flush()  # what its sessions refer to stays
        for name in (target.table, *(each.table for each in raw if each is not None and not each.exists_already)):
            with suppress(CommitFailedException, OSError):  # maintenance does it, too
                shorten(self.catalog, name, newest=settings().most_snapshots)

    def _prepare(self, target: Target, state: State) -> bool:
        """Create the tables before the first session, and delete stray rows of others; return whether it did any."""
        if state.table is None and not state.highest:
            self.create_tables()
            return True
        if not state.watermarks or not outside_changes(state, target, self.pipeline.start_hour).may_have_strays:
            return False
        # No session overwrites rows outside of its hours, or without a time. The latter go first: pyiceberg cannot
        # compare the partition that has none with a time. The expressions are typed as their JSON form.
        column = target.time_column
        first, last = self.planner_for(target).buildable_range(state)
        outside: list[BooleanExpression] = [
            IsNull(column),  # type: ignore[call-arg, arg-type]
            LessThan(column, hour_start(first).isoformat()),  # type: ignore[call-arg, arg-type]
        ]
        if last is not None:
            outside.append(GreaterThanOrEqual(column, hour_start(last + 1).isoformat()))  # type: ignore[call-arg, arg-type]
        return sum(delete_rows(self.catalog, target.table, each, counted_as=STRAYS) for each in outside) > 0

    def rebuild(
        self,
        target: Target,
        hours: Collection[int],
        *,
        run_id: str = "",
        reset: bool = False,
        on_session: OnSession = _unseen,
    ) -> SessionReport | NoSession:
        """Rebuild hours from the sources as of the watermark, which stays.

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
        read = None
        if reset:
            problem = self.problem(target)
            iceberg.create_target(self.catalog, target)
            if isinstance(problem, TargetGone):
                return self.rebuild_all(target, run_id=run_id, on_session=on_session)
            read = partial(self.state, target, accept_rollback=True)
        decide = partial(self.planner_for(target).rebuild, hours=hours, run_id=run_id, reset=reset)
        wanted = target.grain.whole(hours)
        return self._rebuild(target, decide, wanted, run_id=run_id, on_session=on_session, read=read, only_wanted=reset)

    def rebuild_all(
        self, target: Target, *, run_id: str = "", on_session: OnSession = _unseen
    ) -> SessionReport | NoSession:
        """Create a target's table if it does not exist, and rebuild it as if it had no watermark: see `rebuild`.

        All hours that the sources or the target have are rebuilt, or are pending afterwards if a source is not
        complete.
        """
        iceberg.create_target(self.catalog, target)

        def unbuilt() -> State:
            """Return the state as if no session had built the target; numbers go on."""
            self._complete_log(target)
            table = iceberg.load(self.catalog, target.table)
            numbers = map(number_of, table.metadata.snapshots)
            return State(target.table, highest=max([*self.log.numbers(target.table), *numbers]), table=table)

        decide = self.planner_for(target).rebuild_all
        return self._rebuild(target, decide, run_id=run_id, on_session=on_session, read=unbuilt)

    def _rebuild(
        self,
        target: Target,
        decide: Callable[[State], Decision],
        wanted: Collection[int] = (),
        *,
        run_id: str,
        on_session: OnSession,
        read: Callable[[], State] | None = None,
        only_wanted: bool = False,
    ) -> SessionReport | NoSession:
        """Run a rebuild, and further ones for the hours that it leaves to later sessions, which are pending.

        The sensors may request a session for them meanwhile, so each rebuild is planned with those that still are.

        Args:
            decide: Plans the first session.
            read: Returns the state that the first session is planned on; None for the present one.
            wanted: Hours that are rebuilt even if they were pending before.
            only_wanted: Whether other hours that become pending by the rebuild stay so, as they do before the first
                session.
        """
        reports: list[SessionReport] = []
        left, pending = frozenset(wanted), frozenset[int]()
        first = False

        def next_rebuild(state: State) -> Decision:
            nonlocal pending, first
            healed = outside_changes(state, target, self.pipeline.start_hour).hours
            pending = state.committed.pending.union(healed)
            if not reports:
                first = not state.watermarks
                return decide(state)
            return self.planner_for(target).rebuild(state, left & pending, run_id=run_id, reset=False)

        while left or not reports:
            found = self._run(target, next_rebuild, run_id=run_id, read=None if reports else read)
            if isinstance(found, NoSession):
                return merged(reports) if reports else found
            reports.append(found)
            on_session(found)
            plan = found.plan
            now_pending = plan.waits_for_next_session
            if not plan.starts_anew:
                now_pending &= left if only_wanted or first else left | (now_pending - pending)
            left = now_pending
        return merged(reports)

    def repair(self, target: Target, *, run_id: str = "", on_session: OnSession = _unseen) -> SessionReport | NoSession:
        """Go on from the older state of a target that was rolled back, and rebuild what is missing.

        What others have changed in a target needs no repair: the next session rebuilds it.

        Raises:
            TargetGone: The target does not exist any more, or the target is another table than the one that was built.
        """
        problem = self.problem(target)
        if isinstance(problem, TargetGone):
            raise problem
        if problem is not None and isinstance(self.carry(target, why="repair", run_id=run_id), NoSession):
            return self.rebuild_all(target, run_id=run_id, on_session=on_session)
        reports: list[SessionReport] = []
        while isinstance(found := self.run(target, run_id=run_id), SessionReport):
            reports.append(found)
            on_session(found)
            if not found.plan.waits_for_next_session:
                break
        return merged(reports) if reports else found

    def carry(self, target: Target, *, why: str, run_id: str = "") -> SessionReport | NoSession:
        """Commit a session that carries the state of a target on, and builds nothing.

        The tag then lets go of the files that the last session published. No session that was planned before can
        publish any more.

        Args:
            why: The beginning of the session's id.
        """
        start = self.pipeline.start_hour

        def decide(state: State) -> Decision:
            if not state.watermarks:
                return NoSession("idle", f"no session has built {target.table}")
            changed = outside_changes(state, target, start).hours
            committed = state.committed.with_changed({hour: why for hour, why in changed.items() if hour >= start})
            return replace(carrying_plan(state, why), waiting=committed.waiting)

        read = partial(self.state, target, accept_rollback=True)
        return self._run(target, decide, run_id=run_id, read=read, guard=lambda _: False)

    def open_session(
        self, target: Target, *, run_id: str = EXTERNAL_RUN, session_id: str | None = None
    ) -> OpenedSession | NoSession:
        """Open the next session of a target for another program to write, or return the open one again.

        Args:
            session_id: Its id; None for one of the engine. Another id than that of the open session opens another one,
                and what was written for the former is not published any more.

        Raises:
            UsageError: The id cannot be one, or a session of this id is committed.
        """
        self.create_tables()
        state = self.state(target)
        self.log.complete(state)
        assert state.table is not None
        plan = self._opened_plan(target, state)
        if plan is None or session_id not in (None, plan.session_id):
            decision = self.planner_for(target).external_session(state)
            if self.erasure_guard.delete_erased_rows(decision):
                return self.open_session(target, run_id=run_id, session_id=session_id)
            if isinstance(decision, NoSession):
                return decision
            if session_id is not None and not SESSION_ID.fullmatch(session_id):
                raise UsageError(
                    f"The session id is {session_id!r}.",
                    remedy="Use up to 128 letters, digits and any of _ . : -, such as 20230914061001.",
                )
            for record in self.log.history(target.table) if session_id is not None else ():
                if record.plan.session_id == session_id and record.state == "committed":
                    raise UsageError(
                        f"{session_id} is the id of a session of {target.table} that is committed.",
                        remedy="Give each session an id of its own, or leave it out.",
                    )
            own_id = decision.session_id
            if self.pipeline.find_target(target.table) is None:
                own_id = f"{own_id}-{target.code_version}"
            plan = replace(decision, session_id=session_id or own_id)
            base = publish.base_of(state.table)
            opened = {
                "n": state.highest + 1,
                "main": base.main,
                "tag": base.tag,
                "pattern": target.mode.pattern_id,
                "run_id": run_id,
                "at": self.clock().isoformat(),
                "sources": _named_sources(target),
                # An id that a caller gives may be given to several plans, but what is written belongs to one plan.
                "wap": own_id,
                "plan": plan_to_json(plan),
            }
            with state.table.transaction() as transaction:
                transaction.set_properties({OPENED: json.dumps(opened)})
        table = iceberg.load(self.catalog, target.table)
        return OpenedSession(plan=plan, table=target.table, wap_id=next_wap_id(table, plan))

    def publish_session(self, target: Target, *, session_id: str | None = None) -> SessionReport:
        """Audit and publish what another program has written for the open session of a target, and end the session.

        Args:
            session_id: The id that the open session must have; None for any.

        Raises:
            UsageError: No session is open, or another one, or nothing was written.
            LakeError: What was written is not what the plan says.
            PublishConflict: Main has moved since the session was opened.
            AuditFailed: A blocking audit failed; nothing is published.
        """
        state = self.state(target)
        plan = self._opened_plan(target, state)
        if plan is None and state.opened_on_any_main is not None and state.opened is None and state.table is not None:
            expected = state.opened_on_any_main["main"]
            raise main_moved(target.table, expected=expected, found=publish.main_id(state.table))
        if plan is None:
            raise UsageError(
                f"{target.table} has no open session.",
                remedy=f"Open one with `lake session init {target.name}`.",
            )
        _check_is(plan, session_id, "that is open")
        assert state.table is not None
        written = find_written(state.table, plan, target.time_column)
        run_id = state.opened["run_id"] if state.opened else EXTERNAL_RUN
        attempt = Session(self, target, state, plan, run_id, written=written, is_external=True)
        return replace(attempt.run(), status="published")

    def commit_session(self, target: Target, *, session_id: str | None = None) -> SessionReport:
        """Return the report of the session that another program has written and published last.

        Args:
            session_id: The id that it must have; None for any.

        Raises:
            UsageError: A session is open: it is not published. Or the last one has another id.
        """
        state = self.state(target)
        plan = self._opened_plan(target, state)
        if plan is not None:
            raise UsageError(
                f"{plan.session_id} is not published.",
                remedy=f"Run `lake session publish {target.name}` first.",
            )
        before = self.log.opened_before(target.table) if state.n == 0 else None
        if before is not None and before.state == "published":
            # Its rows count as a stranger's: a session over the same snapshots builds the hours again.
            read = {each.source: (each.to_snapshot_id, each.complete_through) for each in before.plan.sources}
            found = self.run(target, up_to=read, run_id=EXTERNAL_RUN)
            if isinstance(found, SessionReport):
                return found
        if state.n == 0 or state.log.get("run") != EXTERNAL_RUN:
            raise UsageError(
                f"{target.table} has no open session.",
                remedy=f"Open one with `lake session init {target.name}`.",
            )
        self.log.complete(state)
        newest = self.log.history(target.table, newest=1)
        report = newest[0].report() if newest else record_of(state).report()
        _check_is(report.plan, session_id, "that was published last")
        return report

    def _opened_plan(self, target: Target, state: State) -> SessionPlan | None:
        """Return the plan of the session that another program writes.

        Returns:
            None if there is none, or if it was planned for other sources or another mode than are declared now.
        """
        opened = state.opened
        before = self.log.opened_before(state.process) if not state.n and opened is None else None
        if opened is not None and opened["sources"] != _named_sources(target):
            return None
        if opened is not None:
            plan, pattern = plan_from_json(opened["plan"]), opened["pattern"]
        elif before is not None and before.state == "planned":
            plan, pattern = before.plan, before.pattern_id
        else:
            return None
        declared = [source.table for source in target.sources]
        planned = [source.source for source in plan.sources]
        return plan if (planned, pattern) == (declared, target.mode.pattern_id) else None

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
        from lake_assets.incremental.engine.audit_run import audit_published

        start = self.pipeline.start_hour
        return audit_published(
            self.catalog, target, self.state(target), hours, names, start=start, open_spark=self.open_spark
        )

    def history(self, target: Target, *, newest: int | None = None) -> list[SessionRecord]:
        """Return sessions of a target, oldest first; also the last one, if the log has not got it yet.

        Args:
            newest: How many sessions to return: the last ones. None for all.
        """
        found = self.log.history(target.table, newest=newest)
        try:
            state = self.state(target)
        except TargetError:  # what was logged is there all the same
            return found
        # A later session writes its row after that of the one before it.
        is_logged = any(each.revision > state.n or each.plan.session_id == state.session_id for each in found)
        if state.n and state.log and not is_logged:
            found.append(record_of(state))
        return found[-newest:] if newest else found

    def raw_activity(self, raw: RawTable, *, since: int | None) -> list[RawSnapshot]:
        """Return the snapshots of a raw table after a snapshot, oldest first.

        Args:
            since: Snapshot id; None, or one that has expired, for all retained snapshots.
        """
        from lake_assets.incremental.engine.arrivals import raw_snapshots

        table = load_raw(self.catalog, raw)
        return list(raw_snapshots(table, raw, since, self.pipeline.start_hour))

    def raw_lateness(self, raw: RawTable, snapshot: RawSnapshot) -> Mapping[int, Lateness]:
        """Return how late the rows that a snapshot appended to a raw table landed: landing hour → lateness."""
        from lake_assets.incremental.engine.arrivals import lateness

        table = load_raw(self.catalog, raw)
        return lateness(table, raw, snapshot, start=self.pipeline.start_hour)

    def _complete_log(self, target: Target) -> None:
        """Log the session that was published last, if its process died before it had: the next may not follow it."""
        published = published_state(self.catalog, target.table)
        if published is not None:
            self.log.complete(published)

    def planner_for(self, target: Target) -> Planner:
        """Return what plans the sessions of a target."""
        return self.planner(self.catalog, self.pipeline, target, clock=self.clock)

    def rewrite_without_delete_files(self, name: str) -> None:
        """Rewrite data files without rows that delete files hide, and drop the delete files: both may hold an id."""
        options = "map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true')"
        sql = f"CALL lake.system.rewrite_data_files(table => '{table_in_sql(name)}', options => {options})"
        self.open_spark().sql(sql).collect()

    def open_spark(self) -> SparkSession:
        """Return the Spark session."""
        assert self.spark is not None, "an engine without Spark can only decide"
        return self.spark()


def _named_sources(target: Target) -> list[list[str]]:
    return [[source.table, source.time_column] for source in target.sources]


def _check_is(plan: SessionPlan, session_id: str | None, which: str) -> None:
    if session_id not in (None, plan.session_id):
        raise UsageError(
            f"The session of {plan.process} {which} is {plan.session_id}, and not {session_id}.",
            remedy="Name its id, or leave it out.",
        )


def utc_now() -> datetime:
    """Return the current time, for processes that need a real clock."""
    return datetime.now(UTC)


REPAIR = "Repair the source or the declaration. To repeat the session as it is, run `lake catch-up --again`."
CONFIRM = "Correct a source that is declared complete too far, or repeat the command with --force."
REMEDIES = {"blocked": REPAIR, "beyond": CONFIRM}
"""Kind of a decision that needs a person → what to do."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one decision on a target: a session (report), no session (waiting), or an error (failure).

    A session that published some hours and holds others back has both a report and a failure.

    Attributes:
        problem: How the target is not as its sessions left it: it was dropped, replaced or rolled back.
        overtaken: How another process has overtaken the session; the next outcome is that of the next attempt.
    """

    table: str
    report: SessionReport | None = None
    waiting: NoSession | None = None
    failure: str | None = None
    problem: str | None = None
    overtaken: str | None = None


def catch_up(
    engine: Engine,
    targets: Iterable[Target],
    *,
    report: Callable[[Outcome], None] | None = None,
    on_error: Callable[[Exception], None] | None = None,
    run_id: str = "catch-up",
    again: bool = False,
    force: bool = False,
    deferred: bool = False,
) -> list[Outcome]:
    """Run every session of the targets that is due when the call starts. An error of one does not stop the others.

    A fault of the machine or of a service stops all: the other targets would fail with the same error.

    Args:
        report: Called with each outcome as soon as it is known.
        on_error: Called with each error; its outcome has only the text.
        run_id: Recorded with each session.
        again: Also run sessions that an audit has stopped.
        force: Also run sessions that build more than a day beyond the newest rows.
        deferred: Also build hours that wait by the policy for late rows.
    """
    wanted = {target.table for target in targets}
    in_order = [target for target in engine.pipeline.in_order() if target.table in wanted]
    derived = {target.table for target in engine.pipeline.targets}
    names = {source.table for target in in_order for source in target.sources}
    raw_heads = present_heads(engine.catalog, engine.pipeline, sorted(names - derived))
    outcomes: list[Outcome] = []

    def ended(outcome: Outcome) -> None:
        outcomes.append(outcome)
        if report is not None:
            report(outcome)

    def overtaken(name: str, error: Exception) -> None:
        problem = error.problem if isinstance(error, LakeError) else str(error)
        ended(Outcome(name, overtaken=f"another process was faster: {problem}"))

    with engine.log.batch():
        for target in in_order:
            name, sources = target.table, {source.table for source in target.sources}
            try:
                up_to = {each: raw_heads[each] for each in sources & raw_heads.keys()}
                up_to |= present_heads(engine.catalog, engine.pipeline, sorted(sources & derived))
                run = partial(engine.run, target, again=again, force=force, deferred=deferred, run_id=run_id)
                while isinstance(found := run(up_to=up_to, on_overtaken=partial(overtaken, name)), SessionReport):
                    held = verdicts_in_words(found.held, target.grain)
                    ended(Outcome(name, report=found, failure=str(hours_held(name, held)) if held else None))
                failure = None
                if found.kind in REMEDIES:
                    failure = str(ErrorText(f"{name}: {found.reason}.", REMEDIES[found.kind]))
                ended(Outcome(name, waiting=found, failure=failure))
            except Exception as error:  # also of Spark and of libraries: the other targets go on
                is_machines = is_machines_fault(error)
                text = failure_of(name, error)
                is_changed = isinstance(error, (TargetGone, TargetRolledBack))
                ended(Outcome(name, failure=str(text), problem=text.problem if is_changed else None))
                if on_error is not None:
                    on_error(error)
                if is_machines:
                    break
    return outcomes
