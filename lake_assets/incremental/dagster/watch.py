"""What is well, shown while nothing runs: checks of targets, sensors that report them, comparisons with a rebuild, and
alerts.

The sensors start no runs. They decide from tables at every tick. A cursor records what was reported. An alert counts
as reported when it was delivered; otherwise the next tick sends it again. A tick that dies after a delivery sends the
alert twice: an alert is delivered at least once.

A schedule requests a comparison with a rebuild for each target once a day. A run of it changes no table. If the check
of a target fails, it stays red, and an alert is due, until a later evaluation finds the day's hours equal.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta

import dagster as dg
from dagster import RunsFilter

from lake_assets.base.hours import hour_key
from lake_assets.errors import LakeError
from lake_assets.incremental.dagster.asset_specs import asset_key
from lake_assets.incremental.dagster.checks import of_newest_materialization
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
from lake_assets.incremental.declaration import Pipeline, Target
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import SessionPlan
from lake_assets.incremental.operations.alerts import Webhook
from lake_assets.incremental.operations.health import Problem, TargetHealth, freshness, health, with_max_delay
from lake_assets.incremental.operations.inputs import Inputs, TargetInputs
from lake_assets.incremental.operations.verify import Verification, verify_hours

FRESHNESS, INTACT = "freshness", "intact"
TICK_SECONDS = 30


def check_definitions(pipeline: Pipeline, clock: Clock) -> list[dg.AssetChecksDefinition]:
    """Return the checks that sensors report, to be run on demand. They read metadata and start no Spark.

    `intact` of each target fails if it has a problem; `freshness` of each with a `max_delay`, if complete-through lags
    more than that, or if nobody can tell.
    """

    def defined(target: Target, name: str, description: str, evaluate: Evaluate) -> dg.AssetChecksDefinition:
        @dg.asset_check(asset=asset_key(target.table), name=name, description=description)
        def check(lake_assets: LakeResource) -> dg.AssetCheckResult:
            found = evaluate(Engine(lake_assets.catalog(), pipeline, clock=clock), target)
            return dg.AssetCheckResult(
                passed=found.passed, severity=found.severity, description=found.description, metadata=found.metadata
            )

        return check

    well = "The next session can be planned, the last one has not failed, and no hour is held back."
    fresh = "The table is complete at most {} after the end of an hour."
    return [
        *(defined(target, INTACT, well, intact_evaluation) for target in pipeline.targets),
        *(
            defined(target, FRESHNESS, fresh.format(target.max_delay), freshness_evaluation)
            for target in with_max_delay(pipeline)
        ),
    ]


Evaluate = Callable[[Engine, Target], dg.AssetCheckEvaluation]
"""Evaluates a check of a target, as an event outside of any run."""


def intact_evaluation(engine: Engine, target: Target, found: TargetHealth | None = None) -> dg.AssetCheckEvaluation:
    """Return whether a target is well, and what to do if it is not. Freshness has a check of its own."""
    errors = [each for each in _errors(found or health(engine, target)) if each.kind != "not_fresh"]
    text = " ".join(f"{problem.what} {problem.remedy}" for problem in errors) or None
    return _evaluation(target, INTACT, text, passed=text is None)


def freshness_evaluation(engine: Engine, target: Target) -> dg.AssetCheckEvaluation:
    """Return how fresh a target is. The check fails if nobody can tell."""
    try:
        found = freshness(engine.catalog, engine.pipeline, target, engine.clock())
    except LakeError as error:  # a problem of this target; the others are evaluated all the same
        return _evaluation(target, FRESHNESS, f"{error.problem} {error.remedy}", passed=False)
    through = "none" if found.complete_through is None else hour_key(found.complete_through)
    metadata = {
        "complete through": dg.MetadataValue.text(through),
        "delay (minutes)": dg.MetadataValue.float(round(found.delay.total_seconds() / 60, 1)),
    }
    text = f"{found.what}." if found.fresh else f"{found.what}. {found.remedy}"
    return _evaluation(target, FRESHNESS, text, passed=found.fresh, metadata=metadata)


def _evaluation(
    target: Target,
    check: str,
    description: str | None,
    *,
    passed: bool,
    metadata: Mapping[str, dg.MetadataValue] | None = None,
) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=asset_key(target.table),
        check_name=check,
        passed=passed,
        severity=dg.AssetCheckSeverity.ERROR,
        description=description,
        metadata=metadata,
    )


def _sensor(
    name: str,
    targets: Sequence[Target],
    evaluate: Callable[[dg.SensorEvaluationContext, Engine], dg.SensorResult],
    pipeline: Pipeline,
    clock: Clock,
    description: str,
    assets: Sequence[dg.AssetKey] = (),
) -> dg.SensorDefinition:
    """Return a sensor that starts no runs. `evaluate` gets its context and an engine without Spark."""

    def evaluation(context: dg.SensorEvaluationContext, lake_assets: LakeResource) -> dg.SensorResult:
        return evaluate(context, Engine(lake_assets.catalog(), pipeline, clock=clock))

    return dg.SensorDefinition(
        name=name,
        evaluation_fn=evaluation,
        asset_selection=[*(asset_key(target.table) for target in targets), *assets],
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=description,
    )


def targets_sensor(pipeline: Pipeline, clock: Clock) -> dg.SensorDefinition:
    """Return a sensor that evaluates the check of each target, and reports an evaluation when its result changes."""
    known = KnownHealth(pipeline)

    def evaluate(context: dg.SensorEvaluationContext, engine: Engine) -> dg.SensorResult:
        reported = json.loads(context.cursor or "{}")
        evaluations = {target.table: intact_evaluation(engine, target, each) for target, each in known.look(engine)}
        found = {table: each.description for table, each in evaluations.items()}
        changed = [table for table in found if table not in reported or reported[table] != found[table]]
        wrong = sum(problem is not None for problem in found.values())
        return dg.SensorResult(
            asset_events=[of_newest_materialization(context.instance, evaluations[table]) for table in changed],
            cursor=json.dumps(found),
            skip_reason=f"{wrong} of {len(found)} targets have a problem.",
        )

    description = "Reports targets that have a problem."
    return _sensor("targets_sensor", pipeline.targets, evaluate, pipeline, clock, description)


EQUALS_REBUILD = "equals_rebuild"


def check_key(target: Target) -> dg.AssetCheckKey:
    """Return the key of a target's check."""
    return dg.AssetCheckKey(asset_key(target.table), EQUALS_REBUILD)


