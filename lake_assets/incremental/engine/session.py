"""One attempt at a session: stage its rows, audit them, and commit.

1. Its rows are staged as a snapshot that main does not refer to, with the state after the session in its summary.
2. The audits evaluate that snapshot. If they fail in some hours only, and hours do not build on each other, those hours
   are held back: the others are staged and audited again without them.
3. One commit makes the snapshot main. The session happened if and only if this commit did. Then the log is written.

Failure model: a process may die, or stop and continue later, between any two lines, and any number of processes may run
sessions of one target at once. Nothing is open between attempts: one that ends before the commit has left a snapshot
that nobody refers to, and the next attempt plans anew. The commit requires main and the tag as planned, so of two
attempts one wins, and the other plans anew.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Literal, NoReturn

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lake_assets.base.described import find_refusal
from lake_assets.base.failpoints import reach
from lake_assets.base.hours import HOUR, Grain, format_hours, parse_hour
from lake_assets.errors import AuditFailed, ConfigurationError, LakeError, UsageError, main_moved, not_as_planned
from lake_assets.incremental.declaration import Stateless, Target
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.audit_run import audit_scope, evaluate, quarantine_results, ties_result
from lake_assets.incremental.engine.iceberg import files_by_hours, rows_between, written_hours
from lake_assets.incremental.engine.key_index import KeyIndex
from lake_assets.incremental.engine.model import (
    AuditResult,
    Committed,
    HeldHour,
    RowCounts,
    SessionPlan,
    SessionReport,
    held_by,
    hours_to_hold,
    settled,
)
from lake_assets.incremental.engine.planning import committed_after
from lake_assets.incremental.engine.session_log import SessionRecord
from lake_assets.incremental.engine.state import (
    BLOCKED,
    FAILED,
    OPENED,
    STATE,
    State,
    after_session,
    commit_state,
    summary_of,
)
from lake_assets.incremental.engine.user_code import naming_failed_rows

if TYPE_CHECKING:
    from lake_assets.incremental.engine.engine import Engine
    from lake_assets.incremental.engine.stage import PreparedRows

APPEND = "the new rows as one INSERT INTO"
OVERWRITE = "all planned hours, and no others, as one INSERT INTO ... REPLACE WHERE"


@dataclass(frozen=True)
class Staged:
    """What a session has staged.

    Attributes:
        after: The state after the session.
        snapshot_id: The staged snapshot; None if there was no row to write.
        hours: Hours whose partitions the snapshot writes or empties.
        rows: Rows that the snapshot adds.
        prepared: The rows of the session; None for a session without rows.
        quarantined: Rows that are new to the quarantine, at most one more than the target's limit.
        audits: The results of the audits.
        held: Planned hours that audits hold back; the snapshot leaves them out.
    """

    after: State
    snapshot_id: int | None = None
    hours: tuple[int, ...] = ()
    rows: int = 0
    prepared: PreparedRows | None = None
    quarantined: tuple[dict[str, str], ...] = ()
    audits: tuple[AuditResult, ...] = ()
    held: tuple[HeldHour, ...] = ()

    @property
    def unchanged(self) -> tuple[int, ...]:
        """Planned hours whose rows equal the published ones; the snapshot leaves them out."""
        return () if self.prepared is None else self.prepared.unchanged

    @property
    def audited_hours(self) -> tuple[int, ...]:
        """The hours that audits evaluate, ascending; also those that should have been written and were not."""
        of_rows = () if self.prepared is None else self.prepared.hours
        return tuple(sorted({*self.hours, *self.unchanged, *of_rows}))

    @property
    def row_counts(self) -> RowCounts:
        """What became of the source rows."""
        return RowCounts() if self.prepared is None else self.prepared.row_counts


@dataclass
class Session:
    """One attempt at a session.

    Attributes:
        engine: What makes it.
        state: The state that it was planned on, with the target's table as it was then.
        plan: What it does.
        run_id: The run that makes the attempt.
        written: The snapshot that another program has written for it; None if it wrote none.
        is_external: Whether another program writes its rows.
        seconds: Step → wall time in seconds.
    """

    engine: Engine
    target: Target
    state: State
    plan: SessionPlan
    run_id: str
    written: Snapshot | None = None
    is_external: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.state.table is not None, "the tables are created before the first session"
        self.table: Table = self.state.table
        self.started_at = self.engine.clock()
        self.before = Committed() if self.plan.starts_anew else self.state.committed
        # One without hours may bring rows that belong in quarantine.
        self.reads_rows = self.plan.load != "none" or bool(self.plan.landings())

    def run(self) -> SessionReport:
        """Stage, audit and commit.

        Raises:
            AuditFailed: A blocking audit failed; nothing is published.
            PublishConflict: Main is not as it was when the session was planned.
        """
        name, log = self.target.table, self.engine.log
        try:
            staged = self.audited(self.staged())
            held_before = self.before.held_hours
            if not self.is_external and hours_to_hold(
                self.target.mode, staged.audits, staged.audited_hours, held_before
            ):
                without = self.audited(self.staged(held_by(self.plan, staged.audits)))
                if failures(without.audits):
                    staged = replace(without, held=())
                else:
                    staged = replace(without, audits=settled(staged.audits, without.audits))
            failed = failures(staged.audits, self.target.grain)
            if failed and not staged.held:
                self._stop(staged, failed)
            with self._timed("publish"):
                if staged.quarantined:
                    self._check_not_overtaken()
                    log.quarantine(name, [{**row, "session_id": self.plan.session_id} for row in staged.quarantined])
                reach("before-committed")
                after = commit_state(self.engine.catalog, self.table, staged.after, staged.snapshot_id)
            reach("after-committed")
        finally:
            if self.reads_rows:
                from lake_assets.connections.row_checkpoint import release_checkpoints

                release_checkpoints(self.engine.open_spark())
        with self._timed("commit"):
            record = self._record(staged, "committed")
            log.add(record, after)
        released = tuple(hour for hour in staged.audited_hours if hour in held_before)
        return record.report(counts=staged.row_counts, seconds=self.seconds, released=released)

    def staged(self, held: Collection[HeldHour] = ()) -> Staged:
        """Prepare the rows of the session without those of held hours, and stage them as a snapshot if there are any.

        Raises:
            PublishConflict: Main has moved meanwhile.
            LakeError: An expression of the target's function failed on a row.
        """
        if not self.reads_rows:
            return Staged(self._after())
        from lake_assets.incremental.engine.stage import Stager, write

        catalog, target, plan, before = self.engine.catalog, self.target, self.plan, self.before
        # The last hour that may have been built before: hours up to it that come out unchanged are left out.
        last_built: float | None = before.last_built
        if isinstance(target.mode, Stateless):
            last_built = inf
            if plan.envelope and before.waiting.keys() >= set(plan.hour_numbers):
                # Overdue hours are built even if they are empty. Without published rows, none would be left.
                last_built = inf if rows_between(self.table, target.time_column, *plan.envelope) else None
        with self._timed("stage"), naming_failed_rows(target, plan.hour_numbers):
            stager = Stager(
                self.engine.open_spark(),
                target,
                start=self.engine.pipeline.start_hour,
                main=publish.main_id(self.table),
                complete_through=before.complete_through,
                last_built=last_built if self.engine.leaves_out_unchanged and not self.is_external else None,
                overdue=before.waiting,
                max_rows=self._estimated_rows(),
                index=KeyIndex(catalog),
                catalog=catalog,
            )
            prepared = stager.prepare(plan.without([each.hour for each in held]))
            after = self._after(prepared, held)
            quarantined = tuple(prepared.quarantined_rows(target.most_quarantined(prepared.row_counts.read) + 1))
            staged = Staged(after, prepared=prepared, quarantined=quarantined, held=tuple(held))
            summary, _ = summary_of(after, publish.base_of(self.table))
            table = iceberg.load(catalog, target.table)
            if self.written is not None:
                if (plan.load, prepared.load) == ("append", "overwrite"):
                    self._open_as_overwrite(self.written)
                overwrites = plan.load == "overwrite"
                number = publish.stage_again(
                    catalog, target.table, self.written, overwrites=overwrites, summary=summary
                )
                table = iceberg.load(catalog, target.table)
                snapshot = table.snapshot_by_id(number)
                assert snapshot is not None
            elif self.is_external or not prepared.has_rows:
                return staged
            else:
                wap_id = publish.wap_id(plan.session_id, publish.next_staging_number(table, plan.session_id))
                write(prepared, wap_id, summary)
                table = iceberg.load(catalog, target.table)
                # Two attempts at once may have taken the same id. The state has the run, and when it began.
                found = publish.staged_snapshots(table, wap_id)
                own = [each for each in found if publish.summary_of(each).get(STATE) == summary[STATE]]
                snapshot = own[-1] if own else publish.staged_snapshot(table, wap_id)
            reach("after-staged")
            planned_on = publish.main_id(self.table)
            if snapshot.parent_snapshot_id != planned_on:
                raise main_moved(target.table, expected=planned_on, found=snapshot.parent_snapshot_id)
            added = {hour for hour in written_hours(table, snapshot, target.time_column)[0] if hour is not None}
            unexpected = added - set(prepared.hours)
            if unexpected:
                column = target.sources[0].time_column
                raise ConfigurationError(
                    f"{target.table} puts rows into hours that their source rows do not have:"
                    f" {format_hours(unexpected)}.",
                    remedy=f"A stateless transform keeps the source's {column} as {target.time_column}.",
                )
            hours = prepared.hours if prepared.load == "overwrite" else tuple(sorted(target.grain.whole(added)))
            return replace(staged, snapshot_id=snapshot.snapshot_id, hours=hours, rows=publish.rows_added(snapshot))

    def _open_as_overwrite(self, appended: Snapshot) -> NoReturn:
        """Refuse what another program has appended, and open the session again, to be written as an overwrite.

        Metadata alone do not show that a row was delivered again and may replace a stored one, so an append was
        planned. The target may not say when its rows landed, so the audits cannot see whether the right ones stand.
        """
        opened = dict(self.state.opened or {})
        opened["plan"] = {**opened["plan"], "load": "overwrite", "late_rows": []}
        self._remember(OPENED, opened)
        what = "appends rows, and some were delivered again: they may replace rows that the target has"
        raise not_as_planned(self.target.table, publish.summary_of(appended)[publish.WAP_ID], what, write=OVERWRITE)

    def audited(self, staged: Staged) -> Staged:
        """Return what is staged, with the results of its audits."""
        if staged.prepared is None:
            return staged
        with self._timed("audit"):
            target, counts = self.target, staged.row_counts
            new_rows = len(staged.quarantined)
            if new_rows > target.most_quarantined(counts.read):
                new_rows = staged.prepared.count_quarantined()  # no more than the limit + 1 were collected
            audits = quarantine_results(target, counts, new_rows=new_rows)
            audits += ties_result(target, counts.tied)
            if staged.prepared.load != "none":
                # Without a staged row the audits evaluate what is published: a source that was not read has rows, too.
                scope = audit_scope(
                    staged.prepared, snapshot_id=staged.snapshot_id, hours=staged.audited_hours, rows=staged.rows
                )
                audits = evaluate(target.audits, scope) + audits
            return replace(staged, audits=audits)

    def _stop(self, staged: Staged, failed: dict[str, str]) -> None:
        """Remember that a blocking audit stopped the session, and raise `AuditFailed`."""
        plan, name = self.plan, self.target.table
        self._check_not_overtaken()
        blocked = {
            "session_id": plan.session_id,
            "code_version": plan.code_version,
            # Without keys: no erasure could remove them from the metadata files of before.
            "failed": failures((replace(audit, sample=()) for audit in staged.audits), self.target.grain),
            "run_id": self.run_id,
            "n": staged.after.n,
        }
        self._remember(BLOCKED, blocked)
        record = self._record(staged, "blocked")
        self.engine.log.add(record)
        error = AuditFailed(name, failed)
        error.report = record.report(counts=staged.row_counts, seconds=self.seconds)
        raise error

    def remember_error(self, error: Exception) -> None:
        """Remember that the session ended with an error, so that commands show it until a session is committed.

        Only the kind of the error is kept: its message may name values of rows, which no erasure could remove.
        """
        if self.plan.kind == "rebuild":  # who asked for it has seen the error, and the target is as it was
            return
        before = self.state.failed or {}
        key = {"session_id": self.plan.session_id, "code_version": self.plan.code_version}
        is_same = key.items() <= before.items()
        refusal = find_refusal(error)
        kind = type(error.__cause__ if type(error) is LakeError and error.__cause__ else error)
        failed = {
            **key,
            "what": refusal.condition if refusal and refusal.condition else kind.__name__,
            "times": before["times"] + 1 if is_same else 1,
            "run_id": self.run_id,
        }
        # What others have done to the target meanwhile, or a catalog that is gone, must not hide the error.
        with suppress(Exception):
            self._remember(FAILED, failed)

    def _remember(self, name: str, value: Mapping[str, object]) -> None:
        """Set a property of the target, as JSON. Any session's commit ends it."""
        replaced = {BLOCKED, FAILED} - {name} if name != OPENED else ()
        changed = {**dict.fromkeys(replaced), name: json.dumps(value)}
        iceberg.set_properties(self.engine.catalog, self.target.table, changed)

    def _check_not_overtaken(self) -> None:
        """Raise `PublishConflict` if main has moved, before rows or keys of them are written elsewhere.

        A process that was paused may know rows that an erasure has removed since.
        """
        name = self.target.table
        publish.check_base(iceberg.load(self.engine.catalog, name), name, publish.base_of(self.table))

    def _after(self, prepared: PreparedRows | None = None, held: Collection[HeldHour] = ()) -> State:
        """Return the state after the session. It is part of what is staged."""
        mode = self.target.mode
        unchanged = prepared.unchanged if prepared else ()
        built = (*prepared.hours, *unchanged) if prepared else ()
        return after_session(
            self.state,
            self.plan,
            committed_after(mode, self.before, self.plan, built, unchanged, held),
            pattern_id=mode.pattern_id,
            run_id=self.run_id,
            started_at=self.started_at,
            rows_read=prepared.row_counts.read if prepared else 0,
            unchanged=unchanged,
        )

    def _estimated_rows(self) -> float:
        """Return about how many rows the session reads or writes, by metadata; infinite if a source does not say."""
        plan, target, before = self.plan, self.target, self.before
        if plan.envelope is None:
            return plan.cost.rows
        of_sources = plan.source_rows
        first, last = plan.envelope
        published = rows_between(self.table, target.time_column, first, last)
        if isinstance(target.mode, Stateless):
            # The rows of pending hours came with earlier snapshots, which the cost of the plan does not contain.
            was_pending = not before.pending.isdisjoint(plan.hour_numbers)
            if plan.load == "overwrite" and (target.sources[0].has_versions or was_pending):
                return of_sources + published
            waited = sum(each.rows for each in before.deferred) if plan.late_rows else 0
            return plan.cost.rows + waited + published
        state_before = rows_between(self.table, target.time_column, target.grain.first(first - 1), first - 1)
        return of_sources + published + state_before * len(target.grain.firsts(plan.hour_numbers))

    def _record(self, staged: Staged, state: Literal["committed", "blocked"]) -> SessionRecord:
        return SessionRecord(
            plan=self.plan,
            state=state,
            revision=staged.after.n,
            pattern_id=self.target.mode.pattern_id,
            run_id=self.run_id,
            started_at=self.started_at,
            ended_at=self.engine.clock(),
            staged_snapshot_id=staged.snapshot_id,
            published_snapshot_id=staged.snapshot_id if state == "committed" else None,
            built=staged.hours,
            unchanged=staged.unchanged,
            rows_read=staged.row_counts.read,
            rows_written=staged.rows,
            audits=staged.audits,
        )

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - began


