"""Landing in Dagster: assets, checks, sensors, jobs and schedules.

Landing as a resource of steps, checks and sensors: the parameter `lake_assets_landing`.

Asset checks on the zones: `zones_equal` compares the files of a topic, `lag` checks that a zone is not late.

`zones_equal` runs on demand; every run of a zone's asset evaluates `lag`. The sensor evaluates both.
A new check is also listed in `landing_definitions`, or in `check_specs` if a run of an asset evaluates it.

What has moved from Kafka to raw tables, as events of the assets that stand for topics, zones and loaded topics.

The services of `lake up` land without Dagster. The sensor reports what they did: at most one event for each asset in
`PERIOD`, because messages move all the time, and none if nothing but heartbeats has moved.

A sensor that starts no run. It reports differences and lag of the zones as checks, and what has moved as events.

It also adds shards as partitions.

Each tick compares Kafka's offsets with the manifest. The cursor stores the last reported results, and for each zone
Kafka's ends at an earlier tick, as long as the zone has not reached them.

Compaction and reshard as Dagster jobs. Each run works on one shard, or its topic, in both zones.

The sensor that has landed files merged before there are many of them.

A busy partition closes a file each minute, or faster. If a partition has `MOST_UNMERGED` files that can be merged,
the sensor requests a run of the job `landing_compaction` for its shard. So the number of live files depends on neither
the rate of messages nor the schedule of maintenance.

The regular work on landed files as two jobs with schedules: upkeep of both zones, and their verification.

Landing as assets: each topic in each zone, and each topic as it is loaded into its raw table.

The services of `lake up` and `lake landing run` do the same continuously, without Dagster. One process at a time tails
a zone: while another one does, a run of a zone's asset fails and says so.
"""

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import dagster as dg

from lake_assets.base.hours import hour_key
from lake_assets.connections.addresses import kafka_address, required
from lake_assets.errors import LakeError, ServiceError, ZoneMismatch
from lake_assets.incremental.dagster.asset_specs import asset_key
from lake_assets.incremental.dagster.assets import failure
from lake_assets.incremental.dagster.checks import of_newest_materialization
from lake_assets.incremental.dagster.lake_resource import ConfiguredBySettings, catalog_of
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.incremental.dagster.session_runs import ended_attempts
from lake_assets.incremental.engine.engine import utc_now
from lake_assets.incremental.from_settings import open_pipeline
from lake_assets.landing.files import ZONES
from lake_assets.landing.heal import gone, verify
from lake_assets.landing.kafka import Lag, Mark, beat, ends, lag, logical_ends, remove_landed
from lake_assets.landing.landing_service import LandingService
from lake_assets.landing.loading import Loaded, progress_of
from lake_assets.landing.manifest import CURRENT_STAGES, Entry, Manifest, files_of, shards_of, status
from lake_assets.landing.messages import Feed, feed_of
from lake_assets.landing.operations import GroupLimits, keep_up, merge, shard_files
from lake_assets.landing.records import Shard, next_offsets, offsets, parse_shard, with_number_keys, with_text_keys
from lake_assets.landing.reshard import bring_to_its_shards, reshard_all
from lake_assets.landing.state import SharedState, Stop, Stops, idle_spans, with_idle
from lake_assets.landing.zone_tailer import scrub_by
from lake_assets.landing.zones import ZoneWriter, locked_zone, open_zones, present_zones


class LandingResource(ConfiguredBySettings, dg.ConfigurableResource[Any]):
    """Landing, according to the settings of this process."""

    def service(self) -> LandingService:
        """Return a new landing service, which reads the present state of Kafka and the manifest.

        Raises:
            ServiceError: No Kafka is named, and none runs for this data directory.
        """
        found = self.settings()
        kafka = required(kafka_address(found), "Kafka")
        return LandingService(found, kafka, catalog_of(found), open_pipeline(found), utc_now)


ZONES_EQUAL = "zones_equal"
LAG = "lag"
AGREE = "No file of either zone differs or is overdue."
SHOWN = 10
"""The most files that a check names."""


def zone_key(topic: str, zone: str) -> dg.AssetKey:
    """Return the asset key of a topic in a zone: `raw.signups` in zone a → landing/a/raw/signups."""
    return dg.AssetKey(["landing", zone, *topic.split(".")])


