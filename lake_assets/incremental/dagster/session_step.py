"""What a target's step does in a run, and the events that Dagster gets from it.

A run that a sensor requested carries its session in a tag. Any other run was launched by a person: it rebuilds the
partitions that they chose, or, if they executed checks alone, evaluates those and changes nothing.

A run plans all checks that it selects, and Dagster shows a planned check as skipped if the run did not evaluate it.
Sessions therefore select none and yield the evaluations that they have. A run of a person may have planned checks that
were not evaluated: their last evaluation is repeated. If the step yields no output, these are all checks that the run
has planned: Dagster skips those of steps of their own, and the steps downstream with theirs.

Dagster ends a backfill as failed if one of its runs succeeds without a partition that the backfill has asked for. A
partition that still waits for its sources is no failure, and a later session builds it: the run takes it out of the
backfill. If an upgrade changes backfills, Dagster's own verdict stays.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf
from typing import Any

import dagster as dg
from pydantic import Field

from lake_assets.base.hours import format_hours, hour_of, parse_hours
from lake_assets.errors import AuditFailed, UsageError, hours_held
from lake_assets.incremental.dagster.asset_specs import asset_key, materializations, rows_of_session, version_tags
from lake_assets.incremental.dagster.checks import (
    PENDING_HOURS,
    SKIPPED_HOURS,
    as_result,
    audit_evaluation,
    audit_evaluations,
    has_catchup_threshold,
    last_evaluation,
    of_newest_materialization,
    pending_hours_evaluation,
    planned_checks,
    published_metadata,
    shown_evaluation,
    skipped_hours_evaluation,
)
from lake_assets.incremental.dagster.session_runs import SESSION_TAG, heads_of
from lake_assets.incremental.declaration import Target
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import NoSession, SessionReport, verdicts_in_words

log = logging.getLogger(__name__)

ENDS_RUN = (Exception, dg.DagsterExecutionInterruptedError)
"""The second one, which is no `Exception`, is raised when a person cancels the run."""

BACKFILL_TAG = "dagster/backfill"
REQUESTED = "REQUESTED"
"""Status of a backfill that goes on."""

LOOKS = 5
LOOK_SECONDS = 0.5
"""Time until a run looks whether the backfill is as it has written it: the daemon may have written it meanwhile."""


def leave_out_of_backfill(context: dg.AssetExecutionContext, key: dg.AssetKey, partitions: Collection[str]) -> None:
    """Take partitions of an asset out of the backfill that a run belongs to, if it belongs to one. See `leave_out`."""
    backfill_id = context.run.tags.get(BACKFILL_TAG)
    if backfill_id is None or not partitions:
        return
    try:
        graph = _graph(context)
        leave_out(context.instance, backfill_id, key, partitions, graph=graph, in_run=context.run.asset_selection or ())
    except (AttributeError, TypeError, dg.DagsterError) as error:  # of another version, or of somebody's partitions
        log.warning("The backfill may end as failed, though nothing failed: it could not be changed (%s).", error)


def _graph(context: dg.AssetExecutionContext) -> Any:
    try:
        return context.repository_def.asset_graph
    except Exception:  # the run was started as a function, which knows the assets of its own job alone
        return context.job_def.asset_layer.asset_graph


def leave_out(
    instance: dg.DagsterInstance,
    backfill_id: str,
    key: dg.AssetKey,
    partitions: Collection[str],
    *,
    graph: Any,
    in_run: Collection[dg.AssetKey],
) -> None:
    """Take partitions of an asset out of a backfill, with all partitions downstream that read them.

    An asset that reads all partitions, as one that has none itself, stays if something upstream of it is built.

    The step of the asset yields no output then, so Dagster skips the assets downstream in the same run. What stays of
    them is requested again.

    Args:
        instance: Has the backfill.
        backfill_id: Its id.
        key: The asset.
        partitions: Keys of its partitions; the backfill need not have asked for all of them.
        graph: All assets.
        in_run: The assets of the run that leaves the partitions out.
    """
    for _ in range(LOOKS):
        backfill = instance.get_backfill(backfill_id)
        if backfill is None or backfill.status.value != REQUESTED:
            return
        data = backfill.asset_backfill_data
        if data is None or not _asks_for(data, key, partitions):
            return
        changed = _without(data, key, partitions, graph, in_run)
        instance.update_backfill(backfill._replace(asset_backfill_data=changed))
        time.sleep(LOOK_SECONDS)


def _asks_for(data: Any, key: dg.AssetKey, partitions: Collection[str]) -> bool:
    target = data.target_subset.partitions_subsets_by_asset_key.get(key)
    return target is not None and any(partition in target for partition in partitions)


def _without(
    data: Any,
    key: dg.AssetKey,
    partitions: Collection[str],
    graph: Any,
    in_run: Collection[dg.AssetKey],
) -> Any:
    """Return what a backfill asks for without some partitions of an asset. in_run: the assets of the same run."""
    asked: Any = data.target_subset.partitions_subsets_by_asset_key
    waiting = [each for each in partitions if each in asked[key]]
    left = {key: asked[key].partitions_def.subset_with_partition_keys(waiting)}
    skipped, gone = {key}, set()
    target = _less(data.target_subset, left)
    for each in graph.toposorted_asset_keys:
        parents = graph.get(each).parent_keys - {each}
        if parents & skipped and each in in_run:
            skipped.add(each)
        if each in asked:
            for parent in sorted(parents & left.keys()):
                reading = _reading(graph, each, parent, left[parent]) & asked[each]
                left[each] = left[each] | reading if each in left else reading
            target = _less(target, {each: left[each]} if each in left else {})
        targeted = parents & data.target_subset.asset_keys
        if targeted and not targeted & target.asset_keys:
            gone.add(each)
            target = target.filter_asset_keys(target.asset_keys - {each})
    requested = _less(data.requested_subset, left)
    kept = requested.asset_keys - (skipped - {key}) - gone
    return data._replace(target_subset=target, requested_subset=requested.filter_asset_keys(kept))


def _less(subset: Any, left: Mapping[dg.AssetKey, Any]) -> Any:
    return subset - type(subset).create_empty_subset()._replace(partitions_subsets_by_asset_key=dict(left))


def _reading(graph: Any, key: dg.AssetKey, parent: dg.AssetKey, partitions: Any) -> Any:
    """Return the partitions of an asset that read some of its parent; none if it reads all of them, however many."""
    mapping, of_asset = graph.get_partition_mapping(key, parent), graph.get(key).partitions_def
    if isinstance(mapping, dg.AllPartitionMapping):
        return of_asset.empty_subset()
    return mapping.get_downstream_partitions_for_partitions(partitions, graph.get(parent).partitions_def, of_asset)


StepEvent = dg.AssetMaterialization | dg.AssetCheckEvaluation | dg.AssetCheckResult | dg.MaterializeResult[None]


class AuditConfig(dg.Config):
    """Run configuration of a target's step, for runs that execute checks alone."""

    hours: list[str] = Field(
        default=[],
        description="Hours that executed checks evaluate, such as 2026-01-01-05:00 or"
        " 2026-01-01-05:00..2026-01-01-09:00. Default: the newest complete one.",
    )


