"""What a target's step does in a run, and the events that Dagster gets from it.

A run that a sensor requested carries its session in a tag. Any other run was launched by a person and rebuilds the
partitions that they chose.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import inf

import dagster as dg

from lake_assets.base.hours import format_hours, hour_of
from lake_assets.errors import HoursHeld, UsageError
from lake_assets.incremental.dagster.asset_specs import asset_key
from lake_assets.incremental.dagster.checks import (
    check_results,
    has_catchup_threshold,
    partition_evaluations,
    skipped_hours_result,
)
from lake_assets.incremental.dagster.materializations import materializations, report_metadata
from lake_assets.incremental.dagster.session_runs import SESSION_TAG, SNAPSHOTS_TAG
from lake_assets.incremental.declaration import Target
from lake_assets.incremental.execution.engine import Engine
from lake_assets.incremental.planning.session import NoSession, SessionReport
from lake_assets.incremental.planning.verdicts import in_words

StepEvent = dg.AssetMaterialization | dg.AssetCheckResult | dg.MaterializeResult[None]


class SessionStep:
    """One run of a target's step."""

    def __init__(self, context: dg.AssetExecutionContext, engine: Engine, target: Target) -> None:
        self.context = context
        self.engine = engine
        self.target = target
        self.key = asset_key(target.table)

    def events(self) -> Iterator[StepEvent]:
        """Run the requested session, or rebuild the chosen partitions, and yield what Dagster shows.

        Raises:
            AuditFailed: A blocking audit stopped the session.
            HoursHeld: Audits hold hours back; raised after all events, so that observers of failed runs notice.
            UsageError: A person launched the run without partitions.
        """
        if SESSION_TAG in self.context.run.tags:
            yield from self._session_events()
        else:
            yield from self._interrupted_session_events()
            yield from self._rebuild_events()

    def _session_events(self) -> Iterator[StepEvent]:
        """Run the session that the sensor requested, even if newer snapshots have landed since.

        A run that was overtaken, or that is executed again after its session, does nothing.
        """
        tags = self.context.run.tags
        snapshots = json.loads(tags.get(SNAPSHOTS_TAG, "{}"))
        up_to = {}
        for source, found in snapshots.items():
            up_to[source] = (found["to"], found["complete_through"])
        outcome = self.engine.run(
            self.target,
            up_to=up_to or None,
            only=tags[SESSION_TAG],
            run_id=self.context.run_id,
        )
        if isinstance(outcome, NoSession):
            self.context.log.info("Nothing was built: %s", outcome.reason)
            return
        self._log(outcome)
        yield from materializations(self.target, outcome, outcome.hours_built)
        yield from self._check_events(outcome)

    def _interrupted_session_events(self) -> Iterator[StepEvent]:
        """Finish an interrupted session before a rebuild. Its checks are left out: a step shows each check once."""
        if not self.engine.store.state(self.target.table).open_session:
            return
        finished = self.engine.run(self.target, run_id=self.context.run_id)
        if isinstance(finished, SessionReport):
            self._log(finished)
            yield from materializations(self.target, finished, finished.hours_built)

    def _rebuild_events(self) -> Iterator[StepEvent]:
        """Rebuild the chosen hours and mark them, also those that are empty."""
        chosen = self._chosen_hours()
        outcome = self.engine.rebuild(self.target, sorted(chosen), run_id=self.context.run_id)
        if isinstance(outcome, NoSession):
            raise dg.Failure(f"Nothing was rebuilt: {outcome.reason}", allow_retries=False)
        self._log(outcome)
        rebuilt = _rebuilt_hours(self.target, outcome)
        left_out = chosen - rebuilt
        if left_out:
            self.context.log.warning(
                "These hours are not marked, because audits hold them back or a source is not complete: %s",
                format_hours(left_out),
            )
            yield from materializations(self.target, outcome, rebuilt)
        else:
            # Without an output, Dagster would skip the assets downstream in the same run.
            version = dg.DataVersion(outcome.data_version) if outcome.data_version else None
            yield dg.MaterializeResult(metadata=report_metadata(outcome), data_version=version)
            yield from materializations(self.target, outcome, rebuilt - chosen)
        yield from self._check_events(outcome)

    def _chosen_hours(self) -> set[int]:
        is_selected = self.key in self.context.selected_asset_keys
        has_partitions = self.context.has_partition_key or self.context.has_partition_key_range
        if not (is_selected and has_partitions):
            raise UsageError(
                f"This run names no partition of {self.target.table}.",
                remedy="Materialize partitions: audits evaluate what a session is about to publish.",
            )
        window = self.context.partition_time_window
        return set(range(hour_of(window.start), hour_of(window.end)))

    def _check_events(self, report: SessionReport) -> Iterator[StepEvent]:
        """Yield the results of the audits after the materializations, because a check shows the one before it.

        The evaluations of single partitions come first, because the newest evaluation is what the asset shows.
        """
        for evaluation in partition_evaluations(self.key, self.target.grain, report):
            self.context.log_event(evaluation)
        yield from check_results(self.key, report.audits)
        if has_catchup_threshold(self.target):
            skipped = self.engine.store.state(self.target.table).committed.skipped
            yield skipped_hours_result(self.key, skipped)
        if report.held:
            raise HoursHeld(self.target.table, in_words(report.held))

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
            log.warning("Held back by audits: %s.", in_words(report.held))
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
