"""The regular work on landed files as two jobs with schedules: upkeep of both zones, and their verification."""

from datetime import timedelta

import dagster as dg

from lake_assets.errors import LakeError
from lake_assets.incremental.dagster.assets import failure
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.landing.consume.removal import remove_landed
from lake_assets.landing.dagster.jobs import CompactionConfig, limits_of
from lake_assets.landing.dagster.resource import LandingResource
from lake_assets.landing.landing_service import LandingService
from lake_assets.landing.operations.upkeep import keep_up
from lake_assets.landing.operations.verify import verify
from lake_assets.landing.tailing.open_tailer import scrub_by

KEEP = timedelta(hours=24)
"""Files that were replaced are kept for so long, because a reader may have them open."""

SHOWN = 10
"""The most findings that a failed verification names."""


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
    zones = [writer.zone.name for writer in service.zones]
    try:
        firsts = remove_landed(service.manifest, service.servers, topic, zones=zones, now=clock())
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
        zones = [writer.zone for writer in service.zones]
        done = verify(service.manifest, zones, now=clock(), deadline=deadline, processes=1)
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