class SessionStep:
    """One run of a target's step. hours: hours that checks evaluate, if a person executed checks alone."""

    def __init__(
        self, context: dg.AssetExecutionContext, engine: Engine, target: Target, *, hours: Iterable[str] = ()
    ) -> None:
        self.context = context
        self.hours = tuple(hours)
        self.evaluated: set[str] = set()
        self.has_output = False
        self.engine = engine
        self.target = target
        self.key = asset_key(target.table)

    def events(self) -> Iterator[StepEvent]:
        """Run the requested session, or rebuild the chosen partitions, and yield what Dagster shows.

        Raises:
            AuditFailed: A blocking audit stopped the session; raised after its evaluations.
            LakeError: Audits hold hours back; raised after all events, so that observers of failed runs notice.
            UsageError: A person launched the run without partitions.
        """
        if SESSION_TAG not in self.context.run.tags and self.key not in self.context.selected_asset_keys:
            self._audit_published()
            return
        try:
            yield from self._build_events()
        except ENDS_RUN as error:  # whatever it is, its planned checks must not lose their evaluations
            if isinstance(error, AuditFailed) and isinstance(error.report, SessionReport):
                yield from self._audit_events(error.report)
            yield from self._repeated_evaluations()
            raise
        yield from self._repeated_evaluations()

    def _build_events(self) -> Iterator[StepEvent]:
        if SESSION_TAG in self.context.run.tags:
            yield from self._session_events()
        else:
            yield from self._rebuild_events()

    def _session_events(self) -> Iterator[StepEvent]:
        """Run the session that the sensor requested, even if newer snapshots have landed since.

        A run that was overtaken, or that is executed again after its session, does nothing.
        """
        tags = self.context.run.tags
        outcome = self.engine.run(
            self.target,
            up_to=heads_of(tags) or None,
            only=tags[SESSION_TAG],
            run_id=self.context.run_id,
        )
        if isinstance(outcome, NoSession):
            self.context.log.info("Nothing was built: %s", outcome.reason)
            return
        self._log(outcome)
        yield from self._marks(outcome, outcome.hours_built)
        yield from self._check_events(outcome)

    def _rebuild_events(self) -> Iterator[StepEvent]:
        """Rebuild the chosen hours, in one session or several, and mark them, also those that are empty."""
        chosen = self._chosen_hours()
        reports: list[SessionReport] = []

        def ended(report: SessionReport) -> None:
            reports.append(report)
            self._log(report)

        try:
            outcome = self.engine.rebuild(self.target, sorted(chosen), run_id=self.context.run_id, on_session=ended)
        except ENDS_RUN:  # in a later session: the hours of those before it are built
            for report in reports:
                yield from self._marks(report, _rebuilt_hours(self.target, report))
            raise
        if isinstance(outcome, NoSession):
            self.context.log.warning("Nothing was rebuilt: %s", outcome.reason)
            self._leave_out(chosen)
            return
        rebuilt = {report.plan.session_id: _rebuilt_hours(self.target, report) for report in reports}
        left_out = chosen.difference(*rebuilt.values())
        if left_out:
            self._log_left_out(left_out, outcome)
            self._leave_out(left_out - {each.hour for each in outcome.held})
        else:
            self._add_output_metadata(reports, chosen)
        for report in reports:
            hours = rebuilt[report.plan.session_id]
            yield from self._marks(report, hours if left_out else hours - chosen)
        if not left_out:
            version = dg.DataVersion(outcome.data_version) if outcome.data_version else None
            tags = version_tags(self.target, outcome.plan.code_version, outcome.data_version)
            # Without an output, Dagster would skip the assets downstream in the same run.
            self.has_output = True
            yield dg.MaterializeResult(data_version=version, tags=tags)
        yield from self._check_events(outcome)

    def _leave_out(self, hours: Collection[int]) -> None:
        """Take partitions that wait for their sources out of the backfill that has asked for them."""
        grain = self.target.grain
        leave_out_of_backfill(self.context, self.key, [grain.key(hour) for hour in grain.firsts(hours)])

    def _log_left_out(self, hours: Collection[int], report: SessionReport) -> None:
        """Log the chosen hours that are not marked, with the reason."""
        held = {each.hour for each in report.held}
        planned = set(report.plan.hour_numbers)
        reasons = {
            "audits hold them back": held,
            "a source is not complete for them yet, so that later sessions build them again": planned - held,
            "a source is not complete for them yet, so that a later session builds them": set(hours) - planned - held,
        }
        for reason, concerned in reasons.items():
            found = concerned.intersection(hours)
            if found:
                self.context.log.warning("These hours are not marked, because %s: %s", reason, format_hours(found))

    def _marks(self, report: SessionReport, hours: Collection[int]) -> Iterator[dg.AssetMaterialization]:
        rows = rows_of_session(self.engine.catalog, self.target, report, hours)
        through = self.engine.state(self.target).committed.complete_through
        yield from materializations(self.target, report, hours, rows, complete_through=through)

    def _add_output_metadata(self, reports: Iterable[SessionReport], chosen: Collection[int]) -> None:
        """Add to each chosen partition, which the output of the step marks, what its session did."""
        for report in reports:
            hours = _rebuilt_hours(self.target, report).intersection(chosen)
            for marked in self._marks(report, hours):
                self.context.add_asset_metadata(marked.metadata, self.key, marked.partition)

    def _chosen_hours(self) -> set[int]:
        if not (self.context.has_partition_key or self.context.has_partition_key_range):
            raise UsageError(
                f"This run names no partition of {self.target.table}.",
                remedy="Choose partitions to materialize: a run rebuilds the hours that a person chose.",
            )
        window = self.context.partition_time_window
        return set(range(hour_of(window.start), hour_of(window.end)))

    def _audit_published(self) -> None:
        """Evaluate the selected checks on published rows and on the state of the target.

        The evaluations are logged: they may be of an asset that the run has not selected.
        """
        selected = {key.name for key in self.context.selected_asset_check_keys}
        committed = self.engine.state(self.target).committed
        for evaluation in self._state_evaluations():
            if evaluation.check_name in selected:
                self.context.log_event(evaluation)
        names = selected - {PENDING_HOURS, SKIPPED_HOURS}
        if not names:
            return
        found = self.engine.audit(self.target, parse_hours(self.hours, where="The run configuration"), names=names)
        for audit in found.audits:
            metadata = published_metadata(self.target.grain, found)
            evaluation = audit_evaluation(self.key, audit, committed.held, metadata=metadata)
            self.context.log_event(of_newest_materialization(self.context.instance, evaluation))

    def _check_events(self, report: SessionReport) -> Iterator[StepEvent]:
        """Yield the evaluations of a session after its materializations, because a check shows the one before it."""
        yield from self._audit_events(report)
        for evaluation in self._state_evaluations():
            yield from self._shown(evaluation)
        if report.held:
            raise hours_held(self.target.table, verdicts_in_words(report.held, self.target.grain))

    def _audit_events(self, report: SessionReport) -> Iterator[StepEvent]:
        held = self.engine.state(self.target).committed.held
        failed = {audit.name for audit in report.audits if not audit.passed}
        for evaluation in audit_evaluations(self.key, self.target.grain, report, held):
            yield from self._shown(evaluation, stops_run=evaluation.check_name in failed)

    def _state_evaluations(self) -> Iterator[dg.AssetCheckEvaluation]:
        """Yield the checks that need no rows: skipped and pending hours."""
        if has_catchup_threshold(self.target):
            skipped = self.engine.state(self.target).committed.skipped
            yield of_newest_materialization(self.context.instance, skipped_hours_evaluation(self.key, skipped))
        pending = pending_hours_evaluation(self.key, self.target.grain, self.engine.pending(self.target))
        yield of_newest_materialization(self.context.instance, pending)

    def _repeated_evaluations(self) -> Iterator[StepEvent]:
        """Yield the last evaluation of each check that this run has planned and does not evaluate."""
        instance = self.context.instance
        for check in sorted(self.context.selected_asset_check_keys, key=lambda check: check.name):
            last = None if check.name in self.evaluated else last_evaluation(instance, check)
            if last is not None:
                yield from self._shown(last)
        planned = () if self.has_output else planned_checks(instance, self.context.run_id)
        for check in planned:
            if check not in self.context.selected_asset_check_keys and shown_evaluation(instance, check) is None:
                last = last_evaluation(instance, check)
                if last is not None:
                    yield of_newest_materialization(instance, last)

    def _shown(self, evaluation: dg.AssetCheckEvaluation, *, stops_run: bool = False) -> Iterator[StepEvent]:
        """Yield an evaluation, as a result if the run has planned the check.

        What is only logged would be lost if the step raises afterwards.

        Args:
            evaluation: The evaluation.
            stops_run: Whether a failed blocking check stops the assets downstream in this run. An evaluation that fails
                because of an earlier session does not: its result is a warning, and the failure comes after it.
        """
        is_planned = evaluation.asset_check_key in self.context.selected_asset_check_keys
        if is_planned and evaluation.partition is None:
            self.evaluated.add(evaluation.check_name)
            stops = stops_run or evaluation.passed
            yield as_result(evaluation, evaluation.severity if stops else dg.AssetCheckSeverity.WARN)
            if stops:
                return
            evaluation = of_newest_materialization(self.context.instance, evaluation)
        yield evaluation

    def _log(self, report: SessionReport) -> None:
        """Log what the session did. A session without hours marks no partition, so only the log shows it."""
        log = self.context.log
        plan = report.plan
        log.info("Session %s (%s) is %s.", plan.session_id, plan, report.status)
        log.info("Hours built: %s.", format_hours(report.hours_built) or "none")
        if report.hours_unchanged:
            log.info("Hours left as they were, because nothing changed: %s.", format_hours(report.hours_unchanged))
        for note in plan.notes:
            log.info(note)
        if report.held:
            log.warning("Held back by audits: %s.", verdicts_in_words(report.held, self.target.grain))
        if plan.skipped:
            log.warning(
                "Skipped, because beyond the catch-up threshold: %s. Launch a backfill to build these hours.",
                format_hours(plan.skipped),
            )


def _rebuilt_hours(target: Target, report: SessionReport) -> set[int]:
    """Return the hours that a rebuild brought to their final state.

    An hour that a source is not complete for is left out: a stateless target builds it from the rows so far, and more
    rows will come.
    """
    all_through = [source.complete_through for source in report.plan.sources]
    known_through = [hour for hour in all_through if hour is not None]
    last_complete = target.grain.complete(min(known_through)) if known_through else inf
    held = {hour.hour for hour in report.held}
    built = {*report.plan.hour_numbers, *report.hours_built} - held
    return {hour for hour in built if hour <= last_complete}
