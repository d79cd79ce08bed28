"""The sensor of a target: requests the target's next session, or gives the reason why there is none.

A sensor decides from table metadata at every tick and changes nothing but its cursor, so a lost tick costs nothing but
time. The daemon looks at sensors every 5 s, however small their interval.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import dagster as dg

from lake_assets.base.failpoints import reach
from lake_assets.incremental.dagster.check_history import shown_evaluation
from lake_assets.incremental.dagster.checks import audit_evaluation, pending_hours_evaluation
from lake_assets.incremental.dagster.materializations import materializations, rows_of_session
from lake_assets.incremental.dagster.session_runs import (
    Attempt,
    busy_run,
    describe_attempts,
    ended_attempts,
    rest_seconds,
    retry_remedy,
    run_request,
)
from lake_assets.incremental.declaration import Pipeline, Target
from lake_assets.incremental.execution.engine import Engine
from lake_assets.incremental.execution.session_log import SessionRecord
from lake_assets.incremental.planning.plan.pending_hours import pending_hours
from lake_assets.incremental.planning.session import Decision, NoSession, SessionPlan

NOT_WAITING = "{}"
"""Cursor of a target that waits for nothing. An empty cursor would leave the previous one in place."""

SESSIONS_PER_TICK = 20
"""How many of a target's newest sessions are compared with Dagster's materializations."""

MATERIALIZATIONS_PER_PARTITION = 20
"""How many of a partition's newest materializations are searched for a session."""

SensorEvent = dg.AssetMaterialization | dg.AssetCheckEvaluation

Clock = Callable[[], datetime]
"""Returns the present moment, with a time zone."""


@dataclass(frozen=True)
class SensorTiming:
    """How often sensors are evaluated, and how long a target waits for the targets upstream of it.

    Attributes:
        tick_seconds: Time between two evaluations of a sensor.
        settle_seconds: Longest time that a target waits for upstream targets to settle.
    """

    tick_seconds: int = 2
    settle_seconds: int = 60


def target_sensor(
    pipeline: Pipeline,
    target: Target,
    asset: dg.AssetsDefinition,
    timing: SensorTiming,
    clock: Clock,
) -> dg.SensorDefinition:
    """Return the sensor that requests the sessions of a target.

    If there is no session to request, the sensor reports which hours are pending, and the hours and checks of sessions
    that Dagster has no materialization of: those that `lake catch-up` committed, and those of runs that died before
    they reported.
    """

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        reach("tick-started")
        result = _Evaluation(context, pipeline, target, asset, timing, clock).result()
        reach("tick-answered")
        return result

    return dg.SensorDefinition(
        name=f"{target.name}_sensor",
        evaluation_fn=evaluate,
        asset_selection=[asset.key],
        minimum_interval_seconds=timing.tick_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Requests a run when {target.table} has hours to build.",
        required_resource_keys={"iceberg"},
    )