def day_number(now: datetime) -> int:
    """Return the number of a day, which chooses the hours that are compared on it."""
    return now.date().toordinal()


def verification_check(pipeline: Pipeline, target: Target, clock: Clock, hours: int) -> dg.AssetChecksDefinition:
    """Return the check of a target. `hours`: most hours that it compares on a day."""

    @dg.asset_check(
        asset=asset_key(target.table),
        name=EQUALS_REBUILD,
        description=f"Some hours a day, at most {hours}, equal a rebuild from the sources. All hours come round.",
    )
    def check(context: dg.AssetCheckExecutionContext, lake_assets: LakeResource) -> dg.AssetCheckResult:
        engine = Engine(
            lake_assets.catalog(),
            pipeline,
            clock=clock,
            spark=lambda: lake_assets.spark_session,
        )
        try:
            found = verify_hours(engine, target, day=day_number(clock()), limit=hours)
        except LakeError as error:
            return dg.AssetCheckResult(passed=False, description=f"{error.problem} {error.remedy}")
        return _result(found)

    return check


def verification_problem(instance: dg.DagsterInstance, target: Target) -> Problem | None:
    """Return the problem of a target whose newest evaluation failed; None if it passed or there is none."""
    record = instance.get_latest_asset_check_evaluation_record(check_key(target))
    event = record.event.dagster_event if record and record.event else None
    if event is None or event.asset_check_evaluation_data.passed:
        return None
    what = event.asset_check_evaluation_data.description or f"{target.table} could not be compared with a rebuild."
    return Problem(
        target=target.table,
        kind="not_equal",
        what=what,
        remedy=f"Compare again with `lake verify {target.name}` when it is repaired.",
        run_id=record.run_id if record else None,
    )


