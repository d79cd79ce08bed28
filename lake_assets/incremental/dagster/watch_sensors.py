"""Two sensors that start nothing: one reports freshness, one sends alerts. Both decide from tables at every tick.

A cursor holds what was told. An alert counts as told when it was delivered; one that was not is tried again at the next
tick. A tick that dies after a delivery delivers it again: better twice than never.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter

import dagster as dg
from dagster import RunsFilter

from lake_assets.errors import AuditFailed, HoursHeld, LakeError
from lake_assets.incremental.dagster.assets import asset_key
from lake_assets.incremental.dagster.freshness_checks import freshness_check, freshness_evaluation, unknown_evaluation
from lake_assets.incremental.dagster.sensors import FINISHED, SESSION_TAG, Clock, ended_attempts, rest_seconds
from lake_assets.incremental.declaration import Pipeline, Target
from lake_assets.incremental.execution.engine import Engine
from lake_assets.incremental.execution.session_log import SessionRecord
from lake_assets.incremental.execution.steps.audit_rows import failures
from lake_assets.incremental.monitoring.alerts import Alert, Webhook
from lake_assets.incremental.monitoring.freshness import freshness, with_max_delay
from lake_assets.incremental.planning.session import HeldHour, SessionPlan
from lake_assets.incremental.planning.verdicts import in_words

TICK_SECONDS = 30


def freshness_sensor(pipeline: Pipeline, clock: Clock) -> dg.SensorDefinition:
    """Reports a verdict for each target with a `max_delay`, when it has changed or is an hour old."""

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        catalog, told = context.resources.iceberg.catalog(), json.loads(context.cursor or "{}")
        now, seen, events = clock(), {}, []
        for target in with_max_delay(pipeline):
            try:
                verdict = freshness_evaluation(freshness(catalog, pipeline, target, now))
            except LakeError as error:  # of this target: the others are told of
                verdict = unknown_evaluation(target, error)
            mark = [verdict.passed, f"{now:%Y-%m-%d %H}"]
            events += [] if told.get(target.table) == mark else [verdict]
            seen[target.table] = mark
        reason = f"{len(events)} verdicts were reported." if events else "No verdict has changed."
        return dg.SensorResult(asset_events=events, cursor=json.dumps(seen), skip_reason=reason)

    return dg.SensorDefinition(
        name="freshness_sensor",
        evaluation_fn=evaluate,
        asset_selection=[asset_key(t.table) for t in with_max_delay(pipeline)],
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Turns a target's freshness check red when it is late, also when nothing runs.",
        required_resource_keys={"iceberg"},
    )


def alerts_sensor(pipeline: Pipeline, webhook: Webhook, clock: Clock) -> dg.SensorDefinition:
    """Sends an alert for each failed audit, hours held back, session without attempts left, late target: once, until it
    is over."""

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        engine = Engine(context.resources.iceberg.catalog(), pipeline, clock=clock)
        due = {f"{a.target}|{a.kind}|{a.session_id}": a for a in alerts(engine, context.instance)}
        told = set(json.loads(context.cursor or "[]")) & due.keys()
        sent = set(_delivered(webhook, {key: alert for key, alert in due.items() if key not in told}))
        failed = len(due) - len(told) - len(sent)
        reason = f"{len(sent)} alerts were sent, {failed} are still to be sent, {len(told)} were sent before."
        return dg.SensorResult(cursor=json.dumps(sorted(told | sent)), skip_reason=reason)

    return dg.SensorDefinition(
        name="alerts_sensor",
        evaluation_fn=evaluate,
        asset_selection=[asset_key(t.table) for t in pipeline.targets],
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Sends alerts to LAKE_ALERT_WEBHOOK.",
        required_resource_keys={"iceberg"},
    )


def _delivered(webhook: Webhook, due: Mapping[str, Alert]) -> Iterator[str]:
    """Those that were taken. A tick has a minute: where the receiver is not there, the rest waits for the next one."""
    for key, alert in due.items():
        answer = webhook.send(alert)
        if answer == "taken":
            yield key
        if answer == "absent":
            return


def alerts(engine: Engine, instance: dg.DagsterInstance) -> Iterator[Alert]:
    """All that is wrong now, target by target."""
    for target in engine.pipeline.targets:
        try:
            yield from _of_session(engine, target, instance)
            yield from _of_freshness(engine, target)
        except LakeError as error:
            yield Alert(target.table, "cannot_plan", error.problem, error.remedy)


def _of_session(engine: Engine, target: Target, instance: dg.DagsterInstance) -> Iterator[Alert]:
    state = engine.store.state(target.table)
    if state.session and state.session.state == "blocked":
        yield _audit_failed(state.session)
    yield from _hours_held(target, state.committed.held)
    decision = engine.decide(target)
    if isinstance(decision, SessionPlan):
        attempts = ended_attempts(instance, decision.session_id)
        if rest_seconds(attempts, target.code_version, engine.clock().timestamp()) is None:
            yield Alert(
                target.table,
                "session_failed",
                f"Session {decision.session_id} ({decision}) has ended uncommitted {len(attempts)} times.",
                f"Read its last run; then re-execute it, or run `lake catch-up {target.name}`.",
                decision.session_id,
                _last_run(instance, decision.session_id),
            )


def _audit_failed(record: SessionRecord) -> Alert:
    error = AuditFailed(record.plan.process, failures(record.audits))
    return Alert(
        record.plan.process,
        "audit_failed",
        error.problem,
        error.remedy,
        record.plan.session_id,
        record.run_id or None,
    )


def _hours_held(target: Target, held: Sequence[HeldHour]) -> Iterator[Alert]:
    """One alert for each session that has held hours back: held again, they are told again."""
    by_session = attrgetter("session_id")
    for session_id, hours in groupby(sorted(held, key=by_session), key=by_session):
        error = HoursHeld(target.table, in_words([*hours]))
        yield Alert(target.table, "hours_held", error.problem, error.remedy, session_id)


def _of_freshness(engine: Engine, target: Target) -> Iterator[Alert]:
    if target.max_delay is not None:
        found = freshness(engine.catalog, engine.pipeline, target, engine.clock())
        if not found.fresh:
            yield Alert(target.table, "not_fresh", f"{found.what}.", found.remedy)


def _last_run(instance: dg.DagsterInstance, session_id: str) -> str | None:
    found = instance.get_run_records(RunsFilter(tags={SESSION_TAG: session_id}, statuses=FINISHED), limit=1)
    return found[0].dagster_run.run_id if found else None


def watch_definitions(pipeline: Pipeline, *, clock: Clock, webhook: Webhook | None) -> dg.Definitions:
    """Freshness checks and their sensor, for targets that declare `max_delay`; alerts, if there is a webhook.

    A sensor needs an asset: without targets there is none.
    """
    late = with_max_delay(pipeline)
    sensors = [freshness_sensor(pipeline, clock)] if late else []
    sensors += [alerts_sensor(pipeline, webhook, clock)] if webhook and pipeline.targets else []
    return dg.Definitions(asset_checks=[freshness_check(pipeline, t, clock) for t in late], sensors=sensors)
