"""Compaction and reshard as Dagster jobs. Each run works on one shard, or its topic, in both zones."""

from contextlib import suppress

import dagster as dg

from lake_assets.errors import UsageError
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.landing.consume.messages import feed_of
from lake_assets.landing.dagster.resource import LandingResource
from lake_assets.landing.dagster.sensors import SHARDS
from lake_assets.landing.files.sharding import parse_shard
from lake_assets.landing.manifest.compaction_choice import GroupLimits
from lake_assets.landing.operations.compact import merge
from lake_assets.landing.operations.reshard import bring_to_its_shards, reshard_all

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
        with suppress(UsageError):  # of a topic that is not declared any more, nobody knows the ids
            bring_to_its_shards(
                service.zones, shard.topic, lambda: feed_of(service.feeds, shard.topic).distinct_id_of, clock
            )
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
