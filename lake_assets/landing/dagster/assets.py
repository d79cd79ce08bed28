"""Landing as assets: each topic in each zone, and each topic as it is loaded into its raw table.

The services of `lake up` and `lake landing run` do the same continuously, without Dagster. One process at a time tails
a zone: while another one does, a run of a zone's asset fails and says so.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta

import dagster as dg

from lake_assets.base.hours import hour_key
from lake_assets.errors import LakeError
from lake_assets.incremental.dagster.assets import failure
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.landing.consume.heartbeats import beat
from lake_assets.landing.consume.messages import Feed
from lake_assets.landing.dagster.checks import LAG, lag_check, load_key, zone_key, zones_equal_check
from lake_assets.landing.dagster.jobs import compaction_job, reshard_job
from lake_assets.landing.dagster.sensors import landing_sensor
from lake_assets.landing.files.offset_ranges import with_text_keys
from lake_assets.landing.files.sharding import parse_shard
from lake_assets.landing.landing_service import LandingService
from lake_assets.landing.loading.loader import Loaded
from lake_assets.landing.manifest.open_zones import ZONES
from lake_assets.landing.manifest.status import status
from lake_assets.landing.tailing.zone_lock import locked_zone

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
        description=(
            f"Landed files of the Kafka topic {feed.topic} in zone {zone}. A run sends a heartbeat into each partition "
            "and lands the messages available then."
        ),
        required_resource_keys={"landing"},
        check_specs=[lag_check(feed.topic, zone)],
        pool=pool_of(zone),
    )
    def step(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        try:
            service: LandingService = context.resources.landing.service()
            beat(service.servers, {feed.topic: service.clock()})
            with (
                locked_zone(service.settings.landing_folder, zone),
                service.tailer(service.zone(zone), topic=feed.topic) as tailer,
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
        required_resource_keys={"landing"},
        pool=f"landing.{feed.raw.table}",
    )
    def step(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        try:
            service: LandingService = context.resources.landing.service()
            loaded = list(service.loader(feed).load())
        except LakeError as error:
            raise failure(error) from error
        return dg.MaterializeResult(metadata=load_metadata(loaded))

    return step


def zone_metadata(service: LandingService, topic: str, zone: str) -> dict[str, dg.MetadataValue]:
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
        "files verified": dg.MetadataValue.int(verified),
        "files provisional": dg.MetadataValue.int(provisional),
        "files quarantined": dg.MetadataValue.int(quarantined),
        "records": dg.MetadataValue.int(records),
        "dead letters": dg.MetadataValue.int(dead_letters),
        "next offsets": dg.MetadataValue.json(next_offsets),
    }


def load_metadata(loaded: Sequence[Loaded]) -> dict[str, dg.MetadataValue]:
    """Return the numbers of batches and rows of a run; if it loaded any, also the next offsets and complete-through."""
    metadata: dict[str, dg.MetadataValue] = {
        "batches": dg.MetadataValue.int(len(loaded)),
        "rows": dg.MetadataValue.int(sum(batch.rows for batch in loaded)),
        "rows dropped (erased)": dg.MetadataValue.int(sum(batch.erased for batch in loaded)),
    }
    if loaded:
        last = loaded[-1]
        through = last.complete_through
        next_offsets: dict[str, int] = {}
        for batch in loaded:
            next_offsets |= {str(partition): end for partition, (_, end) in batch.offsets.items()}
        metadata["next offsets"] = dg.MetadataValue.json(next_offsets)
        metadata["complete through"] = dg.MetadataValue.text("none" if through is None else hour_key(through))
    return metadata


def landing_definitions(feeds: Sequence[Feed], *, clock: Clock, deadline: timedelta) -> dg.Definitions:
    """Return the definitions of landing for topics; none if there are no topics.

    Args:
        feeds: The topics; empty for a pipeline whose raw tables are landed by other means.
        clock: Returns the present time, in UTC.
        deadline: A message or a provisional file that waits longer fails its check.
    """
    if not feeds:  # the sensor needs an asset, and the jobs need topics
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