# Results of the audits that are not declared


def failures(audits: Iterable[AuditResult], grain: Grain = HOUR) -> dict[str, str]:
    """Return the blocking audits that failed: name → counts, hours or days, and offending keys, for a message."""
    failed = {}
    for audit in audits:
        if audit.blocking and not audit.passed:
            counts = ", ".join(f"{number} {counted}" for counted, number in audit.counts.items())
            if audit.hours:
                counts = f"{counts} in {grain.format_hours(map(parse_hour, audit.hours))}"
            failed[audit.name] = f"{counts} (such as {', '.join(audit.sample)})" if audit.sample else counts
    return failed


# What another program has written


def next_wap_id(table: Table, plan: SessionPlan) -> str:
    """Return the WAP id that another program has to write the open session of a target under."""
    own_id = _id_of_writes(table, plan)
    return publish.wap_id(own_id, publish.next_staging_number(table, own_id))


def _id_of_writes(table: Table, plan: SessionPlan) -> str:
    """Return what the WAP ids of an open session begin with: an id of its plan, whatever id a caller gave it."""
    opened = json.loads(table.metadata.properties.get(OPENED, "null"))
    is_open = opened is not None and opened["plan"]["session_id"] == plan.session_id
    return str(opened["wap"]) if is_open else plan.session_id