def load_key(topic: str) -> dg.AssetKey:
    """Return the asset key of a loaded topic: `raw.signups` → landing/raw/signups."""
    return dg.AssetKey(["landing", *topic.split(".")])


def topic_key(topic: str) -> dg.AssetKey:
    """Return the asset key of a topic in Kafka: `raw.signups` → kafka/raw/signups."""
    return dg.AssetKey(["kafka", *topic.split(".")])


@dataclass(frozen=True)
class ZoneComparison:
    """The comparison of the zones' files of a topic.

    Attributes:
        quarantined: Files that differ from another zone's file.
        overdue: Files that have waited for the other zone's file longer than the deadline.
        provisional: Number of files that wait, including the overdue ones.
        stops: Partitions that a zone does not land any more.
    """

    quarantined: Sequence[Entry]
    overdue: Sequence[Entry]
    provisional: int
    stops: Sequence[Stop] = ()

    @property
    def passed(self) -> bool:
        """Whether no file differs or is overdue, and no partition has stopped."""
        return not (self.quarantined or self.overdue or self.stops)

    @property
    def description(self) -> str:
        """One line for each stop and each file, up to `SHOWN`: name, offsets, checksum, and what is wrong with it."""
        if self.passed:
            return AGREE
        lines = [f"{stop.sentence} {stop.remedy}" for stop in self.stops]
        for entry in (*self.quarantined, *self.overdue):
            file = entry.file
            problem = entry.reason or f"has waited for the other zone since {entry.added_at:%Y-%m-%d %H:%M:%S}"
            lines.append(f"{file.name} of zone {file.zone} ({offsets(file)}, {file.checksum}): {problem}")
        return "\n".join(lines[:SHOWN])

    @property
    def metadata(self) -> dict[str, int]:
        """The number of files of each kind."""
        return {
            "quarantined": len(self.quarantined),
            "overdue": len(self.overdue),
            "provisional": self.provisional,
            "stopped": len(self.stops),
        }


def compare_zones(manifest: Manifest, topic: str, *, now: datetime, deadline: timedelta) -> ZoneComparison:
    """Return the comparison of the zones' files of a topic, according to the manifest."""
    entries = manifest.entries(topic=topic, stages=CURRENT_STAGES, verdicts=("provisional", "quarantined"))
    quarantined = [entry for entry in entries if entry.verdict == "quarantined"]
    return ZoneComparison(
        quarantined=quarantined,
        overdue=[entry for entry in entries if entry.overdue(now, deadline)],
        provisional=len(entries) - len(quarantined),
        stops=Stops(manifest).all(topic),
    )


def zones_equal_check(feed: Feed, clock: Clock, deadline: timedelta) -> dg.AssetChecksDefinition:
    """Return the check that fails while a file of a topic is quarantined or overdue.

    Args:
        feed: Of the topic.
        clock: Returns the present time, in UTC.
        deadline: A provisional file that waits longer is overdue.
    """

    @dg.asset_check(
        asset=load_key(feed.topic),
        name=ZONES_EQUAL,
        description=(
            "Both zones have the same records. The check fails while a file is quarantined because it differs from the "
            "other zone's file, or waits for that file longer than the deadline."
        ),
    )
    def check(context: dg.AssetCheckExecutionContext, lake_assets_landing: LandingResource) -> dg.AssetCheckResult:
        service = lake_assets_landing.service()
        found = compare_zones(service.manifest, feed.topic, now=clock(), deadline=deadline)
        return dg.AssetCheckResult(passed=found.passed, description=found.description, metadata=found.metadata)

    return check


def zones_equal_evaluation(topic: str, found: ZoneComparison) -> dg.AssetCheckEvaluation:
    """Return the same result as an event outside a run."""
    return dg.AssetCheckEvaluation(
        asset_key=load_key(topic),
        check_name=ZONES_EQUAL,
        passed=found.passed,
        metadata=found.metadata,
        description=found.description,
    )


def lag_check(topic: str, zone: str) -> dg.AssetCheckSpec:
    """Return the check that fails while messages wait longer than the deadline to be landed in a zone."""
    description = "Every message in Kafka is landed in this zone within the deadline."
    return dg.AssetCheckSpec(LAG, asset=zone_key(topic, zone), description=description)


