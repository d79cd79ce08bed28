"""A sensor that starts no run. It reports differences and lag of the zones as checks, and what has moved as events.

It also adds shards as partitions.

Each tick compares Kafka's offsets with the manifest. The cursor stores the last reported results, and for each zone
Kafka's ends at an earlier tick, as long as the zone has not reached them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import dagster as dg

from lake_assets.errors import ServiceError
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.landing.consume.idle_spans import idle_spans, with_idle
from lake_assets.landing.consume.lag import Lag, Mark, lag
from lake_assets.landing.consume.messages import Feed
from lake_assets.landing.consume.topic_watch import logical_ends
from lake_assets.landing.dagster.checks import (
    AGREE,
    ZONES_EQUAL,
    compare_zones,
    lag_evaluation,
    load_key,
    zone_key,
    zones_equal_evaluation,
)
from lake_assets.landing.dagster.movements import Event, movement
from lake_assets.landing.dagster.resource import LandingResource
from lake_assets.landing.files.offset_ranges import next_offsets, with_number_keys, with_text_keys
from lake_assets.landing.landing_service import LandingService
from lake_assets.landing.manifest.open_zones import ZONES
from lake_assets.landing.manifest.schema import files_of
from lake_assets.landing.manifest.status import shards_of

TICK_SECONDS = 30

Cursor = dict[str, dict[str, Any]]
"""Check and topic, or zone and topic → the last result. The keys `told`, `ends`, `at` and `passed` are stored."""

SHARDS = dg.DynamicPartitionsDefinition(name="landing_shard")


@dataclass(frozen=True)
class _Results:
    """The results of a tick: what the cursor stores of them, and the events of those that have changed."""

    stored: Cursor = field(default_factory=dict)
    events: list[dg.AssetCheckEvaluation | Event] = field(default_factory=list)


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
        comparisons = _compare_zones(service, feeds, cursor, clock(), deadline)
        try:
            lags = _evaluate_lags(service, feeds, cursor, clock(), deadline)
            moved = _movements(service, feeds, cursor, clock())
        except ServiceError as error:
            lags = moved = _Results()
            skip_reason = str(error)
        else:
            count = len(comparisons.events) + len(lags.events)
            skip_reason = f"No run is needed. Check results reported: {count}; movements: {len(moved.events)}."
        return dg.SensorResult(
            asset_events=[*comparisons.events, *lags.events, *moved.events],
            cursor=json.dumps({**cursor, **comparisons.stored, **lags.stored, **moved.stored}),
            dynamic_partitions_requests=_new_shards(service, context.instance),
            skip_reason=skip_reason,
        )

    return dg.SensorDefinition(
        name="landing_sensor",
        evaluation_fn=evaluate,
        asset_selection=_monitored_keys(feeds),
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            "Fails the asset checks of landing while files of the two zones differ, or while messages in Kafka wait "
            "longer than the deadline to be landed, and reports what was landed and loaded. It starts no run."
        ),
    )


def _monitored_keys(feeds: Sequence[Feed]) -> list[dg.AssetKey]:
    keys = []
    for feed in feeds:
        keys += [zone_key(feed.topic, zone) for zone in ZONES]
        keys.append(load_key(feed.topic))
    return keys


def _new_shards(service: LandingService, instance: dg.DagsterInstance) -> list[dg.AddDynamicPartitionsRequest]:
    known = instance.get_dynamic_partitions(str(SHARDS.name))
    new = {str(shard) for shard in shards_of(service.manifest)}.difference(known)
    return [SHARDS.build_add_request(sorted(new))] if new else []


def _compare_zones(
    service: LandingService, feeds: Sequence[Feed], cursor: Cursor, now: datetime, deadline: timedelta
) -> _Results:
    """Compare the zones. A result has changed if its description names other files than the last one."""
    results = _Results()
    for feed in feeds:
        key = f"{ZONES_EQUAL} {feed.topic}"
        found = compare_zones(service.manifest, feed.topic, now=now, deadline=deadline)
        results.stored[key] = {"told": found.description}
        if cursor.get(key, {"told": AGREE}) != results.stored[key]:
            results.events.append(zones_equal_evaluation(feed.topic, found))
    return results


def _evaluate_lags(
    service: LandingService, feeds: Sequence[Feed], cursor: Cursor, now: datetime, deadline: timedelta
) -> _Results:
    """Evaluate the lag of each zone in each topic. Raises `ServiceError` if Kafka does not answer."""
    results = _Results()
    for feed in feeds:
        kafka_ends = logical_ends(service.manifest, service.servers, feed.topic)
        for zone in ZONES:
            key = f"{zone} {feed.topic}"
            files = files_of(service.manifest.entries(zone, feed.topic))
            read = with_idle(next_offsets(files), idle_spans(service.manifest, feed.topic).get(zone, {}))
            found = lag(kafka_ends, read, _mark_of(cursor.get(key)), now=now)
            results.stored[key] = _stored_lag(found, deadline)
            if cursor.get(key, {}).get("passed") is not results.stored[key]["passed"]:
                results.events.append(lag_evaluation(feed.topic, zone, found, deadline))
    return results


def _movements(service: LandingService, feeds: Sequence[Feed], cursor: Cursor, now: datetime) -> _Results:
    """Report what has moved from topics to zones and raw tables. Raises `ServiceError` if Kafka does not answer."""
    results = _Results()
    for feed in feeds:
        key = f"moved {feed.topic}"
        found = movement(service, feed, cursor.get(key), now=now)
        results.stored[key] = found.stored
        results.events.extend(found.events)
    return results


def _stored_lag(found: Lag, deadline: timedelta) -> dict[str, Any]:
    return {
        "ends": with_text_keys(found.mark.ends),
        "at": found.mark.at.isoformat(),
        "passed": found.age <= deadline,
    }


def _mark_of(stored: dict[str, Any] | None) -> Mark | None:
    if stored is None:
        return None
    return Mark(with_number_keys(stored["ends"]), datetime.fromisoformat(stored["at"]))
