"""Tables of other programs: Spark reads what is in them, or a message names the file; and times of any size."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType, TimestamptzType

from lake_assets_tests.doors.lake_door import LakeDoor

DECLARED = """
from lake_assets import Pipeline, RawTable, SessionContext, Source, Stateful, Stateless, audits, incremental_asset

VISITS = Source("prod.visits", time_column="visited_at", key="visit_id")

@incremental_asset(mode=Stateless(), sources=[VISITS], key="visit_id", time_column="visited_at",
    columns={"visit_id": "string", "visited_at": "timestamptz"},
    audits=[audits.source_target_counts(), audits.unique_key()])
def visit_fact(session: SessionContext, visits):
    return visits.select("visit_id", "visited_at")

@incremental_asset(mode=Stateful(load="changed"), sources=[VISITS], key="hour", time_column="hour",
    columns={"hour": "timestamptz", "visits": "long"})
def visits_by_hour(session: SessionContext, visits):
    hours = session.within(visits, "visited_at").selectExpr("date_trunc('hour', visited_at) AS hour")
    return hours.groupBy("hour").count().withColumnRenamed("count", "visits")

PIPELINE = Pipeline(raw=(RawTable("prod.visits", time_column="visited_at", complete_after="30 minutes"),),
    targets=(visit_fact, visits_by_hour), start="2026-01-01-00:00")
"""
FIRST = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
MICROSECONDS = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def create_visits(lake: LakeDoor) -> None:
    lake.declare_in_python(DECLARED)
    (lake.home / "warehouse").mkdir(parents=True)
    catalog = lake.catalog
    catalog.create_namespace("prod")
    schema = Schema(NestedField(1, "visit_id", StringType()), NestedField(2, "visited_at", TimestamptzType()))
    catalog.create_table("prod.visits", schema)


def visits(first: int, number: int = 6) -> pa.Table:
    times = [FIRST + timedelta(hours=hour) for hour in range(first, first + number)]
    names = [f"v{hour}" for hour in range(first, first + number)]
    return pa.table({"visit_id": names, "visited_at": pa.array(times, pa.timestamp("us", "UTC"))})


def add_file(lake: LakeDoor, name: str, rows: pa.Table, **options: Any) -> Path:
    file = lake.folder / name
    pq.write_table(rows, file, version="2.6", **options)
    lake.table("prod.visits").add_files([f"file://{file}"])
    return file


def in_milliseconds(rows: pa.Table) -> pa.Table:
    return rows.set_column(1, "visited_at", rows["visited_at"].cast(pa.timestamp("ms", "UTC")))


def published(lake: LakeDoor) -> list[str]:
    return lake.values("core.visit_fact", "visit_id")


def test_a_file_that_spark_misreads_is_named_before_any_row_moves(lake: LakeDoor) -> None:
    create_visits(lake)
    add_file(lake, "a.parquet", visits(0))
    lake("init")
    lake("catch-up")
    misread = add_file(lake, "b.parquet", in_milliseconds(visits(6)))
    for words in (["plan", "visit_fact"], ["init"], ["catch-up", "visit_fact"], ["catch-up", "visits_by_hour"]):
        message = lake.refused(*words)
        assert str(misread) in message, words
        assert "prod.visits" in message
        assert "milliseconds" in message
    assert len(published(lake)) == 6

    # Once the files are written again, all rows are read.
    table = lake.table("prod.visits")
    table.overwrite(table.scan().to_arrow())
    lake("catch-up")
    assert len(published(lake)) == 12
    assert "equal" in lake("verify")


def with_more_rows_in_metadata(lake: LakeDoor, rows: pa.Table) -> None:
    """Add a data file whose manifest counts a row that the file does not have, as if a reader had lost it."""
    table = lake.table("prod.visits")
    times = [(time - EPOCH) // MICROSECONDS for time in rows["visited_at"].to_pylist()]
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for file in _dataframe_to_data_files(table.metadata, rows, table.io):
            file.lower_bounds[2], file.upper_bounds[2] = struct.pack("<q", min(times)), struct.pack("<q", max(times))
            file[4] = rows.num_rows + 1
            append.append_data_file(file)


def test_a_session_stops_if_spark_reads_fewer_rows_than_the_metadata_contain(lake: LakeDoor) -> None:
    create_visits(lake)
    add_file(lake, "a.parquet", visits(0))
    lake("init")
    lake("catch-up")
    with_more_rows_in_metadata(lake, visits(6, 3))
    add_file(lake, "c.parquet", visits(10, 1))
    for target in ("visit_fact", "visits_by_hour"):
        message = lake.refused("catch-up", target)
        assert "of at least" in message, target
        assert "rows of prod.visits" in message
    assert len(published(lake)) == 6
    assert len(lake.rows("core.visits_by_hour")) == 4