def lag_evaluation(topic: str, zone: str, found: Lag, deadline: timedelta) -> dg.AssetCheckEvaluation:
    """Return the result of the `lag` check as an event outside a run."""
    passed = found.age <= deadline
    description = "No message has waited longer than the deadline."
    if not passed:
        description = f"Messages have waited for {found.age} to be landed. Run `lake landing run`."
    metadata = {"messages": found.messages, "age (seconds)": found.age.total_seconds()}
    return dg.AssetCheckEvaluation(
        asset_key=zone_key(topic, zone), check_name=LAG, passed=passed, metadata=metadata, description=description
    )


PERIOD = timedelta(minutes=5)

Event = dg.AssetMaterialization | dg.AssetObservation


def movement(
    service: LandingService, feed: Feed, before: dict[str, Any] | None, *, now: datetime
) -> tuple[dict[str, Any], list[Event]]:
    """Return what has moved in a topic since it was reported last.

    Args:
        service: Landing of the home.
        feed: Of the topic.
        before: What the last call stored; None for the first one.
        now: The present time.

    Returns:
        For the cursor: what was reported last, and when. And the events, if something is to be reported.

    Raises:
        ServiceError: Kafka does not answer.
    """
    progress = progress_of(service.catalog, feed.raw.table, feed.topic)
    state: dict[str, Any] = {"batch": progress.batch}
    for zone in ZONES:  # the version of the manifest that added the newest file
        state[zone] = max((entry.version for entry in service.manifest.entries(zone, feed.topic)), default=0)
    last = before or {**dict.fromkeys(state, 0), "at": None}
    is_early = last["at"] is not None and now < datetime.fromisoformat(last["at"]) + PERIOD
    changed = {name for name, value in state.items() if value != last[name]}
    if is_early or not changed:
        return last, []
    events: list[Event] = []
    if changed.intersection(ZONES):
        in_kafka = with_text_keys(ends(service.servers, feed.topic))
        events.append(dg.AssetObservation(topic_key(feed.topic), metadata={"end offsets": in_kafka}))
    for zone in ZONES:
        if zone in changed:
            metadata = zone_metadata(service, feed.topic, zone)
            events.append(dg.AssetMaterialization(zone_key(feed.topic, zone), metadata=metadata))
    if "batch" in changed:
        loaded: dict[str, Any] = {
            "batch": progress.batch,
            "next offsets": with_text_keys(progress.offsets),
            "complete through": _hour(progress.complete_through(progress.offsets)),
        }
        events.append(dg.AssetMaterialization(load_key(feed.topic), metadata=loaded))
    return {**state, "at": now.isoformat()}, events


def _hour(through: int | None) -> str:
    return "none" if through is None else hour_key(through)


def zone_metadata(service: LandingService, topic: str, zone: str) -> dict[str, Any]:
    """Return the numbers of files and records of a topic in a zone, and the next offsets by shard and partition."""
    verified = provisional = quarantined = records = dead_letters = 0
    next_offsets: dict[str, dict[str, int]] = {}
    for found in status(service.manifest):
        shard = parse_shard(found.shard)
        if found.zone != zone or shard.topic != topic:
            continue
        verified += found.verified
        provisional += found.provisional
        quarantined += found.quarantined
        if shard.dead_letters:
            dead_letters += found.records
        else:
            records += found.records
            next_offsets[found.shard] = with_text_keys(found.next)
    return {
        "files verified": verified,
        "files provisional": provisional,
        "files quarantined": quarantined,
        "records": records,
        "dead letters": dead_letters,
        "next offsets": next_offsets,
    }


TICK_SECONDS = 30

Cursor = dict[str, dict[str, Any]]
"""Check and topic, or zone and topic → the last result. The keys `told`, `ends`, `at` and `passed` are stored."""

SHARDS = dg.DynamicPartitionsDefinition(name="landing_shard")


