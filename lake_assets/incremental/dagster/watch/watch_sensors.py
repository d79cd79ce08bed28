"""Two sensors that start no runs: one reports freshness, one sends alerts. Both decide from tables at every tick.

A cursor records what was reported. An alert counts as reported when it was delivered; otherwise the next tick sends it
again. A tick that dies after a delivery sends the alert twice: an alert is delivered at least once.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import datetime, timedelta

import dagster as dg
from dagster import RunsFilter

from lake_assets.errors import LakeError
from lake_assets.incremental.dagster.asset_specs import asset_key
from lake_assets.incremental.dagster.lake_resource import LakeResource
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
from lake_assets.incremental.dagster.watch.verification_checks import verification_problem
from lake_assets.incremental.declaration import Pipeline, Target
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import NoSession, SessionPlan
from lake_assets.incremental.operations.alerts import Webhook
from lake_assets.incremental.operations.freshness import Freshness, freshness, with_max_delay
from lake_assets.incremental.operations.health import Problem, health
from lake_assets.incremental.operations.inputs import Inputs, TargetInputs

TICK_SECONDS = 30

OVER = "Nothing is to be done: this is over."
"""The remedy of a problem that is over."""

CALM = timedelta(minutes=15)
"""How long a target without a problem is not looked at for alerts if nothing has moved."""


def freshness_sensor(pipeline: Pipeline, clock: Clock) -> dg.SensorDefinition:
    """Return a sensor that evaluates each target with a `max_delay`.

    It reports an evaluation when the result changes, and once an hour.
    """

    def evaluate(context: dg.SensorEvaluationContext, lake_assets: LakeResource) -> dg.SensorResult:
        catalog = lake_assets.catalog()
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
    )


Elsewhere = Mapping[tuple[str, ...], Callable[[], Iterable[Problem]]]
"""Kinds of problems → returns those of landing, or of served tables. It raises `LakeError` if nobody can tell."""

NOWHERE: Elsewhere = {}


def alerts_sensor(
    pipeline: Pipeline, webhook: Webhook, clock: Clock, elsewhere: Elsewhere = NOWHERE
) -> dg.SensorDefinition:
    """Return a sensor that sends each problem once, and once that it is over.

    `alerts` lists the problems of targets, and `elsewhere` those of landing and of served tables.
    """
    calm = CalmTargets(pipeline)

    def evaluate(context: dg.SensorEvaluationContext, lake_assets: LakeResource) -> dg.SensorResult:
        engine = Engine(lake_assets.catalog(), pipeline, clock=clock)
        due = {problem.key: problem for problem in alerts(engine, context.instance, calm)}
        reported = _reported(context.cursor)
        for kinds, find in elsewhere.items():
            try:
                due |= {problem.key: problem for problem in find() if problem.level == "error"}
            except LakeError:  # nobody knows what is over
                due |= {key: problem for key, problem in reported.items() if problem.kind in kinds}
        unsent = {key: problem for key, problem in due.items() if key not in reported}
        # Of a target that cannot be planned nobody knows what else is over.
        unknown = {problem.target for problem in due.values() if problem.kind == "cannot_plan"}
        over = {
            key: problem
            for key, problem in reported.items()
            if key not in due and (problem.target not in unknown or problem.kind == "cannot_plan")
        }
        before = len(reported) - len(over)
        sent = set(_deliver(webhook, unsent, over))
        kept = {key: problem for key, problem in reported.items() if key not in sent}
        kept |= {key: problem for key, problem in unsent.items() if key in sent}
        remaining = len(unsent) + len(over) - len(sent)
        reason = f"Alerts: {len(sent)} sent, {remaining} still to be sent, {before} sent before."
        cursor = json.dumps({key: asdict(problem) for key, problem in sorted(kept.items())})
        return dg.SensorResult(cursor=cursor, skip_reason=reason)

    return dg.SensorDefinition(
        name="alerts_sensor",
        evaluation_fn=evaluate,
        asset_selection=[asset_key(target.table) for target in pipeline.targets],
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Sends alerts to LAKE_ALERT_WEBHOOK.",
    )


def _reported(cursor: str | None) -> dict[str, Problem]:
    """Return the problems that were sent and are not known to be over. The version before has stored their keys."""
    stored = json.loads(cursor or "{}")
    if isinstance(stored, dict):
        return {key: Problem(**problem) for key, problem in stored.items()}
    found = {}
    for key in stored:
        target, kind, session_id = key.split("|", 2)
        what = f"{target}: a problem was reported before."
        found[key] = Problem(target, kind, what, "", None if session_id == "None" else session_id)
    return found


def _deliver(webhook: Webhook, due: Mapping[str, Problem], over: Mapping[str, Problem]) -> Iterator[str]:
    """Send problems, and which of them are over; yield the keys of those that need not be sent again.

    A tick has a minute: if the receiver does not answer, the rest waits for the next tick.
    """
    for key, problem in due.items():
        answer = webhook.send(problem)
        if answer == "taken":
            yield key
        if answer == "absent":
            return
    for key, problem in over.items():
        answer = webhook.send(replace(problem, remedy=OVER), state="over")
        if answer == "absent":
            return
        yield key


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


def alerts(engine: Engine, instance: dg.DagsterInstance, calm: CalmTargets | None = None) -> Iterator[Problem]:
    """Yield all present problems of which an alert is sent, target by target.

    These are the errors of `operations.health`, and what only Dagster knows: sessions without attempts left, and
    targets that differ from a rebuild. For a session that failed, an alert is sent when no attempt is left.

    Args:
        engine: Decides.
        instance: Has the runs and the evaluations of checks.
        calm: The targets that had no problem at an earlier call; None to look at all.
    """
    calm = calm or CalmTargets(engine.pipeline)
    calm.look(engine)
    for target in engine.pipeline.targets:
        if not calm.is_calm(target, engine.clock()):
            yield from _table_problems(engine, target, instance, calm)
        differs = verification_problem(instance, target)
        if differs is not None:
            yield differs


def _table_problems(
    engine: Engine, target: Target, instance: dg.DagsterInstance, calm: CalmTargets
) -> Iterator[Problem]:
    """Yield the problems that tables, runs and the time tell; note the target as calm if it has none."""
    calm.forget(target)
    found = health(engine, target)
    due = [each for each in found.problems if each.level == "error" and each.kind != "session_failed"]
    if isinstance(found.decision, SessionPlan):
        due += _without_attempts(engine, target, found.decision, instance)
    yield from due
    if not due and isinstance(found.decision, NoSession):
        now = engine.clock()
        fresh = None
        if target.max_delay is not None:
            fresh = freshness(engine.catalog, engine.pipeline, target, now)
        calm.note(target, now + _calm_time(fresh))


def _calm_time(fresh: Freshness | None) -> timedelta:
    """Return how long a target without a problem stays without one by the clock alone."""
    return CALM if fresh is None else min(CALM, fresh.max_delay - fresh.delay)


def _without_attempts(
    engine: Engine, target: Target, plan: SessionPlan, instance: dg.DagsterInstance
) -> Iterator[Problem]:
    """Yield a problem if the session that is due has no attempts left."""
    attempts = ended_attempts(instance, plan.session_id)
    now = engine.clock().timestamp()
    if rest_seconds(attempts, target.code_version, now) is None:
        yield Problem(
            target=target.table,
            kind="session_failed",
            what=f"{describe_attempts(plan, attempts)}.",
            remedy=retry_remedy(target),
            session_id=plan.session_id,
            run_id=_last_run(instance, plan.session_id),
        )


def _last_run(instance: dg.DagsterInstance, session_id: str) -> str | None:
    of_session = RunsFilter(tags={SESSION_TAG: session_id}, statuses=FINISHED)
    records = instance.get_run_records(of_session, limit=1)
    return records[0].dagster_run.run_id if records else None


def watch_definitions(
    pipeline: Pipeline, *, clock: Clock, webhook: Webhook | None, elsewhere: Elsewhere = NOWHERE
) -> dg.Definitions:
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
        sensors.append(alerts_sensor(pipeline, webhook, clock, elsewhere))
    checks = [intact_check(pipeline, target, clock) for target in pipeline.targets]
    checks += [freshness_check(pipeline, target, clock) for target in with_checks]
    return dg.Definitions(asset_checks=checks, sensors=sensors)
