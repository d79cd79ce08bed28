"""Tables of other programs: Spark reads what is in them, or a message names the file; and times of any size."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, DoubleType, NestedField, StringType, TimestamptzType

from lake_assets_tests.doors.hostile.writing import session
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
HOUR = timedelta(hours=1)
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


def test_p13_a_file_that_spark_misreads_is_named_before_any_row_moves(lake: LakeDoor) -> None:
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
    assert "milliseconds" in lake.run("doctor").out
    assert "milliseconds" in lake.refused("report")
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


@pytest.mark.parametrize(("format_", "problem"), [(FileFormat.AVRO, "in Avro"), (FileFormat.PARQUET, "is damaged")])
def test_a_file_that_pyiceberg_cannot_read_is_named(lake: LakeDoor, format_: FileFormat, problem: str) -> None:
    create_visits(lake)
    add_file(lake, "a.parquet", visits(0))
    lake("init")
    lake("catch-up")
    name = lake.folder / f"b.{format_.value.lower()}"
    name.write_bytes(b"Obj\x01" if format_ is FileFormat.AVRO else b"PAR1")
    unread = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file://{name}",
        file_format=format_,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=4,
    )
    with lake.table("prod.visits").transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(unread)
    for words in (["plan", "visit_fact"], ["catch-up", "visit_fact"], ["catch-up"]):
        message = lake.refused(*words)
        assert problem in message, words
        assert "prod.visits" in message
        assert str(name) in message
    assert problem in lake.run("doctor").out
    assert len(published(lake)) == 6


BOOKINGS = """
from lake_assets import Pipeline, RawTable, SessionContext, Source, Stateful, Stateless, audits, incremental_asset

BOOKINGS = Source("prod.bookings", time_column="starts_at", key="booking_id")
COLUMNS = {"booking_id": "string", "starts_at": "timestamptz"}
AUDITS = [audits.source_target_counts(), audits.unique_key()]

@incremental_asset(mode=Stateless(), sources=[BOOKINGS], key="booking_id", time_column="starts_at",
    columns=COLUMNS, audits=[*AUDITS, audits.no_missing_events()])
def booking_fact(session: SessionContext, bookings):
    return bookings.select("booking_id", "starts_at")

@incremental_asset(mode=Stateless(), sources=[Source("prod.bookings", time_column="starts_at")], key="booking_id",
    time_column="starts_at", columns=COLUMNS, audits=AUDITS, grain="day")
def booking_by_day(session: SessionContext, bookings):
    return bookings.select("booking_id", "starts_at")

@incremental_asset(mode=Stateful(load="changed"), sources=[BOOKINGS], key="booking_id", time_column="starts_at",
    columns=COLUMNS)
def booking_state(session: SessionContext, bookings):
    return session.within(bookings, "starts_at").select("booking_id", "starts_at")

@incremental_asset(mode=Stateless(), sources=[Source("prod.visits", time_column="visited_at", key="visit_id")],
    key="visit_id", time_column="visited_at", columns={"visit_id": "string", "visited_at": "timestamptz"})
def visit_fact(session: SessionContext, visits):
    return visits.select("visit_id", "visited_at")

PIPELINE = Pipeline(raw=(RawTable("prod.bookings", time_column="starts_at", complete_after="30 minutes"),
    RawTable("prod.visits", time_column="visited_at", complete_after="30 minutes")),
    targets=(booking_fact, booking_by_day, booking_state, visit_fact), start="2026-01-01-00:00")