def find_written(table: Table, plan: SessionPlan, time_column: str) -> Snapshot | None:
    """Return the newest snapshot that another program has staged for a session; None if no row had to be written.

    Raises:
        UsageError: Nothing was written.
        LakeError: What was written is not what the plan says.
    """
    own_id = _id_of_writes(table, plan)
    number = publish.next_staging_number(table, own_id) - 1
    if number == 0:
        if plan.load == "none":
            return None
        raise UsageError(
            f"Nothing was written for {plan.session_id}: no snapshot of its target has its WAP id.",
            remedy=f"Write with spark.wap.id set to {publish.wap_id(own_id, 1)}, in one commit.",
        )
    wap = publish.wap_id(own_id, number)
    snapshot, *others = publish.staged_snapshots(table, wap)
    replaced = set(plan.hour_numbers) if plan.load == "overwrite" else set()
    deviations = []  # audits see the rows that were added, but not which were removed
    if others:
        deviations.append(f"makes {len(others) + 1} snapshots, of which one alone could be published")
    else:
        _, removed, deletes_rows = written_hours(table, snapshot, time_column)
        if deletes_rows:
            deviations.append("deletes single rows")
        unplanned = removed - replaced
        if unplanned:
            deviations.append(f"removes rows of {_in_words(unplanned)}, which was not planned")
        former = files_by_hours(table, snapshot, time_column, replaced)
        left = {h for part, entry in former if entry.snapshot_id != snapshot.snapshot_id for h in part} & replaced
        if left:
            deviations.append(f"leaves the former rows of {_in_words(left)}, which are to be replaced")
    if deviations:
        instruction = OVERWRITE if plan.load == "overwrite" else APPEND
        raise not_as_planned(plan.process, wap, " and ".join(deviations), write=instruction)
    return snapshot


def _in_words(hours: Collection[int | None]) -> str:
    """Return hours for a message; None stands for rows without a time."""
    timed = [hour for hour in hours if hour is not None]
    formatted = [format_hours(timed)] if timed else []
    return " and ".join(formatted + (["no hour"] if None in hours else []))
