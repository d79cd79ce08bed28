"""Two sensors that start no runs: one reports freshness, one sends alerts. Both decide from tables at every tick.

A cursor records what was reported. An alert counts as reported when it was delivered; otherwise the next tick sends it
again. A tick that dies after a delivery sends the alert twice: an alert is delivered at least once.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any

import dagster as dg
from dagster import RunsFilter

from lake_assets.errors import AuditFailed, HoursHeld, LakeError
from lake_assets.incremental.dagster.asset_specs import asset_key
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.incremental.dagster.session_runs import (
    FINISHED,
    SESSION_TAG,
    describe_attempts,
    ended_attempts,
    rest_seconds,
    retry_remedy,
)
from lake_assets.incremental.dagster.watch.freshness_checks import (
    failed_evaluation,
    freshness_check,
    freshness_evaluation,
)
from lake_assets.incremental.dagster.watch.target_checks import intact_check, targets_sensor
from lake_assets.incremental.dagster.watch.verification_checks import verification_alert
from lake_assets.incremental.declaration import Pipeline, Target
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import Decision, HeldHour, NoSession, SessionPlan, verdicts_in_words
from lake_assets.incremental.operations.alerts import Alert, Webhook
from lake_assets.incremental.operations.freshness import Freshness, freshness, with_max_delay
from lake_assets.incremental.operations.inputs import Inputs, TargetInputs

TICK_SECONDS = 30

CALM = timedelta(minutes=15)
"""How long a target without a problem is not looked at for alerts if nothing has moved."""


def freshness_sensor(pipeline: Pipeline, clock: Clock) -> dg.SensorDefinition:
    """Return a sensor that evaluates each target with a `max_delay`.

    It reports an evaluation when the result changes, and once an hour.
    """

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        catalog = context.resources.iceberg.catalog()
        now = clock()
        reported = json.loads(context.cursor or "{}")
        evaluated: dict[str, list[object]] = {}
        events: list[dg.AssetCheckEvaluation] = []
        for target in with_max_delay(pipeline):
            try:
                evaluation = freshness_evaluation(freshness(catalog, pipeline, target, now))
            except LakeError as error:  # a problem of this target; the others are evaluated all the same
                evaluation = failed_evaluation(target, error)
            mark = [evaluation.passed, f"{now:%Y-%m-%d %H}"]
            if reported.get(target.table) != mark:
                events.append(evaluation)
            evaluated[target.table] = mark
        reason = f"Reported {len(events)} freshness checks." if events else "The freshness of no target changed."
        return dg.SensorResult(asset_events=events, cursor=json.dumps(evaluated), skip_reason=reason)

    return dg.SensorDefinition(
        name="freshness_sensor",
        evaluation_fn=evaluate,
        asset_selection=[asset_key(target.table) for target in with_max_delay(pipeline)],
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Evaluates the freshness checks, so that a late target turns red while nothing runs.",
        required_resource_keys={"iceberg"},
    )


def alerts_sensor(pipeline: Pipeline, webhook: Webhook, clock: Clock) -> dg.SensorDefinition:
    """Return a sensor that sends each alert once, until its problem is over. `alerts` lists the problems."""
    calm = CalmTargets(pipeline)

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        engine = Engine(context.resources.iceberg.catalog(), pipeline, clock=clock)
        due = {_key(alert): alert for alert in alerts(engine, context.instance, calm)}
        sent_before = set(json.loads(context.cursor or "[]")) & due.keys()
        unsent = {key: alert for key, alert in due.items() if key not in sent_before}
        sent = set(_deliver(webhook, unsent))
        remaining = len(unsent) - len(sent)
        reason = f"Alerts: {len(sent)} sent, {remaining} still to be sent, {len(sent_before)} sent before."
        return dg.SensorResult(cursor=json.dumps(sorted(sent_before | sent)), skip_reason=reason)

    return dg.SensorDefinition(
        name="alerts_sensor",
        evaluation_fn=evaluate,
        asset_selection=[asset_key(target.table) for target in pipeline.targets],
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Sends alerts to LAKE_ALERT_WEBHOOK.",
        required_resource_keys={"iceberg"},
    )


def _key(alert: Alert) -> str:
    return f"{alert.target}|{alert.kind}|{alert.session_id}"


def _deliver(webhook: Webhook, due: Mapping[str, Alert]) -> Iterator[str]:
    """Send alerts and yield the keys of those that were delivered.

    A tick has a minute: if the receiver does not answer, the rest waits for the next tick.
    """
    for key, alert in due.items():
        answer = webhook.send(alert)
        if answer == "taken":
            yield key
        if answer == "absent":
            return


class CalmTargets:
    """Remembers the targets without a problem of their tables, until something has moved or their time is over."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._inputs = TargetInputs(pipeline, pipeline.targets)
        self._moved: Mapping[str, Inputs] = {}
        self._until: dict[str, tuple[Inputs, datetime]] = {}

    def look(self, engine: Engine) -> None:
        """Look at what has moved."""
        self._moved = self._inputs.look(engine.catalog)

    def is_calm(self, target: Target, now: datetime) -> bool:
        """Return whether a target has no problem, as far as tables and the time tell."""
        inputs, until = self._until.get(target.table, (None, now))
        return inputs == self._moved.get(target.table) and now < until

    def note(self, target: Target, until: datetime) -> None:
        """Note that a target has no problem up to a moment, if nothing moves."""
        self._until[target.table] = (self._moved[target.table], until)

    def forget(self, target: Target) -> None:
        """Note that a target may have a problem at any time."""
        self._until.pop(target.table, None)