"""
SECOND = 1_000_000
TIMES = {
    "good": 1_767_226_200 * SECOND,  # 2026-01-01T00:10:00Z
    "newer": 1_767_240_600 * SECOND,  # 2026-01-01T04:10:00Z
    "millennium": 42_980_544_300 * SECOND,  # 3332-01-01T00:05:00Z
    "for ever": 253_402_300_799 * SECOND,  # 9999-12-31T23:59:59Z
    "year 10000": 253_402_300_800 * SECOND,
    "milliseconds": 1_767_225_900_000 * SECOND,  # as seconds: the year 57971
    "infinity": 2**63 - 1,
    "before": -14_831_769_300 * SECOND,  # the year 1500
    "year 0": -62_135_596_801 * SECOND,
    "-infinity": -(2**63),
}
IN_CALENDAR = ["for ever", "good", "millennium", "newer"]


def add_bookings(lake: LakeDoor, times: dict[str, int]) -> None:
    """Add a data file with bounds of its times, as Spark writes it."""
    table = lake.table("prod.bookings")
    microseconds = pa.array(times.values(), pa.int64())
    rows = pa.table({"booking_id": list(times), "starts_at": microseconds.cast(pa.timestamp("us", "UTC"))})
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for file in _dataframe_to_data_files(table.metadata, rows, table.io):
            for bounds, bound in ((file.lower_bounds, min), (file.upper_bounds, max)):
                bounds[2] = struct.pack("<q", bound(times.values()))
            file.null_value_counts[2] = 0
            append.append_data_file(file)


def add_int96_bookings(lake: LakeDoor, times: dict[str, int]) -> None:
    """Add a file with INT96 times, and without field ids, which no bounds are known of."""
    microseconds = pa.array(times.values(), pa.int64()).cast(pa.timestamp("us", "UTC"))
    file = lake.folder / "int96.parquet"
    rows = pa.table({"booking_id": list(times), "starts_at": microseconds})
    pq.write_table(rows, file, use_deprecated_int96_timestamps=True)
    table = lake.table("prod.bookings")
    added = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file://{file}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(times),
        file_size_in_bytes=file.stat().st_size,
    )
    added.spec_id = 0
    mapping = [{"field-id": 1, "names": ["booking_id"]}, {"field-id": 2, "names": ["starts_at"]}]
    with table.transaction() as transaction:
        transaction.set_properties({"schema.name-mapping.default": json.dumps(mapping)})
        with transaction.update_snapshot().fast_append() as append:
            append.append_data_file(added)


def test_times_that_no_calendar_has_stop_no_target(lake: LakeDoor) -> None:
    create_visits(lake)
    lake.declare_in_python(BOOKINGS)
    schema = Schema(NestedField(1, "booking_id", StringType()), NestedField(2, "starts_at", TimestamptzType()))
    no_bounds = {"write.metadata.metrics.column.starts_at": "none"}
    lake.catalog.create_table("prod.bookings", schema, properties=no_bounds)
    add_bookings(lake, TIMES)
    add_file(lake, "a.parquet", visits(0))
    lake("init")
    shown = lake("inspect", "prod.bookings", "starts_at")
    assert "-290308-12-21T19:59:05.224192" in shown
    assert "+294247-01-10T04:00:54.775807" in shown
    lake("plan", "booking_fact")
    lake("catch-up")

    for table in ("core.booking_fact", "core.booking_by_day"):
        built = lake.values(table, "booking_id")
        assert sorted(set(IN_CALENDAR) - {"before"}) == [each for each in built if each != "before"], table
    assert lake.values("core.booking_state", "booking_id") == ["good"]
    reasons = {row["reason"] for row in lake.rows("etl.quarantine", "reason")}
    assert "starts_at is after the year 9999" in reasons
    assert "starts_at is before the declared start, 2026-01-01-00:00" in reasons
    assert len(published(lake)) == 6

    for words in (
        ["status"],
        ["report"],
        ["doctor"],
        ["plan", "booking_by_day"],
        ["sessions", "booking_fact"],
        ["catch-up"],
    ):
        assert "Error" not in lake(*words), words
    for target in ("booking_fact", "booking_by_day", "booking_state"):
        assert "equal" in lake("verify", target), target
    lake("rebuild", "booking_fact", "--reset")
    assert "for ever" in lake.values("core.booking_fact", "booking_id")

    # A later file with nothing but such times, and one that is sound.
    add_bookings(lake, {"again": TIMES["infinity"], "once more": TIMES["-infinity"]})
    add_bookings(lake, {"last": TIMES["good"] + SECOND})
    # As Spark and Hive wrote times in former years, by `add_files`.
    far = 43_012_080_300 * SECOND  # 3333-01-01T00:05:00Z
    add_int96_bookings(lake, {"int96": TIMES["good"] + 2 * SECOND, "int96 before": TIMES["before"], "int96 far": far})
    lake("catch-up")
    built = lake.values("core.booking_fact", "booking_id")
    assert {"last", "int96", "int96 far"} <= set(built)
    assert not {"again", "once more", "int96 before"} & set(built)


MOVES = """
from lake_assets import Pipeline, RawTable, SessionContext, Source, Stateful, incremental_asset

