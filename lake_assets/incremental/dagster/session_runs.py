"""Runs of sessions: their tags and requests, which are active or have ended, when the next attempt starts, who is
paused.

A session is one run. Its run key consists of the session and the attempt, because Dagster never repeats a run key, not
even the key of a run that crashed.

A person pauses a target in Dagster's UI: the pool of the target has the limit 0. A home of the version before may have
a sensor for each target. If a person switched it off, the target stays paused until somebody sets the limit of its
pool.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg
from dagster import DagsterEventType, DagsterRunStatus, RunsFilter
from dagster_shared.error import SerializableErrorInfo

from lake_assets.base.described import passes_by_itself
from lake_assets.base.hours import Grain, hour_key, parse_hour, ranges
from lake_assets.incremental.declaration import Target
from lake_assets.incremental.engine.model import SessionPlan
from lake_assets.incremental.engine.planner import Heads


def pool_of(target: Target) -> str:
    """Return the pool of a target: the name of its table. Dagster takes no space in it."""
    return "_".join(target.table.split())


def pause_of(instance: dg.DagsterInstance, target: Target) -> str | None:
    """Return why no session of a target is to be requested, as a sentence; None if the target is not paused."""
    pool = pool_of(target)
    limit = _pool_limit(instance, pool)
    if limit == 0:
        return f"{target.table} is paused: the limit of its pool is 0. Set it to 1 to go on."
    if limit is None and f"{target.name}_sensor" in _switched_off(instance):
        return (
            f"{target.table} is paused: its own sensor, of a version before, is switched off. "
            f"To go on, set the limit of the pool {pool} to 1 (Deployment, Concurrency)."
        )
    return None


def _pool_limit(instance: dg.DagsterInstance, pool: str) -> int | None:
    """Return the limit that a person has set for a pool; None if it has the default limit."""
    for limit in instance.event_log_storage.get_pool_limits():
        if limit.name == pool and not limit.from_default:
            return limit.limit
    return None


def _switched_off(instance: dg.DagsterInstance) -> set[str]:
    """Return the names of the sensors that a person has switched off."""
    if instance.schedule_storage is None:
        return set()
    states = instance.schedule_storage.all_instigator_state()
    return {each.name for each in states if (each.instigator_type.value, each.status.value) == ("SENSOR", "STOPPED")}


SESSION_TAG = "lake/session_id"
SNAPSHOT_TAG = "lake.snapshot/"
"""Before the name of a source: the id of its snapshot that the session reads up to, or `NO_SNAPSHOT`."""
COMPLETE_THROUGH_TAG = "lake.complete_through/"
"""Before the name of a source: the key of its last complete hour; no tag if none was set."""
SNAPSHOTS_TAG = "lake/snapshots"
"""Where runs of the version before have both, as JSON. Such a run may still be queued, or be executed again."""
NO_SNAPSHOT = "none"
CODE_VERSION_TAG = "lake/code_version"

RETRY_AFTER_SECONDS = (30, 120, 480)
"""Pause after the first, second and third attempt of a session; after the fourth attempt a person has to act."""

INFRASTRUCTURE_RETRY_SECONDS = 300
"""Longest pause after an attempt that a fault of the infrastructure has ended. Such attempts never end."""

FAILURES = {DagsterEventType.STEP_FAILURE, DagsterEventType.RUN_FAILURE}

ACTIVE = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]
FINISHED = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]


@dataclass(frozen=True)
class Attempt:
    """A run that ended without committing its session.

    Attributes:
        ended_at: Seconds since 1970-01-01 UTC.
        code_version: Version of the target's code that the run was requested with.
        by_infrastructure: Whether a service, a network or a disk failed, and not the code or the data.
    """

    ended_at: float
    code_version: str
    by_infrastructure: bool = False


def run_request(
    key: dg.AssetKey,
    partitions: dg.TimeWindowPartitionsDefinition,
    target: Target,
    plan: SessionPlan,
    *,
    attempt: int,
) -> dg.RunRequest:
    """Return the request of one attempt at a session.

    The code version is the target's present one, which may differ from the version that the session was planned with.
    """
    tags = {SESSION_TAG: plan.session_id, CODE_VERSION_TAG: target.code_version, **head_tags(plan)}
    return dg.RunRequest(
        run_key=f"{plan.session_id}:{attempt}",
        asset_selection=[key],
        asset_check_keys=[],  # a planned check that the session does not evaluate would be shown as skipped
        tags=partition_tags(plan, target.grain, partitions) | tags,
    )


def head_tags(plan: SessionPlan) -> dict[str, str]:
    """Return the tags that name, for each source, the snapshot and the complete-through that a session plans up to."""
    tags = {}
    for source in plan.sources:
        snapshot_id = source.to_snapshot_id
        tags[f"{SNAPSHOT_TAG}{source.source}"] = NO_SNAPSHOT if snapshot_id is None else str(snapshot_id)
        if source.complete_through is not None:
            tags[f"{COMPLETE_THROUGH_TAG}{source.source}"] = hour_key(source.complete_through)
    return tags


def heads_of(tags: Mapping[str, str]) -> Heads:
    """Return the heads of the sources that the tags of a run name; empty if they name none."""
    heads: dict[str, tuple[int | None, int | None]] = {}
    for source, found in json.loads(tags.get(SNAPSHOTS_TAG, "{}")).items():
        heads[source] = (found["to"], found["complete_through"])
    for tag, value in tags.items():
        if tag.startswith(SNAPSHOT_TAG):
            source = tag.removeprefix(SNAPSHOT_TAG)
            through = tags.get(f"{COMPLETE_THROUGH_TAG}{source}")
            snapshot_id = None if value == NO_SNAPSHOT else int(value)
            heads[source] = (snapshot_id, None if through is None else parse_hour(through))
    return heads


def partition_tags(plan: SessionPlan, grain: Grain, partitions: dg.TimeWindowPartitionsDefinition) -> dict[str, str]:
    """Return the tags that make Dagster show a run for the first planned partitions that adjoin.

    The tags are for people; the engine takes its hours from the plan. A run has one range, and Dagster shows all of it
    as failed if the run fails, each partition until it is materialized again. So the range has no partition that the
    session does not build. It has none before the first and after the last one either: a row with an absurd event time
    cannot make the run fail.

    A session without hours is shown at the hour after complete-through, the next one to be built, because a step
    without any partition fails when Dagster looks up the data versions of its sources.
    """
    first_key = partitions.get_first_partition_key()
    last_key = partitions.get_last_partition_key()
    if first_key is None or last_key is None:
        return {}
    planned = plan.hour_numbers or ((plan.complete_through or 0) + 1,)
    known = [hour for hour in planned if first_key <= grain.key(hour) <= last_key]
    keys = [min(max(first_key, grain.key(hour)), last_key) for hour in next(ranges(grain.whole(known or planned[:1])))]
    return {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[1]}


def busy_run(instance: dg.DagsterInstance, key: dg.AssetKey) -> str | None:
    """Return a sentence about a queued or running run of an asset; None if there is none."""
    for run in instance.get_runs(RunsFilter(statuses=ACTIVE)):
        if key in (run.asset_selection or ()):
            return f"Run {run.run_id} of {key.to_user_string()} is {run.status.value.lower()}."
    return None


def active_runs(instance: dg.DagsterInstance) -> dict[dg.AssetKey, tuple[str, ...]]:
    """Return asset → the ids of its queued and running runs, in order. One query answers for all assets."""
    found: dict[dg.AssetKey, list[str]] = {}
    for run in instance.get_runs(RunsFilter(statuses=ACTIVE)):
        for key in run.asset_selection or ():
            found.setdefault(key, []).append(run.run_id)
    return {key: tuple(sorted(runs)) for key, runs in found.items()}


def ended_attempts(
    instance: dg.DagsterInstance,
    session_id: str,
    *,
    tag: str = SESSION_TAG,
    statuses: Sequence[DagsterRunStatus] = FINISHED,
) -> list[Attempt]:
    """Return the ended runs of a session that is still to be committed.

    Args:
        instance: Where the runs are recorded.
        session_id: Value of the tag.
        tag: Tag that identifies the runs; another one for runs that are not sessions.
        statuses: Which runs count as ended.
    """
    of_session = RunsFilter(tags={tag: session_id}, statuses=list(statuses))
    attempts = []
    for record in instance.get_run_records(of_session):
        ended_at = record.end_time or record.update_timestamp.timestamp()
        code_version = record.dagster_run.tags.get(CODE_VERSION_TAG, "")
        attempts.append(Attempt(ended_at, code_version, _failed_by_infrastructure(instance, record.dagster_run)))
    return attempts


def _failed_by_infrastructure(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    if run.status != DagsterRunStatus.FAILURE:
        return False
    texts = []
    for record in instance.get_records_for_run(run.run_id, of_type=FAILURES).records:
        event = record.event_log_entry.get_dagster_event()
        texts.append(event.message or "")
        if event.event_type == DagsterEventType.STEP_FAILURE:
            texts += _messages(event.step_failure_data.error)
    return passes_by_itself("\n".join(texts))


def _messages(error: SerializableErrorInfo | None) -> Iterator[str]:
    """Yield the messages of an error and its causes."""
    while error is not None:
        yield f"{error.cls_name}: {error.message}"
        error = error.cause


def rest_seconds(attempts: Sequence[Attempt], code_version: str, now: float) -> float | None:
    """Return how long to wait before the next attempt.

    Attempts with other code do not count: after a change of code the attempts start anew. After a fault of the
    infrastructure the pause doubles up to `INFRASTRUCTURE_RETRY_SECONDS`, and the attempts are not limited.

    Args:
        attempts: The attempts so far, in any order.
        code_version: Present version of the target's code.
        now: Seconds since 1970-01-01 UTC.

    Returns:
        Seconds; 0 or less if the next attempt may start now, None if a person has to act.
    """
    counted = [attempt for attempt in attempts if attempt.code_version == code_version]
    if not counted:
        return 0
    last = max(counted, key=lambda attempt: attempt.ended_at)
    others = [attempt for attempt in counted if not attempt.by_infrastructure]
    if len(others) > len(RETRY_AFTER_SECONDS):
        return None
    if last.by_infrastructure:
        doublings = min(len(counted) - len(others) - 1, 8)
        pause = min(RETRY_AFTER_SECONDS[0] << doublings, INFRASTRUCTURE_RETRY_SECONDS)
    else:
        pause = RETRY_AFTER_SECONDS[len(others) - 1]
    return last.ended_at + pause - now


def describe_attempts(plan: SessionPlan, attempts: Sequence[Attempt]) -> str:
    """Return what became of a session so far, without a full stop."""
    return f"Session {plan.session_id} ({plan}) ended without a commit; attempts so far: {len(attempts)}"


def retry_remedy(target: Target) -> str:
    """Return what a person can do when a session has no attempts left."""
    return f"Read the log of its last run; then re-execute that run, or run `lake catch-up {target.name}`."
