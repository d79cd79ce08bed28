"""The engine: decide what a process does next, and do it: stage → audit → publish → commit, each step safe to repeat.

Knows nothing of Dagster. Takes a pyiceberg catalog, a Spark session, a clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain, count
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lake_assets.base.failpoints import reach
from lake_assets.errors import UsageError
from lake_assets.incremental.declaration import Pipeline, RawTable, Source, Target
from lake_assets.incremental.execution.erasure_guard import ErasureGuard
from lake_assets.incremental.execution.run import Runner, Work, failures
from lake_assets.incremental.execution.session_log import ProcessState, SessionRecord, SessionStore, create_tables
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.metadata.erasure_registry import Erasures
from lake_assets.incremental.metadata.erasure_registry import create_table as create_erasure_table
from lake_assets.incremental.metadata.partitions import check_grain, rows_between
from lake_assets.incremental.planning import entities, landed
from lake_assets.incremental.planning.changes import Head, SourceChanges, Watermark, changes, hours_present
from lake_assets.incremental.planning.landed import RawSnapshot
from lake_assets.incremental.planning.lateness import Lateness
from lake_assets.incremental.planning.plan import PlanningInput, another, plan, plan_acknowledged, plan_rebuild
from lake_assets.incremental.planning.session import Decision, NoSession, OpenedSession, SessionPlan, SessionReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Heads = Mapping[str, tuple[int | None, int | None]]
"""Source → (snapshot id, complete-through) to plan up to."""


class Engine:
    """Runs the processes of a pipeline on a catalog.

    clock: the time of what is recorded of sessions and erasures, and nothing else. spark: called when a session has
    rows to read, not before.
    """

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
        """erasure_key: what ids of erased subjects are hashed with; default: the key of the settings' home."""
        self.catalog, self.pipeline, self.clock = catalog, pipeline, clock
        self.spark = spark
        self.store = SessionStore(catalog)
        self.erasures = Erasures(catalog, key=erasure_key)
        self.door = ErasureGuard(catalog, pipeline, self.erasures)

    def create_tables(self) -> list[str]:
        """Create every table that is not there yet; their names."""
        created = create_tables(self.catalog) + create_erasure_table(self.catalog)
        created += [r.table for r in self.pipeline.raw if tables.create_raw(self.catalog, r)]
        return created + [t.table for t in self.pipeline.targets if tables.create_target(self.catalog, t)]

    def decide(self, target: Target) -> Decision:
        """What the next session of a target is: an open one, a new one, or none, and why. Metadata only."""
        state = self.store.state(target.table)
        if state.open_session:
            return state.open_session.plan
        return self._decide(target, state)

    def unsettled(self, target: Target) -> str | None:
        """Why a target should wait for those it is built from: a session that is open or due; or None."""
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
        run_id: str = "",
    ) -> SessionReport | NoSession:
        """Finish the open session of a target, or plan the next one, up to the given heads, and run it.

        only: the id that the next one must have. Heads that the watermark has passed would else take the target back.
        again: also a session that an audit stopped, though nothing has changed since.
        Raises `AuditFailed` (nothing published), `StateMoved` (another run of the process won), `SourceError`,
        `TargetError`.
        """
        began = time.perf_counter()
        state = self.store.state(target.table)
        if work := self._resumed(target, state):
            return self._run(work, began)
        state = self.store.state(target.table)
        decision = self._decide(target, state, up_to, again=again)
        if only and isinstance(decision, SessionPlan) and decision.session_id != only:
            return NoSession("idle", f"{only} is committed already, or what it was to do is planned anew")
        if self.door.delete_erased_rows(decision):
            return self.run(target, again=again, run_id=run_id)
        if isinstance(decision, NoSession):
            return decision
        return self._run(self._opened(target, state, decision, run_id), began)

    def open_session(self, target: Target, *, run_id: str = "") -> OpenedSession | NoSession:
        """Open the next session of a target for another program to write, or give the one that is open once more."""
        state = self.store.state(target.table)
        work = self._resumed(target, state)
        if work is None:
            state = self.store.state(target.table)
            found = plan(self._question(target, state, {}))  # one that an audit stopped, too: the job may be mended
            decision = self._unpublished(target, found)
            if self.door.delete_erased_rows(decision):
                return self.open_session(target, run_id=run_id)
            if isinstance(decision, NoSession):
                return decision
            work = self._opened(target, state, decision, run_id)
        number = publish.next_staging_number(tables.load(self.catalog, target.table), work.plan.session_id)
        return OpenedSession(work.plan, target.table, publish.wap_id(work.plan.session_id, number))

    def publish_session(self, target: Target) -> SessionReport:
        """Audit and publish what was written for the open session of a target.

        Raises as `run` does, and `UsageError` if there is nothing to publish.
        """
        work = self._open_work(target)
        return self._runner().publish_written(work)

    def commit_session(self, target: Target) -> SessionReport:
        """Commit the watermark of the open session of a target, which must be published."""
        work = self._open_work(target)
        table = tables.load(self.catalog, target.table)
        if work.record.state != "published" and not publish.is_published(table, work.plan.session_id):
            raise UsageError(
                f"{work.plan.session_id} is not published.", remedy=f"Run `lake session publish {target.name}` first."
            )
        return self._runner().run(work)

    def _open_work(self, target: Target) -> Work:
        if work := self._resumed(target, self.store.state(target.table)):
            return work
        raise UsageError(
            f"{target.table} has no open session.", remedy=f"Open one with `lake session init {target.name}`."
        )

    def rebuild(
        self, target: Target, hours: Collection[int], *, run_id: str = "", reset: bool = False
    ) -> SessionReport | NoSession:
        """Rebuild hours from the sources as of the watermark, which stays. An open session is finished first.

        reset: read the sources as they are now instead, and start the watermark anew there; all other hours that the
        sources hold become pending. For a source that was replaced or whose history was cut.
        """
        began = time.perf_counter()
        if work := self._resumed(target, self.store.state(target.table)):
            self._run(work, began)
        state = self.store.state(target.table)
        question = self._question(target, state, self._heads_for_rebuild(state, reset), reset=reset)
        present = {h for c in question.changes for s in c.snapshots for a, b in s.hours for h in range(a, b + 1)}
        if reset:  # hours that a former source had and this one lacks are to be emptied
            present |= hours_present(tables.load(self.catalog, target.table), target.time_column)
        token = f"{run_id}|{target.code_version}|{state.revision}"
        decision = self._unpublished(target, plan_rebuild(question, hours, present=present, token=token))
        if self.door.delete_erased_rows(decision):
            return self.rebuild(target, hours, run_id=run_id, reset=reset)
        if isinstance(decision, NoSession):
            return decision
        return self._run(self._opened(target, state, decision, run_id), began)

    def acknowledge(self, target: Target, *, run_id: str = "") -> SessionReport | NoSession:
        """Move a waiting target's watermark to its sources' heads; the hours that changed are pending then."""
        began = time.perf_counter()
        state = self.store.state(target.table)
        decision = self._unpublished(target, plan_acknowledged(self._question(target, state, {})))
        if self.door.delete_erased_rows(decision):
            return self.acknowledge(target, run_id=run_id)
        if isinstance(decision, NoSession):
            return decision
        return self._run(self._opened(target, state, decision, run_id), began)

    def raw_activity(self, raw: RawTable, *, since: int | None) -> list[RawSnapshot]:
        """The snapshots of a raw table after `since` (None, or one that is gone: all retained), oldest first."""
        return list(landed.raw_snapshots(tables.load(self.catalog, raw.table), raw, since, self.pipeline.start_hour))

    def raw_lateness(self, raw: RawTable, snapshot: RawSnapshot) -> Mapping[int, Lateness]:
        """How late the rows came that a snapshot of a raw table appended, by landing hour."""
        return landed.lateness(tables.load(self.catalog, raw.table), raw, snapshot, start=self.pipeline.start_hour)

    def _decide(
        self, target: Target, state: ProcessState, up_to: Heads | None = None, *, again: bool = False
    ) -> Decision:
        heads = {source: Head(*head) for source, head in up_to.items()} if up_to else {}
        question = self._question(target, state, heads)
        decision = self._unpublished(target, self._narrowed(target, state, question, plan(question)))
        return decision if again else _blocked(state, decision) or decision

    def _unpublished(self, target: Target, decision: Decision) -> Decision:
        """The decision, under an id that was never published: where watermarks were lost, an old plan comes again.

        It would else be taken for done, by an attempt that published it and died.
        """
        if not isinstance(decision, SessionPlan) or (table := tables.find(self.catalog, target.table)) is None:
            return decision
        ids = chain([decision], (another(decision, number) for number in count(1)))
        return next(found for found in ids if not publish.is_published(table, found.session_id))

    def _narrowed(self, target: Target, state: ProcessState, question: PlanningInput, decision: Decision) -> Decision:
        """The decision; of a session that rebuilds hours, whose rows it recomputes."""
        if not isinstance(decision, SessionPlan) or not (hours := entities.rebuilt(question, decision)):
            return decision
        table = tables.load(self.catalog, target.table)
        rows = rows_between(table, target.time_column, hours[0], hours[-1])
        intact = publish.only_compacted_since(table, state.published_snapshot_id)
        return entities.narrowed(question, decision, rows=rows, intact=intact)

    def _question(
        self, target: Target, state: ProcessState, heads: Mapping[str, Head], *, reset: bool = False
    ) -> PlanningInput:
        self._check_target(target, state, reset=reset)
        marks = {} if reset else state.watermarks
        found = tuple(self._changes(s, marks, heads) for s in target.sources)
        return PlanningInput(
            target.table,
            target.mode,
            found,
            state.committed,
            target.code_version,
            state.revision,
            grain=target.grain,
            start=self.pipeline.start_hour,
        )

    def _check_target(self, target: Target, state: ProcessState, *, reset: bool) -> None:
        """Whether the target can be published to. Before its first session it may not be there yet."""
        if state.session is None and tables.find(self.catalog, target.table) is None:
            return
        table = tables.load(self.catalog, target.table)
        tables.check_write_audit_publish(table, target.table)
        check_grain(table, target.time_column, target.grain)
        if not reset:
            publish.check_not_rolled_back(table, target.table, state.published_snapshot_id)

    def _changes(self, source: Source, marks: Mapping[str, Watermark], heads: Mapping[str, Head]) -> SourceChanges:
        mark, head = marks.get(source.table), heads.get(source.table)
        return changes(self._source(source), source, mark, start=self.pipeline.start_hour, up_to=head)

    def _source(self, source: Source) -> Table:
        """A source as it stands; `SourceError` when it is not there or lacks a declared column."""
        table = tables.load(self.catalog, source.table)
        tables.check_columns(table, source.table, self._declared(source))
        return table

    def _declared(self, source: Source) -> dict[str, str | None]:
        for raw in self.pipeline.raw:
            if raw.table == source.table:
                return dict(raw.all_columns)
        for target in self.pipeline.targets:
            if target.table == source.table:
                return dict(target.columns)
        return {source.time_column: "timestamptz", **({source.key: None} if source.key else {})}

    def _heads_for_rebuild(self, state: ProcessState, reset: bool) -> dict[str, Head]:
        if reset:
            return {}
        return {name: Head(m.snapshot_id, m.complete_through) for name, m in state.watermarks.items()}

    def _resumed(self, target: Target, state: ProcessState) -> Work | None:
        """The open session, as planned; None if there is none. One that cannot be run any more is abandoned."""
        if state.open_session is None:
            return None
        work = Work(target, state, state.open_session)
        if self._can_be_finished(work):
            return work
        self.store.record(replace(work.record, state="abandoned", ended_at=self.clock()), after=work.record)
        return None

    def _can_be_finished(self, work: Work) -> bool:
        """Whether a session is published; or is what is declared now, and the snapshots that it reads are there."""
        table = tables.load(self.catalog, work.target.table)
        if work.record.state == "published" or publish.is_published(table, work.plan.session_id):
            return True
        if not _is_declared(work):
            return False
        for source, span in zip(work.target.sources, work.plan.sources, strict=True):
            known = {s.snapshot_id for s in self._source(source).metadata.snapshots}
            compared = work.plan.load == "append" or work.plan.changed_through is not None
            read = {span.to_snapshot_id, span.from_snapshot_id if compared else None}
            if not read - {None} <= known:
                return False
        return True

    def _opened(self, target: Target, state: ProcessState, decision: SessionPlan, run_id: str) -> Work:
        reach("before-planned")
        if state.session is None:
            self.create_tables()
        planned = SessionRecord(
            plan=decision,
            state="planned",
            revision=0,
            pattern_id=target.mode.pattern_id,
            run_id=run_id,
            started_at=self.clock(),
        )
        work = Work(target, state, self.store.record(planned, after=state.session))
        reach("after-planned")
        return work

    def _run(self, work: Work, began: float) -> SessionReport:
        work.seconds["plan"] = time.perf_counter() - began
        return self._runner().run(work)

    def _runner(self) -> Runner:
        return self.runner(self.catalog, self.pipeline, self.store, clock=self.clock, spark=self.spark)


def utc_now() -> datetime:
    """The clock of processes that need a real one."""
    return datetime.now(UTC)


def _blocked(state: ProcessState, decision: Decision) -> NoSession | None:
    """A session that an audit stopped is tried again when its plan or the code changed, not at every look."""
    last = state.session
    if last is None or last.state != "blocked" or not isinstance(decision, SessionPlan):
        return None
    same = last.plan.session_id == decision.session_id and last.plan.code_version == decision.code_version
    if not same:
        return None
    failed = "; ".join(f"{name}: {what}" for name, what in failures(last.audits).items())
    return NoSession(
        "blocked",
        f"{decision.session_id} was stopped by an audit ({failed}); it waits for a change of a source or of the code,"
        f" or for `lake catch-up {decision.process} --again`",
    )


def _is_declared(work: Work) -> bool:
    """Whether a session was planned for the sources, in their order, and the pattern that its target has now."""
    declared = [source.table for source in work.target.sources]
    same_pattern = work.record.pattern_id == work.target.mode.pattern_id
    return same_pattern and declared == [span.source for span in work.plan.sources]