def alerts(engine: Engine, instance: dg.DagsterInstance, calm: CalmTargets | None = None) -> Iterator[Alert]:
    """Yield all present problems, target by target.

    These are failed audits, hours that audits hold back, sessions without attempts left, late targets, targets that
    differ from a rebuild, and targets that cannot be planned.

    Args:
        engine: Decides.
        instance: Has the runs and the evaluations of checks.
        calm: The targets that had no problem at an earlier call; None to look at all.
    """
    calm = calm or CalmTargets(engine.pipeline)
    calm.look(engine)
    for target in engine.pipeline.targets:
        try:
            if not calm.is_calm(target, engine.clock()):
                yield from _table_alerts(engine, target, instance, calm)
            yield from _verification_alerts(target, instance)
        except LakeError as error:
            calm.forget(target)
            yield Alert(target.table, "cannot_plan", error.problem, error.remedy)


def _table_alerts(engine: Engine, target: Target, instance: dg.DagsterInstance, calm: CalmTargets) -> Iterator[Alert]:
    """Yield the problems that tables, runs and the time tell; note the target as calm if it has none.

    A problem that is found is yielded before the next one is looked for, which may raise.
    """
    calm.forget(target)
    of_table = [*_state_alerts(engine, target)]
    yield from of_table
    decision = engine.decide(target)
    of_runs = [*_attempts_alerts(engine, target, decision, instance)]
    yield from of_runs
    now = engine.clock()
    fresh = _freshness(engine, target, now)
    if fresh is not None and not fresh.fresh:
        yield Alert(target.table, "not_fresh", f"{fresh.what}.", fresh.remedy)
    elif not of_table and not of_runs and isinstance(decision, NoSession):
        calm.note(target, now + _calm_time(fresh))


def _freshness(engine: Engine, target: Target, now: datetime) -> Freshness | None:
    if target.max_delay is None:
        return None
    return freshness(engine.catalog, engine.pipeline, target, now)


def _calm_time(fresh: Freshness | None) -> timedelta:
    """Return how long a target without a problem stays without one by the clock alone."""
    return CALM if fresh is None else min(CALM, fresh.max_delay - fresh.delay)


def _state_alerts(engine: Engine, target: Target) -> Iterator[Alert]:
    state = engine.state(target)
    if state.blocked:
        yield _failed_audit_alert(target, state.blocked)
    yield from _held_hours_alerts(target, state.committed.held)


def _attempts_alerts(
    engine: Engine, target: Target, decision: Decision, instance: dg.DagsterInstance
) -> Iterator[Alert]:
    """Yield an alert if the session that is due has no attempts left."""
    if not isinstance(decision, SessionPlan):
        return
    attempts = ended_attempts(instance, decision.session_id)
    now = engine.clock().timestamp()
    if rest_seconds(attempts, target.code_version, now) is None:
        yield Alert(
            target=target.table,
            kind="session_failed",
            what=f"{describe_attempts(decision, attempts)}.",
            remedy=retry_remedy(target),
            session_id=decision.session_id,
            run_id=_last_run(instance, decision.session_id),
        )


def _failed_audit_alert(target: Target, blocked: Mapping[str, Any]) -> Alert:
    error = AuditFailed(target.table, blocked["failed"])
    return Alert(
        target=target.table,
        kind="audit_failed",
        what=error.problem,
        remedy=error.remedy,
        session_id=blocked["session_id"],
        run_id=blocked["run_id"] or None,
    )


def _held_hours_alerts(target: Target, held: Sequence[HeldHour]) -> Iterator[Alert]:
    """Yield one alert for each session that holds hours back; hours held back again are alerted again."""
    by_session = attrgetter("session_id")
    for session_id, hours in groupby(sorted(held, key=by_session), key=by_session):
        error = HoursHeld(target.table, verdicts_in_words([*hours]))
        yield Alert(target.table, "hours_held", error.problem, error.remedy, session_id)


def _verification_alerts(target: Target, instance: dg.DagsterInstance) -> Iterator[Alert]:
    alert = verification_alert(instance, target)
    if alert is not None:
        yield alert


def _last_run(instance: dg.DagsterInstance, session_id: str) -> str | None:
    of_session = RunsFilter(tags={SESSION_TAG: session_id}, statuses=FINISHED)
    records = instance.get_run_records(of_session, limit=1)
    return records[0].dagster_run.run_id if records else None


def watch_definitions(pipeline: Pipeline, *, clock: Clock, webhook: Webhook | None) -> dg.Definitions:
    """Return the checks that a sensor reports while nothing runs, and alerts if there is a webhook.

    Each target has a check of its table; a target with a `max_delay` also has one of its freshness.

    A sensor needs an asset, so a pipeline without targets has no sensors.
    """
    with_checks = with_max_delay(pipeline)
    sensors = []
    if pipeline.targets:
        sensors.append(targets_sensor(pipeline, clock))
    if with_checks:
        sensors.append(freshness_sensor(pipeline, clock))
    if webhook and pipeline.targets:
        sensors.append(alerts_sensor(pipeline, webhook, clock))
    checks = [intact_check(pipeline, target, clock) for target in pipeline.targets]
    checks += [freshness_check(pipeline, target, clock) for target in with_checks]
    return dg.Definitions(asset_checks=checks, sensors=sensors)
