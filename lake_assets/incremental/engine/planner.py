"""What a target does next: planning with the tables and the state at hand; and when raw tables are complete.

`planning` decides; this module collects its input. A raw table is complete through an hour by its property, by a rule,
or by what the Kafka Connect sink says, and `lake complete` sets it by hand. By the rule, an hour is complete once the
table has an event that is late enough. The rule reads no clock: equal tables have an equal complete-through. An event
that is dated after the commit of its snapshot does not count, so a wrong time in the future completes nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table

from lake_assets.base.described import is_machines_fault
from lake_assets.base.hours import HOUR_MICROSECONDS, Grain, format_hours, hour_key, hour_of, is_hour, ranges
from lake_assets.errors import (
    HistoryCut,
    InvalidHourKey,
    TableMissing,
    UsageError,
    suggestion,
)
from lake_assets.incremental.declaration import Pipeline, Source, Stateless, Target
from lake_assets.incremental.declaration.model import VALID_THROUGH, is_name_of
from lake_assets.incremental.engine import iceberg, planning, publish
from lake_assets.incremental.engine.columns import check_target, check_time_columns, load_source
from lake_assets.incremental.engine.iceberg import (
    bounds,
    check_grain,
    entries,
    hours_present,
    microseconds,
    rows_between,
    rows_of_files,
)
from lake_assets.incremental.engine.model import (
    MAX_HOURS,
    Committed,
    Decision,
    NoSession,
    PlanningInput,
    SessionPlan,
    cut,
    due_at,
    in_whole_partitions,
)
from lake_assets.incremental.engine.planning import last_buildable_hour, plan, plan_rebuild, processing_uris
from lake_assets.incremental.engine.readable import check_files
from lake_assets.incremental.engine.source_changes import Head, ReadBudget, SourceChanges, Watermark, changes
from lake_assets.incremental.engine.state import State, outside_changes, read_before
from lake_assets.settings import settings

SINK_VALID_THROUGH = "kafka.connect.valid-through-ts"
MILLISECOND_MICROSECONDS = 1000
BEFORE_ALL = -(1 << 63)
"""Before every time that a column can have, in microseconds since 1970."""


def source_complete_through(table: Table, name: str, pipeline: Pipeline) -> int | None:
    """Return a source's complete-through: by its property, or by the rule of its declaration, whichever is later.

    Args:
        table: The source.
        name: Its name.
        pipeline: Declares the rule, if there is one.

    Returns:
        None if neither declares an hour.

    Raises:
        InvalidHourKey: The property is no hour key.
        SourceError: The rule needs a time column that is missing, or no timestamp.
    """
    declared = iceberg.complete_through(table, name)
    raw = pipeline.raw_table(name)
    by_rule = None
    if raw is not None and raw.complete_after == VALID_THROUGH:
        by_rule = complete_by_sink(table)
    elif raw is not None and raw.lag is not None:
        check_time_columns(table, raw)
        by_rule = complete_by_rule(newest_event(table, raw.time_column), raw.lag)
    known = [hour for hour in (declared, by_rule) if hour is not None]
    return max(known, default=None)


def complete_by_sink(table: Table) -> int | None:
    """Return the last hour that has ended by the time through which the Kafka Connect sink says that all is committed.

    The sink writes the time into the summary of a snapshot, as Java's OffsetDateTime prints it, if all partitions of
    its topics have answered (`org.apache.iceberg.connect.channel.Coordinator`); other snapshots have none.

    Returns:
        None if no retained snapshot of main has a time that can be read.
    """
    for snapshot in publish.ancestors(table):
        text = publish.summary_of(snapshot).get(SINK_VALID_THROUGH)
        try:
            moment = datetime.fromisoformat(text) if text else None
        except ValueError:
            moment = None
        if moment is not None and moment.tzinfo is not None:
            return hour_of(moment) - 1
    return None


def complete_by_rule(newest: int | None, lag: timedelta) -> int | None:
    """Return the last hour whose end is at least `lag` before the newest event; None without an event that counts.

    Args:
        newest: Time of the newest event, microseconds since 1970. One before the year 1 does not count.
        lag: How much later than the end of a complete hour it must be.
    """
    if newest is None or not is_hour(newest // HOUR_MICROSECONDS - lag // timedelta(hours=1) - 2):
        return None
    return (newest - lag // timedelta(microseconds=1)) // HOUR_MICROSECONDS - 1


def newest_event(table: Table, time_column: str) -> int | None:
    """Return the time of the newest event at the head of a table that is not after the commit of its snapshot.

    Bounds of data files tell it. Files of the newest manifests are looked at first, because what was committed before
    the newest event so far has none that is newer. A file is opened only if it has no bounds, or one after its commit.

    Returns:
        Microseconds since 1970; None without such an event.

    Raises:
        TableDamaged: A file that must be opened is gone or cannot be read.
    """
    field = table.schema().find_field(time_column)
    committed = {each.snapshot_id: each.timestamp_ms * MILLISECOND_MICROSECONDS for each in table.metadata.snapshots}
    # A snapshot that has expired was committed before all that are left.
    earliest = min((committed[each.snapshot_id] for each in publish.ancestors(table)), default=0)
    snapshot = table.current_snapshot()
    newest = BEFORE_ALL
    unread: list[tuple[int, DataFile]] = []
    manifests = snapshot.manifests(table.io) if snapshot else []
    for manifest in sorted(manifests, key=lambda each: each.sequence_number, reverse=True):
        manifest_limit = committed.get(manifest.added_snapshot_id or 0, earliest)
        if manifest.content is not ManifestContent.DATA or manifest_limit <= newest:
            continue
        for entry in entries(manifest, table.io):
            file = entry.data_file
            limit = min(manifest_limit, committed.get(entry.snapshot_id or 0, earliest))
            times = bounds(file, field)
            if limit <= newest or (file.null_value_counts or {}).get(field.field_id) == file.record_count:
                continue
            if times is not None and times[1] <= limit:
                newest = max(newest, times[1])
            else:
                unread.append((limit, file))
    for limit, file in sorted(unread, key=lambda each: (-each[0], each[1].file_path)):
        try:
            for batch in rows_of_files(table, [file], [time_column]) if limit > newest else ():
                times = microseconds(batch, time_column)
                latest = pc.max(times.filter(pc.less_equal(times, limit))).as_py()
                newest = newest if latest is None else max(newest, latest)
        except FileNotFoundError as error:
            raise iceberg.file_damage(".".join(table.name()), file.file_path, error, table.io) from error
    return None if newest == BEFORE_ALL else newest


@dataclass(frozen=True)
class Completed:
    """A raw table's complete-through.

    Attributes:
        table: The raw table.
        before: The hour before the change; None if it was not set.
        after: The hour now.
    """

    table: str
    before: int | None
    after: int


@iceberg.retrying().wraps
def declare_complete(
    catalog: Catalog,
    pipeline: Pipeline,
    name: str,
    hour: int,
    *,
    force: bool = False,
) -> Completed:
    """Set a raw table's complete-through.

    Args:
        catalog: The catalog.
        pipeline: The pipeline that declares the raw table.
        name: The table, with or without its namespace.
        hour: The last complete hour, inclusive.
        force: Also go back to an earlier hour, and replace a value that is no hour key. Hours that targets have built,
            and their complete-through, stay.

    Raises:
        InvalidHourKey: The present value is no hour key, without `force`.
        UsageError: The name is not one raw table, or the hour is earlier than the present one, without `force`.
        TableMissing: The table does not exist.
    """
    known = [each.table for each in pipeline.raw]
    if pipeline.find_target(name) is not None:
        remedy = f"Name a raw table: {', '.join(known)}."
        raise UsageError(f"{name} is a target: its sessions set its complete-through.", remedy=remedy)
    named = [table for table in known if is_name_of(name, table)]
    if len(named) != 1:
        pipeline.refuse_broken(name)
        raise UsageError(f"There is no raw table {name!r}.", remedy=suggestion(name, known))
    (raw,) = named
    table = iceberg.load(catalog, raw)
    try:
        before = source_complete_through(table, raw, pipeline)
    except InvalidHourKey:
        if not force:
            raise
        before = None
    if before is not None and hour < before and not force:
        raise UsageError(
            f"{raw} is complete through {hour_key(before)} already; {hour_key(hour)} is earlier.",
            remedy="Name a later hour, or use --force to go back. Hours that were built from it stay.",
        )
    if hour != before:
        with table.transaction() as transaction:
            transaction.set_properties({iceberg.COMPLETE_THROUGH: hour_key(hour)})
    return Completed(raw, before, hour)


MAX_HOURS_BEYOND = 24
"""The most hours that a session builds beyond the newest row of its sources."""

MOST_SPANS = 5
"""Ranges of hours that a message names."""

Heads = Mapping[str, tuple[int | None, int | None]]
"""Source → (snapshot id, complete-through) to plan up to."""


class Planner:
    """Plans the sessions of one target.

    Args:
        clock: Gives the present moment, by which deferred hours are due; None defers none.
    """

    def __init__(
        self,
        catalog: Catalog,
        pipeline: Pipeline,
        target: Target,
        *,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self.catalog = catalog
        self.pipeline = pipeline
        self.target = target
        self.clock = clock

    def next_session(
        self,
        state: State,
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
        heads: dict[str, Head] = {}
        for source, seen in (up_to or {}).items():
            head = usable_head(iceberg.load(self.catalog, source), Head(*seen), state.watermarks.get(source))
            if head is not None:
                heads[source] = head
        known = self._planning_input(state, heads)
        decision = self._cheapest(replace(known, late=None) if deferred else known, state)
        decision = with_other_code(decision, state, self.target)
        if not force:
            decision = wait_if_beyond_data(decision, self.target.grain)
        if not retry_blocked:
            decision = wait_if_blocked(state, decision, self.target)
        return self._with_waited(decision, state)  # it reads manifests, so only for a session that may run

    def external_session(self, state: State) -> Decision:
        """Plan the next session for another program, which recomputes all entities.

        A session that an audit has stopped is planned again, because the program may have been repaired.
        """
        return self._with_waited(plan(replace(self._planning_input(state), late=None, history=())), state)

    def acknowledgement(self, state: State) -> Decision:
        """Plan the next session; if it has to wait, plan to move the watermark, so that changed hours are pending."""
        return plan(self._planning_input(state), acknowledge=True)

    def rebuild(self, state: State, hours: Collection[int], *, run_id: str, reset: bool) -> Decision:
        """Plan to rebuild hours.

        Args:
            reset: Read the sources at their current heads, and start the watermarks anew there. Otherwise read them as
                of the watermarks, which stay.
        """
        known = self._planning_input(state, {} if reset else _heads(state), reset=reset)
        # A replaced source may lack hours that the former one had: they are to be emptied.
        present = self._present(state) if reset else frozenset[int]()
        token = f"{run_id}|{self.target.code_version}|{state.highest}"
        return plan_rebuild(known, hours, present=present, token=token)

    def rebuild_all(self, state: State) -> Decision:
        """Plan to rebuild all hours that the sources or the target have, as if the target had no watermark."""
        known = self._planning_input(state, reset=True)
        every = dict.fromkeys(sorted(self._present(state)), "all hours are rebuilt")
        decision = plan(replace(known, committed=Committed().with_changed(every)))
        if isinstance(decision, SessionPlan):
            decision = replace(decision, kind="rebuild", starts_anew=True)
        return decision

    def from_nothing(self, state: State) -> Decision:
        """Plan to build all hours that the sources have as of the watermarks, as if the target had built none.

        Hours that the target has built are complete, also if their sources do not say so any more.
        """
        known = self._planning_input(state, _heads(state), reset=True)
        built = state.committed.last_built
        if built is not None:
            changes = []
            for each in known.changes:
                through = max(built, built if each.head.complete_through is None else each.head.complete_through)
                changes.append(replace(each, head=replace(each.head, complete_through=through)))
            known = replace(known, changes=tuple(changes))
        return plan(replace(known, committed=Committed()))

    def buildable_range(self, state: State) -> tuple[int, int | None]:
        """Return the first and the last hour, inclusive, that a session may build; None for no last one."""
        start = self.pipeline.start_hour
        if isinstance(self.target.mode, Stateless):
            return start, None
        last = last_buildable_hour(self._planning_input(state))
        return start, None if last is None else int(last)

    def source_table(self, source: Source) -> Table:
        """Load a source.

        Raises:
            SourceError: It does not exist or lacks a declared column.
        """
        return load_source(self.catalog, self.pipeline, source, reader=self.target)

    def _planning_input(
        self, state: State, heads: Mapping[str, Head] | None = None, *, reset: bool = False
    ) -> PlanningInput:
        """Collect the input of a plan.

        Args:
            heads: Source → the head to read it up to; the current one for other sources.
            reset: Read the sources from the beginning.
        """
        if state.table is not None:
            iceberg.check_write_audit_publish(state.table, self.target.table)
            check_target(state.table, self.target)
            check_grain(state.table, self.target.time_column, self.target.grain)
        elif state.highest:
            raise TableMissing(self.target.table)
        found = []
        every: dict[int, str] = {}
        budget = ReadBudget(settings().exact_hours_bytes)
        for source in self.target.sources:
            since = None if reset else state.watermarks.get(source.table)
            up_to = heads.get(source.table) if heads else None
            try:
                found.append(self._changes(source, since, up_to, budget))
            except HistoryCut as error:
                if since is None:
                    raise
                # Nothing says what is new: all of it counts as new, and every hour is overwritten.
                found.append(self._changes(source, None, None, budget))
                every |= dict.fromkeys(self._present(state), f"all of it is read again: {error.problem}")
        found = [self._with_possible_hours(each, state) for each in found]
        committed = in_whole_partitions(state.committed, self.target.grain)
        if not reset:
            outside = outside_changes(state, self.target, self.pipeline.start_hour).hours
            every |= {hour: why for hour, why in outside.items() if hour >= self.pipeline.start_hour}
            committed = committed.with_changed(every)
        mark, history = found[0].since, tuple[int, ...]()
        if committed.deferred and mark is not None and mark.snapshot_id is not None:
            line = publish.ancestors(self.source_table(self.target.sources[0]), mark.snapshot_id)
            history = tuple(reversed([snapshot.snapshot_id for snapshot in line]))
        return PlanningInput(
            process=self.target.table,
            mode=self.target.mode,
            changes=tuple(found),
            committed=committed,
            code_version=self.target.code_version,
            revision=state.highest,
            grain=self.target.grain,
            start=self.pipeline.start_hour,
            late=self.target.late,
            now=self.clock() if self.clock and self.target.late else None,
            history=history,
        )

    def _present(self, state: State) -> frozenset[int]:
        """Return the hours for which the target has data files."""
        if state.table is None:
            return frozenset()
        return self.target.grain.whole(hours_present(state.table, self.target.time_column))

    def _with_possible_hours(self, found: SourceChanges, state: State) -> SourceChanges:
        """Return the changes of a source without hours that no changed row can be in.

        Metadata of a removed file may lack the hours of its rows. They may then be any since the start of the pipeline,
        which takes more sessions than anybody waits for. A row of a stateless target is in the hour of its source row,
        so only hours change that the target or a new file has, or that wait.
        """
        source = self.target.sources[0]
        is_copy = isinstance(self.target.mode, Stateless) and len(self.target.sources) == 1 and not source.has_versions
        rewrites = [snapshot for snapshot in found.effective if snapshot.effect == "rewrite"]
        touched = sum(last - first + 1 for snapshot in rewrites for first, last in snapshot.hours)
        if not is_copy or touched <= MAX_HOURS or state.table is None:
            return found
        possible = {*self._present(state), *state.committed.pending, *state.committed.held_hours}
        for file in found.added:
            for first, last in file.touched:
                possible.update(range(first, last + 1))
        hours = sorted(self.target.grain.whole(possible))
        snapshots = []
        for snapshot in found.snapshots:
            kept: list[int] = []
            for first, last in snapshot.hours:
                kept += hours[bisect_left(hours, first) : bisect_right(hours, last)]
            snapshots.append(replace(snapshot, hours=tuple(ranges(kept))))
        return replace(found, snapshots=tuple(snapshots))

    def _changes(
        self, source: Source, since: Watermark | None, up_to: Head | None, budget: ReadBudget
    ) -> SourceChanges:
        table = self.source_table(source)
        present = Head(publish.main_id(table), source_complete_through(table, source.table, self.pipeline))
        found = changes(table, source, since, start=self.pipeline.start_hour, up_to=up_to or present, budget=budget)
        check_files(table, source.table, found.head.snapshot_id, {file.path for file in found.added})
        return found

    def _with_waited(self, decision: Decision, state: State) -> Decision:
        """Return the plan; of a session that builds hours which have waited, with where their rows are."""
        waiting = state.committed.waiting
        planned = decision.hour_numbers if isinstance(decision, SessionPlan) else ()
        hours = [hour for hour in planned if hour in waiting]
        if not isinstance(decision, SessionPlan) or not hours:
            return decision
        named = list(decision.processing_uris)
        began = read_before(state, {waiting[hour].session_id for hour in hours})
        for source in self.target.sources:
            mark, since = state.watermarks.get(source.table), began.get(source.table)
            if mark is None:
                continue
            plain = Source(source.table, source.time_column, source.key, landed_column=source.landed_column)
            until = Head(mark.snapshot_id, mark.complete_through)
            try:
                start = self.pipeline.start_hour
                found = changes(self.source_table(source), plain, since, start=start, up_to=until)
            except HistoryCut:  # all of it is read anew
                continue
            named += [{**uri, "waited": True} for uri in processing_uris(found, hours) if uri not in named]
        return replace(decision, processing_uris=tuple(named))

    def _cheapest(self, known: PlanningInput, state: State) -> Decision:
        """Return the next session: a whole chunk for the changed entities alone, else a chunk that begins small.

        Only the first session after a change can tell its entities apart, so it goes as far as it may.
        """
        found = plan(known)
        if state.table is None or not planning.rebuilt(known, found):
            return found
        intact = publish.only_compacted_since(state.table, state.snapshot_id)
        for decision in (plan(replace(known, whole_chunks=True)), found):
            hours = planning.rebuilt(known, decision)
            rows = rows_between(state.table, self.target.time_column, hours[0], hours[-1])
            assert isinstance(decision, SessionPlan)
            found = planning.narrowed(known, decision, rows=rows, intact=intact)
            if found.changed_through is not None:
                break
        return found


def _heads(state: State) -> dict[str, Head]:
    return {name: Head(mark.snapshot_id, mark.complete_through) for name, mark in state.watermarks.items()}


def present_heads(
    catalog: Catalog, pipeline: Pipeline, names: Iterable[str]
) -> dict[str, tuple[int | None, int | None]]:
    """Return the heads of tables now: table → (snapshot id, complete-through).

    A catch-up reads them once, and its sessions plan up to them: else a busy writer would keep it from its end. A table
    that is damaged or declared wrongly is left out: the session that reads it reports why.
    """
    heads: dict[str, tuple[int | None, int | None]] = {}
    for name in names:
        try:
            table = iceberg.find(catalog, name)
            if table is not None:
                heads[name] = (publish.main_id(table), source_complete_through(table, name, pipeline))
        except Exception as error:  # also of a library that reads the files
            if is_machines_fault(error):
                raise
    return heads


def usable_head(table: Table, head: Head, mark: Watermark | None) -> Head | None:
    """Return the head to plan up to, for one that was read earlier.

    Args:
        table: The source, as it is now.
        head: The head that was read earlier.
        mark: The watermark of the target that reads the source.

    Returns:
        The watermark itself, if another process has moved it beyond the head: planning up to the head would take the
        target back. None for the present head, if the earlier one is no ancestor of it or has expired.
    """
    main = [snapshot.snapshot_id for snapshot in publish.ancestors(table)]
    newer = main  # than the head; main is listed from the newest on
    if head.snapshot_id is not None:
        if head.snapshot_id not in main:
            return None
        newer = main[: main.index(head.snapshot_id)]
    if mark is not None and mark.snapshot_id in newer:
        return Head(mark.snapshot_id, mark.complete_through)
    return head


def wait_if_beyond_data(decision: Decision, grain: Grain) -> Decision:
    """Return the decision; a wait if it builds more than a day of hours that are later than all rows of the sources.

    Hours of the newest row's own partition do not count.

    A source that is declared complete far beyond its rows, as by a heartbeat of the future, would otherwise make a
    target carry its state through years. An idle source builds hour by hour, which is always allowed.
    """
    if not isinstance(decision, SessionPlan):
        return decision
    newest = max((source.last_hour for source in decision.sources if source.last_hour is not None), default=None)
    if newest is None:
        return decision
    filled = grain.last(newest)
    beyond = [hour for hour in decision.hour_numbers if hour > filled]
    if len(beyond) <= MAX_HOURS_BEYOND or len(grain.firsts(beyond)) == 1:
        return decision
    # The hours that are left for later sessions would be built, too: one builds so many at most.
    known = {each.source: each.complete_through for each in decision.sources if each.complete_through is not None}
    complete = min(known.values()) if len(known) == len(decision.sources) else 0
    beyond = sorted({*beyond, *(hour for hour in decision.pending if filled < hour <= complete)})
    completeness = ", ".join(f"{source} through {hour_key(through)}" for source, through in known.items())
    return NoSession(
        "beyond",
        f"{len(beyond):,} hours up to {hour_key(beyond[-1])} would be built beyond the newest row, which is of hour "
        f"{hour_key(newest)}, because sources are declared complete: {completeness}. "
        f"`lake complete TABLE HOUR --force` corrects a wrong one; `lake catch-up {decision.process} --force` builds"
        " the hours",
        deferred=decision.deferred,
    )


def with_other_code(decision: Decision, state: State, target: Target) -> Decision:
    """Return a decision that also says which hours other code has built, and stay so after it, and how to rebuild."""
    planned = decision.hour_numbers if isinstance(decision, SessionPlan) and decision.load == "overwrite" else ()
    note = built_by_other_code(state, target, but=planned)
    if not note:
        return decision
    if isinstance(decision, NoSession):
        return replace(decision, reason=f"{decision.reason}; {note}")
    return replace(decision, notes=(*decision.notes, note))


def built_by_other_code(state: State, target: Target, *, but: Collection[int] = ()) -> str:
    """Return which hours other code than the present one has built, and how to rebuild them; empty if there are none.

    Args:
        but: Hours that are left out: they are about to be rebuilt.
    """
    known = (target.code_version, "")
    others = [(first, last) for first, last, version in state.committed.built_by if version not in known]
    rebuilt = [range(first, last + 1) for first, last in ranges(but)]
    left = [span for each in others for span in cut(each, rebuilt)]
    if not left:
        return ""
    hours = sum(last - first + 1 for first, last in left)
    text = ", ".join(format_hours(range(first, last + 1)) for first, last in left[:MOST_SPANS])
    more = f", and {len(left) - MOST_SPANS} ranges more" if len(left) > MOST_SPANS else ""
    return (
        f"built by other code: {text}{more} ({hours:,} {'hour' if hours == 1 else 'hours'}); "
        f"`lake rebuild {target.name} {hour_key(left[0][0])} {hour_key(left[-1][1])}` builds them again"
    )


def wait_if_blocked(state: State, decision: Decision, target: Target) -> Decision:
    """Return the decision; a wait if an audit has stopped just this plan of this code before."""
    blocked = state.blocked
    if blocked is None or not isinstance(decision, SessionPlan):
        return decision
    if (blocked["session_id"], blocked["code_version"]) != (decision.session_id, decision.code_version):
        return decision
    failed = "; ".join(f"{name}: {counts}" for name, counts in blocked["failed"].items())
    return NoSession(
        "blocked",
        f"{decision.session_id} was stopped by an audit ({failed}). It runs again when a source or the code changes,"
        f" or with `lake catch-up {decision.process} --again`",
        look_again_at=due_at(decision.deferred, target.late),
        deferred=decision.deferred,
    )
