"""The sensor that has landed files merged before there are many of them.

A busy partition closes a file each minute, or faster. If a partition has `MOST_UNMERGED` files that can be merged,
the sensor requests a run of the job `landing_compaction` for its shard. So the number of live files depends on neither
the rate of messages nor the schedule of maintenance.
"""

from collections.abc import Iterator, Sequence

import dagster as dg

from lake_assets.errors import ServiceError
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.incremental.dagster.session_runs import ended_attempts
from lake_assets.landing.dagster.resource import LandingResource
from lake_assets.landing.dagster.sensors import SHARDS
from lake_assets.landing.files.sharding import Shard
from lake_assets.landing.landing_service import LandingService
from lake_assets.landing.manifest.shared_state import SharedState
from lake_assets.landing.manifest.status import shards_of
from lake_assets.landing.manifest.zone_writer import ZoneWriter
from lake_assets.landing.operations.compaction_rounds import shard_files

MOST_UNMERGED = 60
"""At this number of files of a partition that can be merged, a run merges them."""

TICK_SECONDS = 30
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
        except ServiceError as error:
            return dg.SensorResult(skip_reason=str(error))
        due = list(due_shards(service.zones, most_unmerged))
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
