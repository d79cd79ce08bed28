"""Landing as assets: each topic in each zone, and each topic as it is loaded into its raw table.

The services of `lake up` and `lake landing run` do the same continuously, without Dagster. One process at a time tails
a zone: while another one does, a run of a zone's asset fails and says so.
"""

import warnings
from collections.abc import Iterator, Sequence
from datetime import timedelta

import dagster as dg

from lake_assets.base.hours import hour_key
from lake_assets.errors import LakeError
from lake_assets.incremental.dagster.asset_specs import asset_key
from lake_assets.incremental.dagster.assets import failure
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.landing.consume.heartbeats import beat
from lake_assets.landing.consume.messages import Feed
from lake_assets.landing.dagster.checks import LAG, lag_check, load_key, topic_key, zone_key, zones_equal_check
from lake_assets.landing.dagster.jobs import compaction_job, reshard_job
from lake_assets.landing.dagster.merging import merging_sensor
from lake_assets.landing.dagster.movements import zone_metadata
from lake_assets.landing.dagster.resource import LandingResource
from lake_assets.landing.dagster.schedules import schedule_of, upkeep_job, verification_job
from lake_assets.landing.dagster.sensors import landing_sensor
from lake_assets.landing.loading.loader import Loaded
from lake_assets.landing.manifest.open_zones import ZONES
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
        assets=[*map(topic_spec, feeds), *_assets(feeds)],
        asset_checks=[zones_equal_check(feed, clock, deadline) for feed in feeds],
        sensors=[landing_sensor(feeds, clock, deadline), merging_sensor(compaction, clock)],
        jobs=[compaction, reshard_job(clock), upkeep, verification],
        schedules=[schedule_of(upkeep, maintenance_cron), schedule_of(verification, verify_cron)],
    )


def _assets(feeds: Sequence[Feed]) -> Iterator[dg.AssetsDefinition]:
    for feed in feeds:
        for zone in ZONES:
            yield zone_asset(feed, zone)
        yield load_asset(feed, ZONES)