def _result(found: Verification) -> dg.AssetCheckResult:
    lines = "\n".join(f"- {line}" for line in found.left_out) or "none"
    return dg.AssetCheckResult(
        passed=found.equal,
        severity=dg.AssetCheckSeverity.ERROR,
        description=" ".join(filter(None, (found.what, found.remedy, found.note))),
        metadata={
            "hours compared": len(found.compared),
            "hours that differ": len(found.differing),
            "rows": found.rows,
            "rows rebuilt": found.rows_rebuilt,
            "seconds": round(found.seconds, 2),
            "left out": dg.MetadataValue.md(lines),
        },
    )


def verification_schedule(checks: Sequence[dg.AssetChecksDefinition], cron: str) -> dg.ScheduleDefinition:
    """Return the schedule that requests one run for each check; `cron` is in UTC."""

    def evaluate(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest]:
        tick = f"{context.scheduled_execution_time:%Y-%m-%dT%H:%M}"
        for check in checks:
            for key in check.check_keys:
                yield dg.RunRequest(f"{tick}:{key.to_user_string()}", asset_selection=[], asset_check_keys=[key])

    return dg.ScheduleDefinition(
        name="verification_schedule",
        target=dg.AssetSelection.checks(*checks),
        execution_fn=evaluate,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Compares some hours of every target with a rebuild from its sources. Changes nothing.",
    )


def verification_definitions(pipeline: Pipeline, *, clock: Clock, hours: int, cron: str) -> dg.Definitions:
    """Return the checks of a pipeline's targets and their schedule; nothing for a pipeline without targets.

    Args:
        pipeline: Declares the targets.
        clock: The present moment; its day chooses the hours.
        hours: Most hours of a target that a day compares.
        cron: When the checks run, in UTC.
    """
    checks = [verification_check(pipeline, target, clock, hours) for target in pipeline.targets]
    if not checks:
        return dg.Definitions()
    return dg.Definitions(asset_checks=checks, schedules=[verification_schedule(checks, cron)])


OVER = "Nothing is to be done: this is over."
"""The remedy of a problem that is over."""

CALM = timedelta(minutes=15)
"""How long a target without a problem is not looked at for alerts if nothing has moved."""


def freshness_sensor(pipeline: Pipeline, clock: Clock) -> dg.SensorDefinition:
    """Return a sensor that evaluates each target with a `max_delay`.

    It reports an evaluation when the result changes, and once an hour.
    """

    def evaluate(context: dg.SensorEvaluationContext, engine: Engine) -> dg.SensorResult:
        reported = json.loads(context.cursor or "{}")
        found = {target.table: freshness_evaluation(engine, target) for target in with_max_delay(pipeline)}
        marks = {table: [each.passed, f"{engine.clock():%Y-%m-%d %H}"] for table, each in found.items()}
        changed = [each for table, each in found.items() if reported.get(table) != marks[table]]
        events = [of_newest_materialization(context.instance, each) for each in changed]
        reason = f"Reported {len(events)} freshness checks." if events else "The freshness of no target changed."
        return dg.SensorResult(asset_events=events, cursor=json.dumps(marks), skip_reason=reason)

    description = "Evaluates the freshness checks, so that a late target turns red while nothing runs."
    return _sensor("freshness_sensor", with_max_delay(pipeline), evaluate, pipeline, clock, description)


Elsewhere = Mapping[tuple[str, ...], Callable[[dg.DagsterInstance], Iterable[Problem]]]
"""Kinds of problems → returns those of landing, served tables or lakes. It raises `LakeError` if nobody can tell."""