def landing_sensor(feeds: Sequence[Feed], clock: Clock, deadline: timedelta) -> dg.SensorDefinition:
    """Return the sensor that reports results of the checks `zones_equal` and `lag` when they change.

    Args:
        feeds: The topics.
        clock: Returns the present time, in UTC.
        deadline: A message or a provisional file that waits longer fails its check.
    """

    def evaluate(context: dg.SensorEvaluationContext, lake_assets_landing: LandingResource) -> dg.SensorResult:
        cursor: Cursor = json.loads(context.cursor or "{}")
        try:
            service = lake_assets_landing.service()
        except ServiceError as error:
            return dg.SensorResult(cursor=context.cursor, skip_reason=str(error))
        results: list[dg.AssetCheckEvaluation] = []
        for feed in feeds:  # a comparison has changed if its description names other files than the last one
            key = f"{ZONES_EQUAL} {feed.topic}"
            found = compare_zones(service.manifest, feed.topic, now=clock(), deadline=deadline)
            if cursor.get(key, {"told": AGREE}) != {"told": found.description}:
                results.append(zones_equal_evaluation(feed.topic, found))
            cursor[key] = {"told": found.description}
        moved: list[Event] = []
        try:
            lags = _lags(service, feeds, cursor, clock(), deadline)
            movements = {}
            for feed in feeds:
                key = f"moved {feed.topic}"
                movements[key] = movement(service, feed, cursor.get(key), now=clock())
        except ServiceError as error:
            skip_reason = str(error)
        else:
            for key, (stored, result) in lags.items():
                results += [result] if cursor.get(key, {}).get("passed") is not stored["passed"] else []
                cursor[key] = stored
            for key, (stored, events) in movements.items():
                cursor[key] = stored
                moved += events
            skip_reason = f"No run is needed. Check results reported: {len(results)}; movements: {len(moved)}."
        known = context.instance.get_dynamic_partitions(str(SHARDS.name))
        new = {str(shard) for shard in shards_of(service.manifest)}.difference(known)
        return dg.SensorResult(
            asset_events=[*(of_newest_materialization(context.instance, each) for each in results), *moved],
            cursor=json.dumps(cursor),
            dynamic_partitions_requests=[SHARDS.build_add_request(sorted(new))] if new else [],
            skip_reason=skip_reason,
        )

    monitored = [load_key(feed.topic) for feed in feeds]
    monitored += [zone_key(feed.topic, zone) for feed in feeds for zone in ZONES]
    return dg.SensorDefinition(
        name="landing_sensor",
        evaluation_fn=evaluate,
        asset_selection=monitored,
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            "Fails the asset checks of landing while files of the two zones differ, or while messages in Kafka wait "
            "longer than the deadline to be landed, and reports what was landed and loaded. It starts no run."
        ),
    )


def _lags(
    service: LandingService, feeds: Sequence[Feed], cursor: Cursor, now: datetime, deadline: timedelta
) -> dict[str, tuple[dict[str, Any], dg.AssetCheckEvaluation]]:
    """Return for each zone and topic what the cursor stores of its lag, and its result. Raises `ServiceError`."""
    results = {}
    for feed in feeds:
        in_kafka = logical_ends(service.manifest, service.servers, feed.topic)
        for zone in ZONES:
            key = f"{zone} {feed.topic}"
            files = files_of(service.manifest.entries(zone, feed.topic))
            read = with_idle(next_offsets(files), idle_spans(service.manifest, feed.topic).get(zone, {}))
            before, mark = cursor.get(key), None
            if before is not None:
                mark = Mark(with_number_keys(before["ends"]), datetime.fromisoformat(before["at"]))
            found = lag(in_kafka, read, mark, now=now)
            stored = {"ends": with_text_keys(found.mark.ends), "at": found.mark.at.isoformat()}
            passed = {"passed": found.age <= deadline}
            results[key] = {**stored, **passed}, lag_evaluation(feed.topic, zone, found, deadline)
    return results


_MEGABYTE = 1 << 20


class CompactionConfig(dg.Config):
    """Limits of the files that become one file: their number, and megabytes of records."""

    max_files: int = 100
    max_mb: int = 256


def limits_of(config: CompactionConfig) -> GroupLimits:
    """Return the limits of a configuration."""
    return GroupLimits(config.max_files, config.max_mb * _MEGABYTE)


class ReshardConfig(dg.Config):
    """The new number of shards of the topic."""

    shards: int


def compaction_job(clock: Clock) -> dg.JobDefinition:
    """Return the job that compacts the files of a shard."""

    @dg.op
    def compact_shard(
        context: dg.OpExecutionContext, config: CompactionConfig, lake_assets_landing: LandingResource
    ) -> None:
        service = lake_assets_landing.service()
        shard = parse_shard(context.partition_key)
        bring_to_its_shards(service.zones, shard.topic, lambda: service.feeds, clock)
        for writer in service.zones:
            made = merge(writer, shard, limits_of(config), now=clock())
            context.log.info(f"{shard} in zone {writer.zone.name}: {len(made)} columnar files made")

    @dg.job(
        name="landing_compaction",
        partitions_def=SHARDS,
        description=(
            "Merges landed files of a shard into columnar files, the same in both zones. Files that one zone does not "
            "have yet are merged by the next run."
        ),
    )
    def job() -> None:
        compact_shard()

    return job


