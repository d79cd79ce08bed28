"""The sensor that shows what landed in the raw tables: a materialization for each partition that a snapshot changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import dagster as dg
from pyiceberg.catalog import Catalog

from lake_assets.base.hours import hour_key
from lake_assets.errors import LakeError
from lake_assets.incremental.dagster.lake_resource import LakeResource
from lake_assets.incremental.dagster.sensors import Clock, SensorTiming
from lake_assets.incremental.declaration import Pipeline, RawTable
from lake_assets.incremental.engine.arrivals import Lateness, RawSnapshot
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.operations.inputs import Locations

EVENTS_PER_TICK = 200
"""Materializations. The daemon stores them one by one, and has a minute for each tick."""

SHOWN_SECONDS = 5
"""Least time between two ticks: what they report is for people, and sessions do not wait for it."""

LATENESS_ROWS = 2_000_000
"""Rows for which one tick computes lateness, which needs their event times: well under a second."""


def raw_tables_sensor(
    pipeline: Pipeline, keys: Mapping[str, dg.AssetKey], timing: SensorTiming, clock: Clock
) -> dg.SensorDefinition:
    """Return a sensor that reports landed partitions and starts nothing.

    One look at the catalog tells which tables have moved; a table that has not is not loaded.

    If a raw table cannot be read, the other tables are reported, and the reason names it. A tick fails with its error
    if nothing else is to be reported: what a failed tick has found would be lost.

    Args:
        pipeline: Declares the raw tables.
        keys: Raw table → its asset key.
        timing: How often the sensor is evaluated.
        clock: The present moment, for the engine.
    """

    moves = _RawMoves()

    def evaluate(context: dg.SensorEvaluationContext, lake_assets: LakeResource) -> dg.SensorResult:
        engine = Engine(lake_assets.catalog(), pipeline, clock=clock)
        report = _LandedReport(engine, keys, json.loads(context.cursor or "{}"))
        problems: list[LakeError] = []
        for raw, location in moves.look(engine.catalog, pipeline, report.last_snapshots):
            try:
                if report.add(raw) == 0:
                    moves.note(raw, location, report.last_snapshots.get(raw.table))
            except LakeError as error:  # the other tables are reported all the same
                context.log.error(str(error))
                problems.append(error)
        if problems and not report.events:
            raise problems[0]
        return dg.SensorResult(
            asset_events=report.events,
            cursor=json.dumps(report.last_snapshots),
            skip_reason=_reason(len(report.events), problems),
        )

    return dg.SensorDefinition(
        name="raw_tables_sensor",
        evaluation_fn=evaluate,
        asset_selection=list(keys.values()),
        minimum_interval_seconds=max(timing.tick_seconds, SHOWN_SECONDS),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reports which partitions of the raw tables each new snapshot changed. Starts no runs.",
    )


class _RawMoves:
    """Remembers in which state a raw table had nothing to report, so that it is loaded again only when it moved.

    A state is noted with the snapshot that was reported last. If a tick is lost, the next one has another snapshot in
    its cursor, and loads the table again.
    """

    def __init__(self) -> None:
        self._locations = Locations()
        self._noted: dict[str, tuple[str | None, int | None]] = {}

    def look(
        self, catalog: Catalog, pipeline: Pipeline, reported: Mapping[str, int]
    ) -> Iterator[tuple[RawTable, str | None]]:
        """Yield the raw tables that may have something to report, each with the location of its metadata."""
        found = self._locations.look(catalog, [raw.table for raw in pipeline.raw])
        for raw in pipeline.raw:
            state = (found.get(raw.table), reported.get(raw.table))
            if state[0] is None or self._noted.get(raw.table) != state:
                yield raw, state[0]

    def note(self, raw: RawTable, location: str | None, reported: int | None) -> None:
        """Note that a table has nothing to report at a location, after the snapshot that was reported last."""
        self._noted[raw.table] = (location, reported)


@dataclass
class _LandedReport:
    """What one tick reports.

    Attributes:
        last_snapshots: Raw table → the last snapshot that is reported.
    """

    engine: Engine
    keys: Mapping[str, dg.AssetKey]
    last_snapshots: dict[str, int]
    events: list[dg.AssetMaterialization] = field(default_factory=list)
    rows_read: int = 0

    def add(self, raw: RawTable) -> int:
        """Report the new snapshots of a raw table, up to the limits of a tick; return how many it has."""
        snapshots = self.engine.raw_activity(raw, since=self.last_snapshots.get(raw.table))
        for snapshot in _up_to_limit(snapshots, EVENTS_PER_TICK - len(self.events)):
            self.rows_read += snapshot.rows
            late = self.engine.raw_lateness(raw, snapshot) if self.rows_read <= LATENESS_ROWS else {}
            self.events += raw_events(self.keys[raw.table], snapshot, late)
            self.last_snapshots[raw.table] = snapshot.snapshot_id
        return len(snapshots)


def _reason(reported: int, problems: Sequence[LakeError]) -> str:
    done = f"Reported {reported} landed partitions." if reported else "No raw table has a new snapshot."
    return "\n".join([done, *map(str, problems)])


def raw_events(
    key: dg.AssetKey, snapshot: RawSnapshot, lateness: Mapping[int, Lateness]
) -> list[dg.AssetMaterialization]:
    """Return one materialization for each landing hour of a snapshot.

    The snapshot id is text, because it exceeds the integers that a browser can represent.

    Args:
        key: Asset key of the raw table.
        snapshot: A snapshot of the raw table.
        lateness: Landing hour → lateness of its rows; hours may be missing.
    """
    metadata: dict[str, str | dg.MetadataValue] = {
        "snapshot": str(snapshot.snapshot_id),
        "operation": snapshot.operation,
        "committed at": dg.MetadataValue.timestamp(snapshot.committed_at_ms / 1000),
        "earliest event": _timestamp(snapshot.event_lower),
        "latest event": _timestamp(snapshot.event_upper),
    }
    events = []
    for hour, rows in sorted(snapshot.rows_by_hour.items()):
        of_hour = {"dagster/partition_row_count": rows, **_lateness_minutes(lateness.get(hour))}
        events.append(
            dg.AssetMaterialization(
                asset_key=key,
                partition=hour_key(hour),
                metadata={**metadata, **of_hour},
            )
        )
    return events


def _lateness_minutes(found: Lateness | None) -> dict[str, float]:
    """Return lateness under the metadata names that sessions use."""
    if found is None:
        return {}
    return {
        "lateness p50 (minutes)": round(found.p50_seconds / 60, 1),
        "lateness p95 (minutes)": round(found.p95_seconds / 60, 1),
        "lateness max (minutes)": round(found.max_seconds / 60, 1),
    }


def _up_to_limit(snapshots: Sequence[RawSnapshot], limit: int) -> Iterator[RawSnapshot]:
    """Yield whole snapshots, oldest first, until their partitions reach the limit; the next tick reports the rest."""
    taken = 0
    for snapshot in snapshots:
        if taken >= limit:
            return
        taken += len(snapshot.rows_by_hour)
        yield snapshot


def _timestamp(moment: datetime | None) -> dg.MetadataValue:
    if moment is None:
        return dg.MetadataValue.text("unknown")
    return dg.MetadataValue.timestamp(moment.timestamp())