NOWHERE: Elsewhere = {}


def alerts_sensor(
    pipeline: Pipeline,
    webhook: Webhook,
    clock: Clock,
    elsewhere: Elsewhere = NOWHERE,
    assets: Sequence[dg.AssetKey] = (),
) -> dg.SensorDefinition:
    """Return a sensor that sends each problem once, and once that it is over.

    `alerts` lists the problems of targets, and `elsewhere` those of landing, served tables and lakes, whose `assets`
    may be the only ones of the code location.
    """
    known = KnownHealth(pipeline)

    def evaluate(context: dg.SensorEvaluationContext, engine: Engine) -> dg.SensorResult:
        due = {problem.key: problem for problem in alerts(engine, context.instance, known)}
        reported = _reported(context.cursor)
        for kinds, find in elsewhere.items():
            try:
                due |= {problem.key: problem for problem in find(context.instance) if problem.level == "error"}
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

    description = "Sends alerts to LAKE_ALERT_WEBHOOK."
    return _sensor("alerts_sensor", pipeline.targets, evaluate, pipeline, clock, description, assets)


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


class KnownHealth:
    """The health of targets. One that is well is looked at again when something has moved, or its time is over."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._inputs = TargetInputs(pipeline, pipeline.targets)
        self._well: dict[str, tuple[Inputs, datetime, TargetHealth]] = {}

    def look(self, engine: Engine) -> Iterator[tuple[Target, TargetHealth]]:
        """Yield each target with its present health."""
        moved, now = self._inputs.look(engine.catalog), engine.clock()
        for target in engine.pipeline.targets:
            inputs, until, found = self._well.pop(target.table, (None, now, None))
            if found is None or inputs != moved[target.table] or now >= until:
                found, until = health(engine, target), now + CALM
                if target.max_delay is not None and not _errors(found):
                    fresh = freshness(engine.catalog, engine.pipeline, target, now)
                    until = min(until, now + fresh.max_delay - fresh.delay)
            if not _errors(found):
                self._well[target.table] = (moved[target.table], until, found)
            yield target, found


def _errors(found: TargetHealth) -> list[Problem]:
    return [problem for problem in found.problems if problem.level == "error"]


def alerts(engine: Engine, instance: dg.DagsterInstance, known: KnownHealth) -> Iterator[Problem]:
    """Yield all present problems of which an alert is sent, target by target.

    These are the errors of `operations.health`, and what only Dagster knows: sessions without attempts left, and
    targets that differ from a rebuild. For a session that failed, an alert is sent when no attempt is left.

    Args:
        engine: Decides.
        instance: Has the runs and the evaluations of checks.
        known: What earlier calls have found.
    """
    for target, found in known.look(engine):
        yield from (each for each in _errors(found) if each.kind != "session_failed")
        if isinstance(found.decision, SessionPlan):
            yield from _without_attempts(engine, target, found.decision, instance)
        differs = verification_problem(instance, target)
        if differs is not None:
            yield differs


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
    pipeline: Pipeline,
    *,
    clock: Clock,
    webhook: Webhook | None,
    elsewhere: Elsewhere = NOWHERE,
    assets: Sequence[dg.AssetKey] = (),
) -> dg.Definitions:
    """Return the checks that a sensor reports while nothing runs, and alerts if there is a webhook.

    Each target has a check of its table; a target with a `max_delay` also has one of its freshness.

    A sensor needs an asset, so a pipeline without targets has no sensors, but for alerts about other `assets`.
    """
    sensors = []
    if pipeline.targets:
        sensors.append(targets_sensor(pipeline, clock))
    if with_max_delay(pipeline):
        sensors.append(freshness_sensor(pipeline, clock))
    if webhook and (pipeline.targets or assets):
        sensors.append(alerts_sensor(pipeline, webhook, clock, elsewhere, assets))
    return dg.Definitions(asset_checks=check_definitions(pipeline, clock), sensors=sensors)