def reshard_job(clock: Clock) -> dg.JobDefinition:
    """Return the job that reshards the topic of a shard."""

    @dg.op
    def reshard_shard(
        context: dg.OpExecutionContext, config: ReshardConfig, lake_assets_landing: LandingResource
    ) -> None:
        service = lake_assets_landing.service()
        shard = parse_shard(context.partition_key)
        distinct_id = feed_of(service.feeds, shard.topic).distinct_id_of
        for zone, done in reshard_all(service.zones, shard.topic, config.shards, distinct_id, clock):
            state = f"waits for {done.waits_for}" if done.waits_for else "the old files have retired"
            context.log.info(f"{shard.topic} in zone {zone}: {len(done.copies)} copies made; {state}")

    @dg.job(
        name="landing_reshard",
        partitions_def=SHARDS,
        description="Brings the topic of a shard to another number of shards by distinct id, in both zones.",
    )
    def job() -> None:
        reshard_shard()

    return job


MOST_UNMERGED = 60
"""At this number of files of a partition that can be merged, a run merges them."""

PAUSE_SECONDS = 600
"""After a run that opened no compaction round, as it failed or a zone lags, the next one is requested."""

MERGING_TAG = "lake/merging"
"""Of a run: the shard, and the number of compaction rounds that it had."""

PARTITION_TAG = "dagster/partition"


def merging_sensor(job: dg.JobDefinition, clock: Clock, *, most_unmerged: int = MOST_UNMERGED) -> dg.SensorDefinition:
    """Return the sensor that requests runs of the compaction of shards.

    Args:
        job: Compacts one shard in both zones; its partitions are `SHARDS`.
        clock: Returns the present time, in UTC.
        most_unmerged: A run is requested when a partition has so many files that can be merged, in any zone.
    """

    def evaluate(context: dg.SensorEvaluationContext, lake_assets_landing: LandingResource) -> dg.SensorResult:
        try:
            service = lake_assets_landing.service()
            due = list(due_shards(service.zones, most_unmerged))
        except (ServiceError, ZoneMismatch) as error:
            return dg.SensorResult(skip_reason=str(error))
        now = clock().timestamp()
        found = [_request(context.instance, service, shard, now) for shard in due]
        requests = [request for request in found if request is not None]
        if not requests:
            return dg.SensorResult(skip_reason=f"No partition has {most_unmerged} files to merge.")
        missing = {str(shard) for shard in due}.difference(context.instance.get_dynamic_partitions(str(SHARDS.name)))
        adds = [SHARDS.build_add_request(sorted(missing))] if missing else []
        return dg.SensorResult(run_requests=requests, dynamic_partitions_requests=adds)

    return dg.SensorDefinition(
        name="landing_merging_sensor",
        evaluation_fn=evaluate,
        job=job,
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Has landed files merged as soon as a partition has {most_unmerged} that can be merged.",
    )


def due_shards(writers: Sequence[ZoneWriter], most_unmerged: int) -> Iterator[Shard]:
    """Yield the shards of which a partition has so many files to merge, in any zone. Reads the manifest."""
    for shard in shards_of(writers[0].manifest):
        if any(shard_files(writer, shard).most_unmerged() >= most_unmerged for writer in writers):
            yield shard


def _request(instance: dg.DagsterInstance, service: LandingService, shard: Shard, now: float) -> dg.RunRequest | None:
    """Return the request of the next attempt at a shard; None if the last one ended just now and changed nothing."""
    state = f"{shard}:{len(SharedState(service.manifest).rounds(shard))}"
    ended = [attempt.ended_at for attempt in ended_attempts(instance, state, tag=MERGING_TAG)]
    if ended and now < max(ended) + PAUSE_SECONDS:
        return None
    return dg.RunRequest(
        run_key=f"{state}:{len(ended) + 1}",
        partition_key=str(shard),
        # Without this tag Dagster looks the partition up where it cannot load dynamic partitions, and the tick fails.
        tags={MERGING_TAG: state, PARTITION_TAG: str(shard)},
    )


KEEP = timedelta(hours=24)
"""Files that were replaced are kept for so long, because a reader may have them open."""


