"""What a process does next: planning with the tables and the log of sessions at hand. Reads metadata, changes nothing.

`planning.plan` decides; this module collects its input, and adapts its plans to what the target's table shows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lake_assets.incremental.declaration import Pipeline, Source, Stateless, Target
from lake_assets.incremental.execution import target_check
from lake_assets.incremental.execution.decisions import (
    buildable_hours,
    changed_hours,
    heads_at,
    left_by,
    wait_if_beyond_data,
    wait_if_blocked,
    with_problem,
    with_unpublished_id,
)
from lake_assets.incremental.execution.session_log import ProcessState
from lake_assets.incremental.execution.source_heads import Heads, usable_heads
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.metadata.declared_columns import check_target
from lake_assets.incremental.metadata.misread_files import check_new_files
from lake_assets.incremental.metadata.newest_event import source_complete_through
from lake_assets.incremental.metadata.partitions import check_grain, rows_between
from lake_assets.incremental.metadata.source_tables import load_source
from lake_assets.incremental.planning import entities
from lake_assets.incremental.planning.changes import (
    Head,
    ReadBudget,
    SourceChanges,
    Watermark,
    changes,
    hours_present,
)
from lake_assets.incremental.planning.plan import (
    Committed,
    PlanningInput,
    in_whole_partitions,
    last_buildable_hour,
    plan,
    plan_acknowledged,
    plan_no_hours,
    plan_rebuild,
)
from lake_assets.incremental.planning.session import Decision, NoSession, SessionPlan
from lake_assets.settings import settings


class Planner:
    """Plans the sessions of one target.

    Args:
        clock: Gives the present moment, by which deferred hours are due; None defers none.
        exact_hours_bytes: Size up to which a source's data file is opened to plan the hours of its rows; None for that
            of the settings.
    """

    def __init__(
        self,
        catalog: Catalog,
        pipeline: Pipeline,
        target: Target,
        *,
        clock: Callable[[], datetime] | None = None,
        exact_hours_bytes: int | None = None,
    ) -> None:
        self.catalog = catalog
        self.pipeline = pipeline
        self.target = target
        self.clock = clock
        self.exact_hours_bytes = exact_hours_bytes

    def next_session(
        self,
        state: ProcessState,
        *,
        up_to: Heads | None = None,
        retry_blocked: bool = False,
        force: bool = False,
        deferred: bool = False,
    ) -> Decision:
        """Plan the next session.

        Args:
            up_to: Heads of the sources to plan up to; None for the current ones. A head that another process has
                passed, or that does not exist any more, does not count.
            retry_blocked: Also plan a session that an audit has stopped, though nothing has changed since.
            force: Also plan a session that builds more than a day beyond the newest rows.
            deferred: Also plan hours that wait by the policy for late rows.
        """
        known = self._planning_input(state, usable_heads(self.catalog, state.watermarks, up_to or {}))
        known = replace(known, late=None) if deferred else known
        decision = self._completed(state, self._cheapest(known, state))
        if not force:
            decision = wait_if_beyond_data(decision, self.target.grain)
        if retry_blocked:
            return decision
        return wait_if_blocked(state, decision, self.target)

    def external_session(self, state: ProcessState) -> Decision:
        """Plan the next session for another program, which recomputes all entities.

        A session that an audit has stopped is planned again, because the program may have been repaired.
        """
        known = self._planning_input(state)
        return self._completed(state, plan(replace(known, late=None, history=())))

    def acknowledgement(self, state: ProcessState) -> Decision:
        """Plan the next session; if it has to wait, plan to move the watermark, so that changed hours are pending."""
        known = self._planning_input(state)
        return self._completed(state, plan_acknowledged(known))

    def rebuild(
        self,
        state: ProcessState,
        hours: Collection[int],
        *,
        run_id: str,
        reset: bool,
    ) -> Decision:
        """Plan to rebuild hours.

        Args:
            reset: Read the sources at their current heads, and start the watermarks anew there. Otherwise read them as
                of the watermarks, which stay. If the target was dropped and created again, all hours are rebuilt.
        """
        table = tables.find(self.catalog, self.target.table)
        if reset and table is not None and target_check.is_replaced(table, state):
            return self.rebuild_all(state)
        known = self._planning_input(state, {} if reset else heads_at(state), reset=reset)
        decision = self._plan_rebuild(state, known, hours, run_id=run_id, reset=reset)
        return self._completed(state, decision, repaired=table if reset else None)

    def rebuild_all(self, state: ProcessState) -> Decision:
        """Plan to rebuild all hours that the sources or the target have, as if the target had no watermark."""
        table = tables.load(self.catalog, self.target.table)
        known = self._planning_input(state, reset=True)
        present = self.target.grain.whole(hours_present(table, self.target.time_column))
        decision = plan(replace(known, committed=Committed(pending=present)))
        if isinstance(decision, SessionPlan):
            decision = replace(decision, kind="rebuild", starts_anew=True)
        return self._completed(state, decision, repaired=table)

    def repair(self, state: ProcessState, *, run_id: str) -> Decision:
        """Plan to rebuild the hours in which others have changed the target; all hours if nothing says which.

        Raises:
            TargetDropped: The target does not exist any more.
            TargetReplaced: The target is another table than the one that was built.
        """
        table = target_check.target_table(self.catalog, state)
        target_check.check_same_table(table, state)
        found = target_check.changed_by_others(table, self.target, state)
        if found is None:
            return NoSession("idle", f"nobody else has changed rows of {self.target.table}")
        if found.hours is None:
            return self.rebuild_all(state)
        known = self._planning_input(state, heads_at(state), as_it_is=True)
        hours = buildable_hours(known, found)
        if not hours:
            note = "others have changed no hour that a session builds"
            return self._completed(state, plan_no_hours(known, note, token=run_id), repaired=table)
        decision = self._plan_rebuild(state, known, hours, run_id=run_id, reset=False)
        is_complete = isinstance(decision, SessionPlan) and hours <= set(decision.hour_numbers)
        return self._completed(state, decision, repaired=table if is_complete else None)

    def buildable_range(self, state: ProcessState) -> tuple[int, int | None]:
        """Return the first and the last hour, inclusive, that a session may build; None for no last one."""
        known = self._planning_input(state, heads_at(state), as_it_is=True)
        if isinstance(self.target.mode, Stateless):
            return self.pipeline.start_hour, None
        last = last_buildable_hour(known)
        return self.pipeline.start_hour, self.pipeline.start_hour - 1 if last is None else last

    def _plan_rebuild(
        self,
        state: ProcessState,
        known: PlanningInput,
        hours: Collection[int],
        *,
        run_id: str,
        reset: bool,
    ) -> Decision:
        present = changed_hours(known)
        if reset:
            # A replaced source may lack hours that the former one had: they are to be emptied.
            table = tables.load(self.catalog, self.target.table)
            present |= hours_present(table, self.target.time_column)
        token = f"{run_id}|{self.target.code_version}|{state.revision}"
        return plan_rebuild(known, hours, present=present, token=token)

    def source_table(self, source: Source) -> Table:
        """Load a source.

        Raises:
            SourceError: It does not exist or lacks a declared column.
        """
        return load_source(self.catalog, self.pipeline, source, reader=self.target)

    def _planning_input(
        self,
        state: ProcessState,
        heads: Mapping[str, Head] | None = None,
        *,
        reset: bool = False,
        as_it_is: bool = False,
    ) -> PlanningInput:
        """Collect the input of a plan.

        Args:
            heads: Source → the head to read it up to; the current one for other sources.
            reset: Read the sources from the beginning.
            as_it_is: Also plan for a target that is not as its sessions left it.
        """
        self._check_target(state, as_it_is=reset or as_it_is)
        found = []
        budget = self._read_budget()
        for source in self.target.sources:
            since = None if reset else state.watermarks.get(source.table)
            up_to = heads.get(source.table) if heads else None
            found.append(self._changes(source, since, up_to, budget))
        committed = self._committed(state, reset=reset)
        return PlanningInput(
            process=self.target.table,
            mode=self.target.mode,
            changes=tuple(found),
            committed=committed,
            code_version=self.target.code_version,
            revision=state.revision,
            grain=self.target.grain,
            start=self.pipeline.start_hour,
            late=self.target.late,
            now=self.clock() if self.clock and self.target.late else None,
            history=self._history(found[0].since) if committed.deferred else (),
        )

    def _history(self, mark: Watermark | None) -> tuple[int, ...]:
        """Return the snapshots of the driving source up to its watermark, oldest first, without a gap."""
        if mark is None or mark.snapshot_id is None:
            return ()
        table = self.source_table(self.target.sources[0])
        newest_first = [snapshot.snapshot_id for snapshot in publish.ancestors(table, mark.snapshot_id)]
        return tuple(reversed(newest_first))

    def _committed(self, state: ProcessState, *, reset: bool) -> Committed:
        """Return what is committed; if the watermarks are lost, with all hours of the target pending.

        A source may have lost all rows of an hour since. Only the target's own partitions still name that hour.
        """
        are_lost = state.session is not None and not state.watermarks
        committed = in_whole_partitions(state.committed, self.target.grain)
        if reset or not are_lost:
            return committed
        table = tables.load(self.catalog, self.target.table)
        present = self.target.grain.whole(hours_present(table, self.target.time_column))
        return replace(committed, pending=committed.pending | present)

    def _check_target(self, state: ProcessState, *, as_it_is: bool) -> None:
        """Check that the target can be published to. Before its first session its table may not exist."""
        name = self.target.table
        if state.session is None and not state.watermarks and tables.find(self.catalog, name) is None:
            return
        table = target_check.target_table(self.catalog, state)
        tables.check_write_audit_publish(table, name)
        check_target(table, self.target)
        check_grain(table, self.target.time_column, self.target.grain)
        if not as_it_is:
            target_check.check_same_table(table, state)
            publish.check_not_rolled_back(table, name, state.published_snapshot_id)

    def _read_budget(self) -> ReadBudget:
        if self.exact_hours_bytes is None:
            return ReadBudget(settings().exact_hours_bytes)
        return ReadBudget(self.exact_hours_bytes)

    def _changes(
        self,
        source: Source,
        since: Watermark | None,
        up_to: Head | None,
        budget: ReadBudget,
    ) -> SourceChanges:
        table = self.source_table(source)
        present = Head(publish.main_id(table), source_complete_through(table, source.table, self.pipeline))
        found = changes(
            table,
            source,
            since,
            start=self.pipeline.start_hour,
            up_to=up_to or present,
            budget=budget,
        )
        added = {file.path for file in found.added}
        check_new_files(table, source.table, added, found.head.snapshot_id)
        return found

    def _cheapest(self, known: PlanningInput, state: ProcessState) -> Decision:
        """Return the next session: a whole chunk for the changed entities alone, else a chunk that begins small.

        Only the first session after a change can tell its entities apart, so it goes as far as it may.
        """
        whole_chunk = plan(replace(known, whole_chunks=True))
        narrowed = self._narrow_to_changed_entities(known, state, whole_chunk)
        if isinstance(narrowed, SessionPlan) and narrowed.changed_through is not None:
            return narrowed
        small_chunk = plan(known)
        if small_chunk == whole_chunk:
            return narrowed
        return self._narrow_to_changed_entities(known, state, small_chunk)

    def _narrow_to_changed_entities(
        self,
        known: PlanningInput,
        state: ProcessState,
        decision: Decision,
    ) -> Decision:
        """Return the plan; of a session that rebuilds hours, with whose rows it recomputes."""
        if not isinstance(decision, SessionPlan):
            return decision
        hours = entities.rebuilt(known, decision)
        if not hours:
            return decision
        table = tables.load(self.catalog, self.target.table)
        rows = rows_between(table, self.target.time_column, hours[0], hours[-1])
        intact = publish.only_compacted_since(table, state.published_snapshot_id)
        return entities.narrowed(known, decision, rows=rows, intact=intact)

    def _completed(self, state: ProcessState, decision: Decision, *, repaired: Table | None = None) -> Decision:
        """Return a decision with what the target's table adds to it.

        A plan gets a session id that was never published, and the version of the target. If others have changed the
        target, the decision says so.

        Args:
            repaired: The target in a state of which the plan rebuilds everything that others have changed; None if
                it does not.
        """
        table = repaired or tables.find(self.catalog, self.target.table)
        if table is None:
            return decision
        found = None if repaired else target_check.changed_by_others(table, self.target, state)
        if isinstance(decision, SessionPlan):
            found = left_by(decision, found)
            version = target_check.version_to_record(table, state, found)
            decision = replace(with_unpublished_id(table, decision), target=version)
        return decision if found is None else with_problem(decision, self.target, found)