class _Evaluation:
    """One evaluation of a target's sensor."""

    def __init__(
        self,
        context: dg.SensorEvaluationContext,
        pipeline: Pipeline,
        target: Target,
        asset: dg.AssetsDefinition,
        timing: SensorTiming,
        clock: Clock,
    ) -> None:
        self.context = context
        self.target = target
        self.asset = asset
        self.settle_seconds = timing.settle_seconds
        self.clock = clock
        self.engine = Engine(context.resources.iceberg.catalog(), pipeline, clock=clock)

    def result(self) -> dg.SensorResult:
        decision = self.engine.decide(self.target)
        reach("tick-decided")
        active = busy_run(self.context.instance, self.asset.key)
        if isinstance(decision, NoSession):
            return _skip(decision.reason) if active else self.report_state(decision)
        if active:
            return _skip(active)
        attempts = ended_attempts(self.context.instance, decision.session_id)
        if attempts:
            return self.retry(decision, attempts)
        unsettled = self.engine.unsettled(self.target)
        if unsettled:
            return self.wait_until_settled(decision, unsettled)
        # An upstream target may have committed since the first decision. An idle target is spared this second one.
        settled = self.engine.decide(self.target)
        if isinstance(settled, NoSession):
            return _skip(settled.reason)
        return self.request(settled, attempt=1)

    def request(self, plan: SessionPlan, *, attempt: int) -> dg.SensorResult:
        run = run_request(self.asset, self.target, plan, attempt=attempt)
        return dg.SensorResult(run_requests=[run], cursor=NOT_WAITING)

    def retry(self, plan: SessionPlan, attempts: Sequence[Attempt]) -> dg.SensorResult:
        now = self.clock().timestamp()
        rest = rest_seconds(attempts, self.target.code_version, now)
        so_far = describe_attempts(plan, attempts)
        if rest is None:
            reason = f"{so_far}. There are no more attempts. {retry_remedy(self.target)}"
            self.context.log.error(reason)
            return _skip(reason, events=self.pending_events(plan, stuck=reason))
        if rest > 0:
            return _skip(
                f"{so_far}. The next attempt starts in {rest:.0f} s.",
                events=self.pending_events(plan, stuck=f"{so_far}; it is tried again"),
            )
        return self.request(plan, attempt=len(attempts) + 1)

    def wait_until_settled(self, plan: SessionPlan, reason: str) -> dg.SensorResult:
        """Wait from the first tick on that found upstream unsettled.

        The wait continues when the plan changes; otherwise busy sources would delay the target forever.
        """
        now = self.clock().timestamp()
        since = float(self.cursor().get("waiting_since", now))
        remaining = self.settle_seconds - (now - since)
        if remaining <= 0:
            return self.request(plan, attempt=1)
        cursor = json.dumps({"waiting_since": since, "session_id": plan.session_id})
        return _skip(f"{plan} waits for upstream to settle, {remaining:.0f} s at most: {reason}", cursor=cursor)

    def report_state(self, decision: NoSession) -> dg.SensorResult:
        """Skip, and report what Dagster does not show yet: pending hours, and sessions that no run of it has shown."""
        events = self.pending_events(decision)
        newest = self.engine.store.state(self.target.table).session
        if newest is None or self.cursor().get("marked") == newest.plan.session_id:
            return _skip(decision.reason, cursor=self.context.cursor or NOT_WAITING, events=events)
        materialized = [event for record in self.unmarked_sessions() for event in self.session_events(record)]
        cursor = json.dumps({"marked": newest.plan.session_id})
        return _skip(decision.reason, cursor=cursor, events=[*materialized, *events])

    def pending_events(self, decision: Decision, *, stuck: str = "") -> list[dg.AssetCheckEvaluation]:
        """Return the evaluation of pending hours, if it differs from the one that Dagster shows."""
        committed = self.engine.store.state(self.target.table).committed
        pending = pending_hours(committed, decision, stuck=stuck)
        found = pending_hours_evaluation(self.asset.key, self.target.grain, pending)
        shown = shown_evaluation(self.context.instance, found.asset_check_key)
        if shown is not None and shown.passed == found.passed and shown.metadata == found.metadata:
            return []
        return [found]

    def unmarked_sessions(self) -> list[SessionRecord]:
        """Return the newest committed sessions that Dagster has no materialization of, oldest first."""
        newest = self.engine.store.history(self.target.table, newest=SESSIONS_PER_TICK)
        built = [record for record in newest if record.state == "committed" and record.built]
        return [record for record in built if not self.is_marked(record)]

    def session_events(self, record: SessionRecord) -> Iterator[SensorEvent]:
        """Yield the materializations of a session, then its evaluations of the asset."""
        report = record.report()
        rows = rows_of_session(self.engine.catalog, self.target, report, record.built)
        yield from materializations(self.target, report, record.built, rows)
        held = self.engine.store.state(self.target.table).committed.held
        for audit in report.audits:
            yield audit_evaluation(self.asset.key, audit, held)

    def is_marked(self, record: SessionRecord) -> bool:
        """Return whether the first partition of a session has a materialization of that session."""
        partition = self.target.grain.key(record.built[0])
        of_partition = dg.AssetRecordsFilter(self.asset.key, asset_partitions=[partition])
        found = self.context.instance.fetch_materializations(of_partition, limit=MATERIALIZATIONS_PER_PARTITION)
        for stored in found.records:
            event = stored.asset_materialization
            session = event.metadata.get("session") if event else None
            if session is not None and session.value == record.plan.session_id:
                return True
        return False

    def cursor(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.context.cursor or NOT_WAITING)
        return found


def _skip(reason: str, *, cursor: str = NOT_WAITING, events: Sequence[SensorEvent] = ()) -> dg.SensorResult:
    return dg.SensorResult(skip_reason=reason, cursor=cursor, asset_events=list(events))
