"""What landed in a table that another program has created, by the commit times of its snapshots. No Spark."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import dagster as dg
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType, TimestampType

from lake_assets.base.hours import hour_key, hour_of
from lake_assets.incremental.dagster.asset_specs import raw_spec
from lake_assets.incremental.dagster.sensors import raw_events
from lake_assets.incremental.declaration import Pipeline, RawTable
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.arrivals import arrivals
from lake_assets.incremental.engine.engine import Engine, utc_now

if TYPE_CHECKING:
    from datetime import datetime

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

EVENTS = RawTable("prod.events", time_column="at", descriptions={"at": "When it happened."})


def append(table: Table, *moments: datetime) -> None:
    rows = [{"id": "e", "at": moment.replace(tzinfo=None)} for moment in moments]
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))


def test_rows_arrive_when_their_snapshot_is_committed(catalog: Catalog) -> None:
    schema = Schema(NestedField(1, "id", StringType()), NestedField(2, "at", TimestampType()))
    catalog.create_namespace("prod")
    table = catalog.create_table("prod.events", schema)
    now = utc_now().replace(microsecond=0)
    tomorrow = (now + timedelta(days=1)).replace(tzinfo=None).isoformat()
    pipeline = Pipeline(raw=(EVENTS,), targets=(), start=hour_key(hour_of(now) - 48))
    engine = Engine(catalog, pipeline, clock=utc_now)
    append(table, now - timedelta(hours=10), now - timedelta(hours=10))
    append(table, now + timedelta(hours=30))  # after its commit

    first, second = engine.raw_activity(EVENTS, since=None)
    committed = first.committed_at_ms // 3_600_000
    assert (first.rows_by_hour, first.appends) == ({committed: 2}, True)
    late = engine.raw_lateness(EVENTS, first)
    assert 36_000 <= late[committed].max_seconds < 36_600
    assert engine.raw_lateness(EVENTS, second) == {}
    (event,) = raw_events(raw_spec(EVENTS, _partitions()).key, first, late)
    assert (event.partition, event.metadata["dagster/partition_row_count"].value) == (hour_key(committed), 2)

    found = arrivals(iceberg.load(catalog, EVENTS.table), EVENTS, start=pipeline.start_hour)
    assert (found.rows, found.unplaced) == (3, 1)
    append(table, now - timedelta(hours=9), now - timedelta(hours=1))
    table.delete(f"at > '{(now - timedelta(hours=2)).replace(tzinfo=None).isoformat()}' and at < '{tomorrow}'")
    rewritten = arrivals(iceberg.load(catalog, EVENTS.table), EVENTS, start=pipeline.start_hour)
    assert (rewritten.rows, rewritten.unplaced) == (4, 2)

    later = Pipeline(raw=(EVENTS,), targets=(), start=hour_key(committed + 1))
    assert Engine(catalog, later, clock=utc_now).raw_activity(EVENTS, since=None)[0].rows_by_hour == {}


def test_definitions_name_no_columns_that_only_the_catalog_knows() -> None:
    spec = raw_spec(EVENTS, _partitions())
    assert set(spec.metadata) == {"dagster/table_name", "dagster/storage_kind", "dagster/io_manager_key"}


def _partitions() -> dg.TimeWindowPartitionsDefinition:
    return dg.HourlyPartitionsDefinition(start_date="2026-01-01-00:00")