def upkeep_job(clock: Clock) -> dg.JobDefinition:
    """Return the job that finishes scrubs, merges small files and removes replaced ones, in both zones."""

    @dg.op
    def keep_zones_up(
        context: dg.OpExecutionContext, config: CompactionConfig, lake_assets_landing: LandingResource
    ) -> None:
        service = lake_assets_landing.service()
        rules = {feed.topic: scrub_by(service.settings, feed) for feed in service.feeds}
        for writer in service.zones:
            try:
                done = keep_up(writer, rules, limits_of(config), keep=KEEP, now=clock())
            except LakeError as error:
                raise failure(error) from error
            context.log.info(
                f"zone {done.zone}: {len(done.scrubbed)} files scrubbed, {len(done.merged)} columnar files made, "
                f"{len(done.removed)} old ones removed"
            )
        for feed in service.feeds:
            _remove_from_kafka(context, service, feed.topic, clock)

    @dg.job(
        name="landing_upkeep",
        description="Merges landed files of both zones, finishes scrubs, and removes files that were replaced, and "
        "messages that landed long ago from Kafka.",
    )
    def job() -> None:
        keep_zones_up()

    return job


def _remove_from_kafka(context: dg.OpExecutionContext, service: LandingService, topic: str, clock: Clock) -> None:
    """Remove what landed long ago. A topic that fails does not hinder the others, and has the next run try again."""
    try:
        firsts = remove_landed(service.manifest, service.servers, topic, zones=ZONES, now=clock())
    except LakeError as error:
        context.log.error(str(error))
        return
    for partition, first in firsts.items():
        context.log.info(f"{topic} partition {partition}: landed messages before offset {first} removed from Kafka")


def verification_job(clock: Clock, deadline: timedelta) -> dg.JobDefinition:
    """Return the job that reads every landed file again. It fails if one is not as it was landed."""

    @dg.op
    def verify_zones(context: dg.OpExecutionContext, lake_assets_landing: LandingResource) -> None:
        service = lake_assets_landing.service()
        writers, away = present_zones(service.settings, storage=False)
        done = verify(writers, now=clock(), deadline=deadline, processes=1, beside=gone(away))
        context.log.info(f"{done.files:,} files read: {len(done.findings):,} findings")
        if done.findings:
            shown = [f"{found.name} of zone {found.zone}: {found.problem}" for found in done.findings[:SHOWN]]
            raise dg.Failure("\n".join(shown), {"findings": len(done.findings)}, allow_retries=False)

    @dg.job(
        name="landing_verification",
        description="Reads all landed files of both zones and repeats the checks of their landing. Changes nothing.",
    )
    def job() -> None:
        verify_zones()

    return job


def schedule_of(job: dg.JobDefinition, cron: str) -> dg.ScheduleDefinition:
    """Return the schedule that runs a job; `cron` is in UTC."""
    return dg.ScheduleDefinition(
        name=f"{job.name}_schedule",
        job=job,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=job.description,
    )


GROUP = "landing"


def pool_of(zone: str) -> str:
    """Return the pool of the runs that write a zone: one run at a time."""
    return f"landing.{zone}"


def zone_asset(feed: Feed, zone: str) -> dg.AssetsDefinition:
    """Return the asset of a topic in a zone. A run sends a heartbeat, then lands the messages that Kafka has."""

    @dg.asset(
        key=zone_key(feed.topic, zone),
        group_name=GROUP,
        kinds={"kafka", "avro"},
        deps=[topic_key(feed.topic)],
        description=(
            f"Landed files of the Kafka topic {feed.topic} in zone {zone}. A run sends a heartbeat into each partition "
            "and lands the messages available then."
        ),
        check_specs=[lag_check(feed.topic, zone)],
        pool=pool_of(zone),
    )
    def step(
        context: dg.AssetExecutionContext, lake_assets_landing: LandingResource
    ) -> Iterator[dg.MaterializeResult[None]]:
        try:
            service = lake_assets_landing.service()
            beat(service.servers, {feed.topic: service.clock()})
            with (
                locked_zone(service.settings.landing_folder, zone),
                service.tailer(open_zones(service.settings, [zone])[0], topic=feed.topic) as tailer,
            ):
                tailer.drain()
        except LakeError as error:
            raise failure(error) from error
        for problem in (*tailer.stopped.values(), *tailer.not_refetched.values()):
            raise failure(problem) from problem
        landed = dg.AssetCheckResult(
            passed=True,
            check_name=LAG,
            description="The run has landed all messages that Kafka had when it began.",
        )
        yield dg.MaterializeResult(metadata=zone_metadata(service, feed.topic, zone), check_results=[landed])

    return step