MOVED = Source("prod.moves", time_column="moved_at", key="move_id")

@incremental_asset(mode=Stateful(load="changed"), sources=[MOVED], key="account", time_column="hour",
    columns={"account": "string", "hour": "timestamptz", "balance": "double", "rate": "double"})
def balance_by_hour(session: SessionContext, moves):
    rows = session.within(moves, "moved_at").selectExpr("account", "amount", "date_trunc('hour', moved_at) AS hour")
    return rows.groupBy("account", "hour").agg({"amount": "sum"}).selectExpr(
        "account", "hour", "`sum(amount)` AS balance", "sqrt(`sum(amount)`) AS rate")

PIPELINE = Pipeline(raw=(RawTable("prod.moves", time_column="moved_at", complete_after="30 minutes"),),
    targets=(balance_by_hour,), start="2026-01-01-00:00")
"""


def test_the_order_of_additions_is_no_difference(lake: LakeDoor) -> None:
    create_visits(lake)
    lake.declare_in_python(MOVES)
    columns = [("move_id", StringType()), ("account", StringType()), ("amount", DoubleType())]
    fields = [NestedField(number, name, kind) for number, (name, kind) in enumerate(columns, start=1)]
    table = lake.catalog.create_table("prod.moves", Schema(*fields, NestedField(4, "moved_at", TimestamptzType())))
    amounts = [0.1, 0.2, -0.3, 1e9 / 3, -2.5e8, 0.005, 7e-5]
    rows = []
    for number in range(600):
        account, amount = f"a{number % 4}", amounts[number * 5 % 7]
        moved_at = FIRST + timedelta(hours=number % 3)
        rows.append({"move_id": f"m{number}", "account": account, "amount": amount, "moved_at": moved_at})
    rows.append({"move_id": "last", "account": "a0", "amount": 1.0, "moved_at": FIRST + timedelta(hours=6)})
    schema = table.schema().as_arrow()
    table.append(pa.Table.from_pylist(rows, schema=schema))
    lake("init")
    lake("catch-up")
    before = lake.rows("core.balance_by_hour")

    # Another order of the rows, as a compaction leaves it: the sums have other last digits.
    table = lake.table("prod.moves")
    table.overwrite(pa.Table.from_pylist(sorted(rows, key=lambda row: (row["amount"], row["move_id"])), schema=schema))
    lake("catch-up")
    assert lake.rows("core.balance_by_hour") == before
    assert "equal" in lake("verify", "balance_by_hour")

    # A value that differs is one, also in the eleventh digit of a sum.
    changed = [{**row, "amount": amounts[5] + 0.05} if row["move_id"] == "m1" else row for row in rows]
    lake.table("prod.moves").overwrite(pa.Table.from_pylist(changed, schema=schema))
    lake("catch-up")
    assert lake.rows("core.balance_by_hour") != before


def test_a_sum_of_numbers_that_cancel_out_equals_itself_after_a_compaction(lake: LakeDoor) -> None:
    create_visits(lake)
    lake.declare_in_python(MOVES.replace("sqrt(`sum(amount)`)", "`sum(amount)` / 3"))
    kinds = {"move_id": StringType(), "account": StringType(), "amount": DoubleType(), "moved_at": TimestamptzType()}
    fields = [NestedField(number, name, kind) for number, (name, kind) in enumerate(kinds.items(), start=1)]
    table = lake.catalog.create_table("prod.moves", Schema(*fields))
    drawn = random.Random(1)
    for place in range(4):
        rows = []
        for number in range(300):
            hour = number % 4
            amount = drawn.choice([0.1, 0.2, -0.3, 1e15, -1e15, 0.005])
            row = {"move_id": f"m{place}-{number}", "account": f"a{number % 25}", "moved_at": FIRST + hour * HOUR}
            rows.append({**row, "amount": amount if hour < 3 else abs(amount) % 1e15})
        rows.append({"move_id": f"last{place}", "account": "a0", "amount": 1.0, "moved_at": FIRST + 6 * HOUR})
        table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    lake("init")
    lake("catch-up")
    spark = session(lake.environment["LAKE_SPARK_REMOTE"], lake.home)
    order = "strategy => 'sort', sort_order => 'move_id DESC NULLS LAST', options => map('rewrite-all', 'true')"
    spark.sql(f"CALL lake.system.rewrite_data_files(table => 'prod.moves', {order})")
    spark.stop()
    more = {"move_id": "more", "account": "a0", "amount": 1.0, "moved_at": FIRST + 8 * HOUR}
    lake.table("prod.moves").append(pa.Table.from_pylist([more], schema=table.schema().as_arrow()))
    lake("catch-up")

    hours = ["2026-01-01-00:00", "2026-01-01-03:00"]
    assert lake.json("verify", "balance_by_hour", *hours)[0]["differing"] == []
    pipeline = "from own_tables import PIPELINE; from lake_assets import Lake; print(Lake.open(PIPELINE).verify())"
    environment = {**os.environ, **lake.environment, "LAKE_HOME": str(lake.home), "PYTHONPATH": str(lake.folder)}

    def whole() -> str:
        """What the public API says of the whole target."""
        command = [sys.executable, "-c", pipeline]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert "missing=0, extra=0, inexact=(" in whole()

    # A fault that is greater than the error of the sums is one; where nothing cancels out, so is a small one.
    table = lake.table("core.balance_by_hour")
    right = table.scan().to_arrow()
    for hour, wrong, differing in ((0, 0.5, []), (0, 1e6, hours[:1]), (3, 0.001, hours[1:])):
        rows = right.to_pylist()
        at = FIRST.replace(minute=0) + hour * HOUR
        min((row for row in rows if row["hour"] == at), key=lambda row: abs(row["balance"]))["balance"] += wrong
        table.overwrite(pa.Table.from_pylist(rows, schema=right.schema))
        done = lake.run("verify", "balance_by_hour", *hours, "--json")
        (found,) = json.loads(done.out)
        assert (done.code, found["differing"]) == (int(bool(differing)), differing), done.text
        is_said = "cancel out in balance:" in found["note"]
        if not differing:
            assert "missing=0, extra=0, inexact=('balance'" in whole()
        assert is_said is (not differing), found


def test_an_audit_names_keys_that_are_no_text(lake: LakeDoor) -> None:
    (lake.home / "warehouse").mkdir(parents=True)
    lake.catalog.create_namespace("prod")
    kinds = {"visit_id": BinaryType(), "visited_at": TimestamptzType()}
    fields = [NestedField(number, name, kind) for number, (name, kind) in enumerate(kinds.items(), start=1)]
    table = lake.catalog.create_table("prod.visits", Schema(*fields))
    rows = [{"visit_id": key, "visited_at": FIRST} for key in (b"\xff\xfe", b"", b"abc")]
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    lake.declare(
        {
            "table": "core.visits_twice",
            "mode": "stateless",
            "sources": [{"table": "prod.visits", "time_column": "visited_at", "key": "visit_id"}],
            "key": "visit_id",
            "time_column": "visited_at",
            "sql": "SELECT * FROM visits UNION ALL SELECT * FROM visits WHERE visit_id > X'f0'",
            "audits": ["no_missing_events", "unique_key"],
        }
    )
    lake("init")
    assert "unique_key: 1 repeated in 2026-01-01-00:00 (such as 0xFFFE)" in lake.refused("catch-up")


TEXTS = (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view())
"""Types that Arrow reads the texts of Parquet files as, by the program that wrote them."""


def test_versions_of_a_key_may_be_in_files_of_different_writers(lake: LakeDoor) -> None:
    create_visits(lake)
    source = {"table": "prod.visits", "time_column": "visited_at", "key": "visit_id", "complete_after": "0 minutes"}
    lake.declare(
        {
            "table": "core.last_visit",
            "mode": "stateless",
            "sources": [{**source, "keep": "last", "order_by": "visited_at", "name": "visits"}],
            "key": "visit_id",
            "time_column": "visited_at",
            "sql": "SELECT visit_id, visited_at FROM visits",
            "audits": ["source_target_counts", "unique_key"],
        }
    )
    add_file(lake, "a.parquet", visits(0, 4))
    lake("init")
    lake("catch-up")
    for hour, kind in enumerate(TEXTS):
        times = pa.array([FIRST + (10 + hour) * HOUR], pa.timestamp("us", "UTC"))
        names = pa.array([f"v{hour}"]).cast(kind)
        add_file(lake, f"{hour}.parquet", pa.table({"visit_id": names, "visited_at": times}))
    lake("catch-up")
    expected = [{"visit_id": f"v{hour}", "visited_at": FIRST + (10 + hour) * HOUR} for hour in range(4)]
    assert lake.rows("core.last_visit") == expected


def test_rows_of_files_without_bounds_count_up_to_an_hour_after_their_landing(lake: LakeDoor) -> None:
    """Iceberg keeps bounds of the first hundred columns. No file is opened to learn hours more exactly, as if large."""
    lake.environment["LAKE_EXACT_HOURS_BYTES"] = "0"
    now = datetime.now(UTC)
    ahead = now.replace(minute=0, second=0, microsecond=0) + HOUR
    lake.environment["LAKE_START"] = f"{now - 24 * HOUR:%Y-%m-%d-%H:00}"
    (lake.home / "warehouse").mkdir(parents=True)
    lake.catalog.create_namespace("prod")
    kinds = {"visit_id": StringType(), "visited_at": TimestamptzType(), "landed": TimestamptzType()}
    fields = [NestedField(number, name, kind) for number, (name, kind) in enumerate(kinds.items(), start=1)]
    no_bounds = {"write.metadata.metrics.default": "none"}
    table = lake.catalog.create_table("prod.visits", Schema(*fields), properties=no_bounds)
    source = {"table": "prod.visits", "time_column": "visited_at", "key": "visit_id", "landed_column": "landed"}
    lake.declare(
        {
            "table": "core.visit_state",
            "mode": {"stateful": {"load": "changed"}},
            "sources": [{**source, "complete_after": "0 minutes", "name": "visits"}],
            "key": "visit_id",
            "time_column": "visited_at",
            "sql": "SELECT visit_id, visited_at FROM visits",
        }
    )
    for name, visited_at in (("a", now - 3 * HOUR), ("b", ahead)):
        row = {"visit_id": name, "visited_at": visited_at, "landed": now}
        table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))
    for through in (now - 2 * HOUR, ahead):
        with table.transaction() as change:
            change.set_properties({"lake.complete-through": f"{through:%Y-%m-%d-%H:00}"})
        lake("init")
        lake("catch-up")
    assert lake.values("core.visit_state", "visit_id") == ["a", "b"]


NAMED = ("Prod.Web-Visits", "Prod.Web_Visits", "1prod.web.2024 Zürich")
"""Tables as other programs name them; two differ in one sign."""


def test_tables_of_others_have_any_name(lake: LakeDoor) -> None:
    lake.home.mkdir()
    catalog = lake.catalog
    declared = []
    for number, name in enumerate(NAMED):
        namespace, _, last = name.rpartition(".")
        catalog.create_namespace_if_not_exists(namespace)
        kinds = {"visit_id": StringType(), "seen_at": TimestamptzType()}
        fields = [NestedField(place, column, kind) for place, (column, kind) in enumerate(kinds.items(), start=1)]
        table = catalog.create_table(name, Schema(*fields))
        rows = [{"visit_id": f"{number}-{hour}", "seen_at": FIRST + hour * HOUR} for hour in range(3)]
        table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
        source = {"table": name, "time_column": "seen_at", "key": "visit_id", "complete_after": "0 minutes"}
        declared.append(
            {
                "table": f"core.visits_{number}",
                "mode": {"stateful": {"load": "changed"}} if number == 1 else "stateless",
                "sources": [source],
                "key": "visit_id",
                "time_column": "seen_at",
                "sql": f"SELECT visit_id, seen_at FROM `{last}`",
                "audits": ["unique_key"] if number == 1 else ["unique_key", "source_target_counts"],
            }
        )
    lake.declare(*declared)
    lake("init")
    lake("catch-up")
    for number, name in enumerate(NAMED):
        # The last hour is not complete: a stateful target waits for it.
        built = [f"{number}-{hour}" for hour in range(2 if number == 1 else 3)]
        assert lake.values(f"core.visits_{number}", "visit_id") == built
        table = lake.table(name)
        row = {"visit_id": f"{number}-late", "seen_at": FIRST}
        table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))
    lake("catch-up")
    for number in range(len(NAMED)):
        assert f"{number}-late" in lake.values(f"core.visits_{number}", "visit_id")
    source["table"] = "Prod.it's"
    lake.declare(declared[-1])
    assert 'The raw table is called "Prod.it\'s"' in lake.run("check").err
