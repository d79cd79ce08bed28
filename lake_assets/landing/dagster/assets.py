"""Landing as assets: each topic in each zone, and what is loaded of it; compaction and reshard as jobs, a shard a run.

`lake landing run` does the same without Dagster, and without pause. A zone is written by one process at a time: beside
it, leave these alone.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta

import dagster as dg

from lake_assets.base.hours import hour_key
from lake_assets.errors import LakeError
from lake_assets.incremental.dagster.assets import failure
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.landing.consume.heartbeats import beat
from lake_assets.landing.consume.messages import Feed, feed_of
from lake_assets.landing.dagster.checks import LAG, lag_check, load_key, zone_key, zones_equal_check
from lake_assets.landing.dagster.sensors import SHARDS, landing_sensor
from lake_assets.landing.files.sharding import parse_shard
from lake_assets.landing.landing_service import LandingService
from lake_assets.landing.loading.loader import Loaded
from lake_assets.landing.manifest.compaction_choice import Limits
from lake_assets.landing.manifest.status import status
from lake_assets.landing.manifest.zones import ZONES
from lake_assets.landing.operations.compact import merge
from lake_assets.landing.operations.reshard import reshard_all

GROUP = "landing"


def pool_of(zone: str) -> str:
    """The pool of all that writes a zone: one run at a time."""
    return f"landing.{zone}"


def zone_asset(feed: Feed, zone: str) -> dg.AssetsDefinition:
    """A topic in a zone: a run lands a heartbeat, and what Kafka has by then. Its metadata tell offsets and files."""

    @dg.asset(
        key=zone_key(feed.topic, zone),
        group_name=GROUP,
        kinds={"kafka", "avro"},
        description=f"The files of {feed.topic} in zone {zone}.",
        required_resource_keys={"landing"},
        check_specs=[lag_check(feed.topic, zone)],
        pool=pool_of(zone),
    )
    def step(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        try:
            station: LandingService = context.resources.landing.station()
            (writer,) = (writer for writer in station.zones if writer.zone.name == zone)
            beat(station.servers, {feed.topic: station.clock()})
            with station.tailer(writer, topic=feed.topic) as tailer:
                tailer.drain()
        except LakeError as error:
            raise failure(error) from error
        for stop in (*tailer.stopped.values(), *tailer.lacks.values()):
            raise failure(stop) from stop
        landed = dg.AssetCheckResult(passed=True, check_name=LAG, description="Landed what Kafka had.")
        yield dg.MaterializeResult(metadata=zone_metadata(station, feed.topic, zone), check_results=[landed])

    return step


def load_asset(feed: Feed, zones: Sequence[str]) -> dg.AssetsDefinition:
    """What is loaded of a topic: a run loads what may be loaded by then."""

    @dg.asset(
        key=load_key(feed.topic),
        group_name=GROUP,
        kinds={"iceberg"},
        deps=[zone_key(feed.topic, zone) for zone in zones],
        description=f"Verified files of {feed.topic}, loaded into {feed.raw.table}.",
        required_resource_keys={"landing"},
        pool=f"landing.{feed.raw.table}",
    )
    def step(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        try:
            station: LandingService = context.resources.landing.station()
            return dg.MaterializeResult(metadata=load_metadata(list(station.loader(feed).load())))
        except LakeError as error:
            raise failure(error) from error

    return step


def zone_metadata(station: LandingService, topic: str, zone: str) -> dict[str, dg.MetadataValue]:
    """Files and records of a topic in a zone, and the offset that comes next in each partition, by shard."""
    found = [s for s in status(station.manifest) if s.zone == zone and parse_shard(s.shard).topic == topic]
    dead = [s for s in found if parse_shard(s.shard).dead_letters]
    numbers = {
        "files verified": sum(s.verified for s in found),
        "files provisional": sum(s.provisional for s in found),
        "files quarantined": sum(s.quarantined for s in found),
        "records": sum(s.records for s in found) - sum(s.records for s in dead),
        "dead letters": sum(s.records for s in dead),
    }
    offsets = {s.shard: {str(p): at for p, at in s.next.items()} for s in found if s not in dead}
    return {name: dg.MetadataValue.int(number) for name, number in numbers.items()} | {
        "next offsets": dg.MetadataValue.json(offsets)
    }


def load_metadata(loaded: Sequence[Loaded]) -> dict[str, dg.MetadataValue]:
    """What a run loaded; the offsets that come next if it loaded anything."""
    found: dict[str, dg.MetadataValue] = {
        "batches": dg.MetadataValue.int(len(loaded)),
        "rows": dg.MetadataValue.int(sum(batch.rows for batch in loaded)),
        "rows of erased": dg.MetadataValue.int(sum(batch.erased for batch in loaded)),
    }
    if loaded:
        last, through = loaded[-1], loaded[-1].complete_through
        found["next offsets"] = dg.MetadataValue.json({str(p): end for p, (_, end) in last.offsets.items()})
        found["complete through"] = dg.MetadataValue.text("none" if through is None else hour_key(through))
    return found


class CompactionConfig(dg.Config):
    """max_files, max_mb: of records, that become one file."""

    max_files: int = 100
    max_mb: int = 256


class ReshardConfig(dg.Config):
    """shards: how many there will be."""

    shards: int


def compaction_job(clock: Clock) -> dg.JobDefinition:
    """Merges files of a shard into columnar ones, in both zones; what one zone lacks yet, the next run does."""

    @dg.op(required_resource_keys={"landing"})
    def compact_shard(context: dg.OpExecutionContext, config: CompactionConfig) -> None:
        station, shard = context.resources.landing.station(), parse_shard(context.partition_key)
        for writer in station.zones:
            made = merge(writer, shard, Limits(config.max_files, config.max_mb << 20), now=clock())
            context.log.info(f"{shard} in {writer.zone.name}: {len(made)} columnar files made")

    @dg.job(name="landing_compaction", partitions_def=SHARDS, description=compaction_job.__doc__)
    def job() -> None:
        compact_shard()

    return job


def reshard_job(clock: Clock) -> dg.JobDefinition:
    """Spreads the records of a shard over others, by distinct id, in both zones."""

    @dg.op(required_resource_keys={"landing"})
    def reshard_shard(context: dg.OpExecutionContext, config: ReshardConfig) -> None:
        station, shard = context.resources.landing.station(), parse_shard(context.partition_key)
        distinct_id = feed_of(station.feeds, shard.topic).distinct_id_of
        for zone, done in reshard_all(station.zones, shard, config.shards, distinct_id, clock):
            state = f"waits for {done.waits_for}" if done.waits_for else "the old files have retired"
            context.log.info(f"{shard} in {zone}: {len(done.copies)} copies made; {state}")

    @dg.job(name="landing_reshard", partitions_def=SHARDS, description=reshard_job.__doc__)
    def job() -> None:
        reshard_shard()

    return job


def landing_definitions(feeds: Sequence[Feed], *, clock: Clock, deadline: timedelta) -> dg.Definitions:
    """Landing of these topics; no definitions if there are none.

    Args:
        feeds: The topics; empty for a pipeline whose raw tables are landed by other means.
        clock: Gives the present time, in UTC.
        deadline: A zone that is later, or a file that waits longer, is an alarm.
    """
    if not feeds:  # a sensor needs an asset, and the jobs merge and spread files of topics
        return dg.Definitions()
    return dg.Definitions(
        assets=list(_assets(feeds)),
        asset_checks=[zones_equal_check(feed, clock, deadline) for feed in feeds],
        sensors=[landing_sensor(feeds, clock, deadline)],
        jobs=[compaction_job(clock), reshard_job(clock)],
    )


def _assets(feeds: Sequence[Feed]) -> Iterator[dg.AssetsDefinition]:
    for feed in feeds:
        for zone in ZONES:
            yield zone_asset(feed, zone)
        yield load_asset(feed, ZONES)
