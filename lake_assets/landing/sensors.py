"""A sensor that starts nothing: it tells how late each zone is, and which shards there are.

It decides at every tick by Kafka's offsets and the manifest. Its cursor holds what Kafka had at an earlier look, for as
long as a zone lacks it.
"""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import dagster as dg

from lake_assets.errors import ServiceError
from lake_assets.incremental.sensors import Clock
from lake_assets.landing.checks import lag_evaluation, zone_key
from lake_assets.landing.compaction import next_offsets
from lake_assets.landing.kafka import ends
from lake_assets.landing.lag import Lag, Mark, lag
from lake_assets.landing.messages import Feed
from lake_assets.landing.station import Station
from lake_assets.landing.zones import ZONES, shards_of

TICK_SECONDS = 30
SHARDS = dg.DynamicPartitionsDefinition(name="landing_shard")


def landing_sensor(feeds: Sequence[Feed], clock: Clock, deadline: timedelta) -> dg.SensorDefinition:
    """Reports a zone's lag in a topic as a check, which fails beyond a deadline: when its verdict has changed."""

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        seen: dict[str, dict[str, Any]] = json.loads(context.cursor or "{}")
        station, told, events = context.resources.landing.station(), {}, []
        try:
            for feed in feeds:
                for zone, found in _lags(station, feed.topic, seen, clock()).items():
                    place, passed = f"{zone} {feed.topic}", found.age <= deadline
                    told[place] = _written(found.mark, passed=passed)
                    if seen.get(place, {}).get("passed") is not passed:
                        events.append(lag_evaluation(feed.topic, zone, found, deadline))
        except ServiceError as error:
            return dg.SensorResult(cursor=context.cursor, skip_reason=str(error))
        wanted = [str(shard) for shard in shards_of(station.manifest)]
        new = sorted(set(wanted) - set(context.instance.get_dynamic_partitions(str(SHARDS.name))))
        return dg.SensorResult(
            asset_events=events,
            cursor=json.dumps(told),
            dynamic_partitions_requests=[SHARDS.build_add_request(new)] if new else [],
            skip_reason=f"{len(events)} verdicts were reported.",
        )

    return dg.SensorDefinition(
        name="landing_sensor",
        evaluation_fn=evaluate,
        asset_selection=[zone_key(feed.topic, zone) for feed in feeds for zone in ZONES],
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Turns a zone's lag check red when messages wait too long to be landed.",
        required_resource_keys={"landing"},
    )


def _lags(station: Station, topic: str, seen: dict[str, dict[str, Any]], now: datetime) -> dict[str, Lag]:
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
