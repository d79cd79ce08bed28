"""A sensor that starts nothing: it tells where zones differ, how late each is, and which shards there are.

It decides at every tick by Kafka's offsets and the manifest. Its cursor holds what was told, and what Kafka had at an
earlier look, for as long as a zone lacks it.
"""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import dagster as dg

from lake_assets.errors import ServiceError
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.landing.consume.kafka_reader import ends
from lake_assets.landing.consume.lag import Lag, Mark, lag
from lake_assets.landing.consume.messages import Feed
from lake_assets.landing.dagster.checks import (
    AGREE,
    ZONES_EQUAL,
    lag_evaluation,
    load_key,
    zone_key,
    zones_equal,
    zones_equal_evaluation,
)
from lake_assets.landing.landing_service import LandingService
from lake_assets.landing.manifest.compaction_choice import next_offsets
from lake_assets.landing.manifest.zones import ZONES, shards_of

TICK_SECONDS = 30
Seen = dict[str, dict[str, Any]]
"""What the cursor holds: of a zone and topic, or of a topic, what was told last."""

SHARDS = dg.DynamicPartitionsDefinition(name="landing_shard")


def landing_sensor(feeds: Sequence[Feed], clock: Clock, deadline: timedelta) -> dg.SensorDefinition:
    """Reports what zones say of each other, and how late each is, as checks: when what there is to say has changed."""

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        seen: Seen = json.loads(context.cursor or "{}")
        try:
            station = context.resources.landing.station()
        except ServiceError as error:
            return dg.SensorResult(cursor=context.cursor, skip_reason=str(error))
        told, events = _equalities(station, feeds, seen, clock(), deadline)
        try:
            late, lags = _lateness(station, feeds, seen, clock(), deadline)
        except ServiceError as error:
            late, lags, skipped = {}, [], str(error)
        else:
            skipped = f"{len(events) + len(lags)} verdicts were reported."
        wanted = [str(shard) for shard in shards_of(station.manifest)]
        new = sorted(set(wanted) - set(context.instance.get_dynamic_partitions(str(SHARDS.name))))
        return dg.SensorResult(
            asset_events=[*events, *lags],
            cursor=json.dumps({**seen, **told, **late}),
            dynamic_partitions_requests=[SHARDS.build_add_request(new)] if new else [],
            skip_reason=skipped,
        )

    return dg.SensorDefinition(
        name="landing_sensor",
        evaluation_fn=evaluate,
        asset_selection=[
            key for feed in feeds for key in (*(zone_key(feed.topic, z) for z in ZONES), load_key(feed.topic))
        ],
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Turns checks red: when zones differ, and when messages wait too long to be landed.",
        required_resource_keys={"landing"},
    )


def _equalities(
    station: LandingService, feeds: Sequence[Feed], seen: Seen, now: datetime, deadline: timedelta
) -> tuple[Seen, list[dg.AssetCheckEvaluation]]:
    """What the cursor keeps of how zones stand, and what is new: also another file, where one was told of before."""
    told: Seen = {}
    events = []
    for feed in feeds:
        place = f"{ZONES_EQUAL} {feed.topic}"
        found = zones_equal(station.manifest, feed.topic, now=now, deadline=deadline)
        told[place] = {"told": found.description}
        if seen.get(place, {"told": AGREE}) != told[place]:
            events.append(zones_equal_evaluation(feed.topic, found))
    return told, events


def _lateness(
    station: LandingService, feeds: Sequence[Feed], seen: Seen, now: datetime, deadline: timedelta
) -> tuple[Seen, list[dg.AssetCheckEvaluation]]:
    """The same of how late each zone is, by its verdict alone. Raises `ServiceError`."""
    told: Seen = {}
    events = []
    for feed in feeds:
        for zone, found in _lags(station, feed.topic, seen, now).items():
            place, passed = f"{zone} {feed.topic}", found.age <= deadline
            told[place] = _written(found.mark, passed=passed)
            if seen.get(place, {}).get("passed") is not passed:
                events.append(lag_evaluation(feed.topic, zone, found, deadline))
    return told, events


def _lags(station: LandingService, topic: str, seen: Seen, now: datetime) -> dict[str, Lag]:
    """Zone → its lag in a topic."""
    there, found = ends(station.servers, topic), {}
    for zone in ZONES:
        files = [entry.file for entry in station.manifest.entries(zone, topic)]
        found[zone] = lag(there, next_offsets(files), _read(seen.get(f"{zone} {topic}")), now=now)
    return found


def _written(mark: Mark, *, passed: bool) -> dict[str, Any]:
    return {"ends": {str(p): end for p, end in mark.ends.items()}, "at": mark.at.isoformat(), "passed": passed}


def _read(found: dict[str, Any] | None) -> Mark | None:
    if found is None:
        return None
    return Mark({int(p): end for p, end in found["ends"].items()}, datetime.fromisoformat(found["at"]))