def load_asset(feed: Feed, zones: Sequence[str]) -> dg.AssetsDefinition:
    """Return the asset of a loaded topic. A run loads all offsets that are ready."""

    @dg.asset(
        key=load_key(feed.topic),
        group_name=GROUP,
        kinds={"iceberg"},
        deps=[zone_key(feed.topic, zone) for zone in zones],
        description=(
            f"Messages of the Kafka topic {feed.topic} loaded into {feed.raw.table}, each of them once, from files "
            "that are equal in both zones."
        ),
        pool=f"landing.{feed.raw.table}",
    )
    def step(context: dg.AssetExecutionContext, lake_assets_landing: LandingResource) -> dg.MaterializeResult[None]:
        try:
            service = lake_assets_landing.service()
            loaded = list(service.loader(feed).load())
        except LakeError as error:
            raise failure(error) from error
        return dg.MaterializeResult(metadata=load_metadata(loaded))

    return step


def load_metadata(loaded: Sequence[Loaded]) -> dict[str, Any]:
    """Return the numbers of batches and rows of a run; if it loaded any, also the next offsets and complete-through."""
    metadata: dict[str, Any] = {
        "batches": len(loaded),
        "rows": sum(batch.rows for batch in loaded),
        "rows dropped (erased)": sum(batch.erased for batch in loaded),
    }
    if loaded:
        following = {str(partition): end for batch in loaded for partition, (_, end) in batch.offsets.items()}
        metadata |= {"next offsets": following, "complete through": _hour(loaded[-1].complete_through)}
    return metadata


def topic_spec(feed: Feed) -> dg.AssetSpec:
    """Return a topic as an external asset: other programs send its messages."""
    return dg.AssetSpec(
        key=topic_key(feed.topic),
        group_name=GROUP,
        kinds={"kafka"},
        description=f"The Kafka topic {feed.topic}. Other programs send its messages.",
    )


def with_landed_tables(definitions: dg.Definitions, feeds: Sequence[Feed]) -> dg.Definitions:
    """Return definitions in which the raw tables of feeds depend on their loaded topics."""
    loaded = {asset_key(feed.raw.table): load_key(feed.topic) for feed in feeds}

    def with_origin(spec: dg.AssetSpec) -> dg.AssetSpec:
        origin = loaded.get(spec.key)
        return spec if origin is None else spec.merge_attributes(deps=[origin])

    # The version of Dagster is pinned, so a changed preview is noticed when the pin moves, by the test of definitions.
    with warnings.catch_warnings(action="ignore", category=dg.PreviewWarning):
        return definitions.map_asset_specs(func=with_origin)


def landing_definitions(
    feeds: Sequence[Feed],
    *,
    clock: Clock,
    deadline: timedelta,
    maintenance_cron: str,
    verify_cron: str,
) -> dg.Definitions:
    """Return the definitions of landing for topics; none if there are no topics.

    Args:
        feeds: The topics; empty for a pipeline whose raw tables are landed by other means.
        clock: Returns the present time, in UTC.
        deadline: A message or a provisional file that waits longer fails its check.
        maintenance_cron: When small files are merged, scrubs finished and replaced files removed, in UTC.
        verify_cron: When all files are read again and checked, in UTC.
    """
    if not feeds:  # the sensor needs an asset, and the jobs need topics
        return dg.Definitions()
    upkeep, verification = upkeep_job(clock), verification_job(clock, deadline)
    compaction = compaction_job(clock)
    return dg.Definitions(
        assets=[
            *map(topic_spec, feeds),
            *(zone_asset(feed, zone) for feed in feeds for zone in ZONES),
            *(load_asset(feed, ZONES) for feed in feeds),
        ],
        asset_checks=[zones_equal_check(feed, clock, deadline) for feed in feeds],
        sensors=[landing_sensor(feeds, clock, deadline), merging_sensor(compaction, clock)],
        jobs=[compaction, reshard_job(clock), upkeep, verification],
        schedules=[schedule_of(upkeep, maintenance_cron), schedule_of(verification, verify_cron)],
    )
