"""Columns that change, of targets and of raw tables: what is said, what `lake migrate` does, and what goes on."""

from __future__ import annotations

import json
from typing import Any

from pyiceberg.types import DoubleType, LongType, StringType

from lake_assets_tests.doors.lake_door import LakeDoor

TRIPS = {"trip_id": "string", "metres": "int", "at": "timestamptz"}
ROWS = "trip_id,metres,at\nt1,100,2026-01-01T00:05:00Z\nt2,200,2026-01-01T01:05:00Z\n"
MORE = "trip_id,metres,at\nt3,300,2026-01-01T02:05:00Z\n"


def _trip_fact(
    sql: str,
    raw: dict[str, str] | None = None,
    *,
    former: dict[str, str] | None = None,
    source_key: str = "trip_id",
    **more: Any,
) -> dict[str, Any]:
    source = {"table": "raw.trips", "time_column": "at", "key": source_key, "columns": raw or TRIPS}
    source["renamed_from"] = former or {}
    return {
        "table": "core.trip_fact",
        "mode": "stateless",
        "sources": [source],
        "key": "trip_id",
        "time_column": "at",
        "sql": sql,
        "audits": ["source_target_counts", "no_missing_events", "unique_key", {"not_null": ["trip_id"]}],
        **more,
    }


def _reader(name: str, sql: str, *, source: str = "core.trip_fact", **more: Any) -> dict[str, Any]:
    return {
        "table": f"core.{name}",
        "mode": {"stateful": {"load": "changed"}},
        "sources": [{"table": source, "time_column": "at", **more}],
        "key": "trip_id",
        "time_column": "at",
        "sql": sql,
    }


SQL = "SELECT trip_id, metres, at FROM trips"


def _schema(lake: LakeDoor, table: str) -> list[tuple[str, str]]:
    return [(each.name, str(each.field_type)) for each in lake.table(table).schema().fields]


def test_a_target_gains_renames_and_widens_columns(lake: LakeDoor) -> None:
    ids = _reader("trip_ids", "SELECT trip_id, at FROM trip_fact")
    lake.declare(_trip_fact(SQL), ids)
    lake("init")
    lake.land("raw.trips", ROWS, through="2026-01-01-01:00")
    lake("catch-up")
    before = _schema(lake, "core.trip_fact")
    query = "SELECT trip_id, CAST(metres AS bigint) AS distance, at, metres / 1000.0D AS km FROM trips"
    described = {"km": "Kilometres."}
    lake.declare(_trip_fact(query, renamed_from={"distance": "metres"}, descriptions=described), ids)
    said, again = lake("check"), lake("init")
    for line in (
        "core.trip_fact has no column km (double). → lake migrate core.trip_fact --apply",
        "core.trip_fact has the column distance as metres, its former name. → lake migrate core.trip_fact --apply",
        "core.trip_fact has distance as int, declared as long. → lake migrate core.trip_fact --apply",
    ):
        assert line in said.splitlines()
        assert line in again.splitlines()
    found = lake.run("doctor", "--json")
    errors = [each["text"] for each in json.loads(found.out)["findings"] if each["level"] == "error"]
    assert "core.trip_fact has no column km (double)." in errors

    lake.land("raw.trips", MORE, through="2026-01-01-02:00")
    snapshot = lake.table("core.trip_fact").metadata.current_snapshot_id
    stopped = lake.run("catch-up")
    assert stopped.code == 1
    assert "core.trip_fact has the column distance as metres" in stopped.text
    assert "lake migrate core.trip_fact --apply" in stopped.text
    for command in ("plan", "verify", "audit"):
        assert "lake migrate" in lake.refused(command, "trip_fact")
    assert lake.table("core.trip_fact").metadata.current_snapshot_id == snapshot
    # A reader that uses none of these columns goes on.
    lake("rebuild", "trip_ids", "2026-01-01-00:00", "2026-01-01-01:00")
    lake("verify", "trip_ids")

    assert "Nothing was changed. --apply does the 3 steps." in lake("migrate", "trip_fact")
    assert _schema(lake, "core.trip_fact") == before
    (done,) = lake.json("migrate", "trip_fact", "--apply")
    rebuild = "lake rebuild trip_fact 2026-01-01-00:00 2026-01-01-01:00"
    assert (done["applied"], done["rebuild"]) == (True, rebuild)
    assert sorted(each["step"] for each in done["differences"]) == ["add", "rename", "widen"]
    after = [("trip_id", "string"), ("distance", "long"), ("at", "timestamptz"), ("km", "double")]
    assert _schema(lake, "core.trip_fact") == after
    assert lake.table("core.trip_fact").schema().find_field("km").doc == "Kilometres."
    assert lake("migrate", "--apply") == "All columns are as declared.\n"

    lake("catch-up")
    values = [(row["trip_id"], row["distance"], row["km"]) for row in lake.rows("core.trip_fact")]
    assert sorted(values) == [("t1", 100, None), ("t2", 200, None), ("t3", 300, 0.3)]
    lake(*rebuild.split()[1:])
    assert sorted(lake.values("core.trip_fact", "km")) == [0.1, 0.2, 0.3]
    assert lake.values("core.trip_ids", "trip_id") == ["t1", "t2", "t3"]
    lake("audit", "trip_fact")

    # A column that the query loses stays, null from now on, until it is dropped by name.
    lake.declare(_trip_fact("SELECT trip_id, metres / 1000.0D AS km, at FROM trips"), ids)
    assert "core.trip_fact has the column distance (long), which is not declared." in lake("check")
    lake.land("raw.trips", "trip_id,metres,at\nt4,400,2026-01-01T03:05:00Z\n", through="2026-01-01-03:00")
    lake("catch-up")
    assert [row["distance"] for row in lake.rows("core.trip_fact") if row["trip_id"] == "t4"] == [None]
    assert "it is the key" in lake.refused("migrate", "trip_fact", "--drop", "trip_id")
    assert "declares the column km" in lake.refused("migrate", "trip_fact", "--drop", "km")
    lake("migrate", "trip_fact", "--drop", "distance", "--apply")
    assert [name for name, _ in _schema(lake, "core.trip_fact")] == ["trip_id", "km", "at"]
    lake("verify")


def test_a_raw_table_gains_renames_and_retypes_columns(lake: LakeDoor) -> None:
    raw = {"trip_id": "string", "metres": "string", "note": "int", "at": "timestamptz"}
    query = "SELECT trip_id, CAST({} AS int) AS metres, at FROM trips"
    other = {"table": "raw.trips", "time_column": "at", "key": "trip_id"}
    ids = {**_trip_fact("SELECT trip_id, count(*) AS n, at FROM trips GROUP BY ALL"), "table": "core.trip_count"}
    ids |= {"sources": [other]}
    lake.declare(_trip_fact(query.format("metres"), raw), ids)
    lake("init")
    lake.land("raw.trips", "trip_id,metres,note,at\nt1,100,1,2026-01-01T00:05:00Z\nt2,200,2,2026-01-01T01:05:00Z\n")
    lake("complete", "raw.trips", "2026-01-01-01:00")
    lake("catch-up")

    # Another program renames a column. The readers of other columns go on; the others stop and say what to declare.
    with lake.table("raw.trips").update_schema() as update:
        update.rename_column("metres", "distance")
    stopped = lake.refused("rebuild", "trip_fact", "2026-01-01-00:00", "2026-01-01-00:00")
    assert "raw.trips should have the column metres (string), but has no such column." in stopped
    assert "if the table calls it distance now, declare that name" in stopped
    lake("rebuild", "trip_count", "2026-01-01-00:00", "2026-01-01-00:00")
    refused = lake.refused(
        "land", "raw.trips", lake.write("a.csv", "trip_id,metres,note,at\nt3,300,3,2026-01-01T02:05:00Z\n")
    )
    assert "metres" in refused
    assert "lake migrate raw.trips" in refused

    # The declaration follows, and gains a column. Hours are built of snapshots that have neither name.
    raw = {"trip_id": "string", "distance": "string", "electric": "boolean", "note": "int", "at": "timestamptz"}
    lake.declare(_trip_fact(query.format("if(coalesce(electric, false), 0, distance)"), raw), ids)
    lake("check")
    lake("migrate", "raw.trips", "--apply")
    assert [name for name, _ in _schema(lake, "raw.trips")][:5] == list(raw)
    lake("rebuild", "trip_fact", "2026-01-01-00:00", "2026-01-01-01:00")
    lake.land("raw.trips", "trip_id,distance,electric,note,at\nt3,300,true,3,2026-01-01T02:05:00Z\n")
    lake("complete", "raw.trips", "2026-01-01-02:00")
    lake("catch-up")
    assert lake.values("core.trip_fact", "metres") == [0, 100, 200]
    lake("verify")

    # A column that is dropped and added again with another type is another column: its former values are gone.
    raw["note"] = "string"
    lake.declare(_trip_fact(query.format("length(note)"), raw), ids)
    said = lake("check")
    assert "raw.trips has note as int, declared as string." in said
    assert "lake migrate raw.trips --drop note --apply" in said
    done = lake.run("migrate", "raw.trips", "--apply")
    assert (done.code, "Iceberg does not turn int into string" in done.out) == (1, True)
    lake("migrate", "raw.trips", "--drop", "note", "--apply")
    lake("rebuild", "trip_fact", "2026-01-01-00:00", "2026-01-01-02:00")
    assert lake.values("core.trip_fact", "metres") == [None, None, None]


def test_a_session_that_was_open_goes_on_after_its_columns_changed(lake: LakeDoor) -> None:
    raw = {"trip_id": "string", "metres": "string", "at": "timestamptz"}
    lake.declare(_trip_fact("SELECT trip_id, CAST(metres AS int) AS metres, at FROM trips", raw))
    lake("init")
    lake.land("raw.trips", "trip_id,metres,at\nt1,100,2026-01-01T00:05:00Z\nt2,abc,2026-01-01T01:05:00Z\n")
    lake("complete", "raw.trips", "2026-01-01-01:00")
    assert "abc" in lake.run("catch-up").text
    # The key, too: by it the audits tell which rows of the source are valid.
    raw = {"id": "string", "distance": "string", "at": "timestamptz"}
    query = "SELECT id AS trip_id, try_cast(distance AS int) AS metres, 1 AS n, at FROM trips"
    lake.declare(_trip_fact(query, raw, former={"distance": "metres", "id": "trip_id"}, source_key="id"))
    lake("check")
    lake("migrate", "--apply")
    lake("catch-up")
    assert [(row["metres"], row["n"]) for row in lake.rows("core.trip_fact")] == [(100, 1), (None, 1)]


PYTHON = """
from lake_assets import Pipeline, RawTable, Source, Stateless, incremental_asset

TRIPS = RawTable(
    "raw.trips",
    columns={"trip_id": "string", "metres": "int", "at": "timestamptz"},
    time_column="at",
    renamed_from={"metres": "length"},
)


@incremental_asset(
    mode=Stateless(),
    sources=[Source("raw.trips", time_column="at")],
    key="trip_id",
    time_column="at",
    columns={"trip_id": "string", "at": "timestamptz"},
)
def trip_ids(session, trips):
    return trips.select("trip_id", "at")


@incremental_asset(
    mode=Stateless(),
    sources=[Source("raw.trips", time_column="at")],
    key="trip_id",
    time_column="at",
    columns={"trip_id": "string", "km": "double", "at": "timestamptz"},
)
def trip_km(session, trips):
    return kilometres(trips)


def kilometres(trips):
    return trips.selectExpr("trip_id", "metres / 1000.0D as km", "at")


PIPELINE = Pipeline(raw=(TRIPS,), targets=(trip_ids, trip_km), start="2026-01-01-00:00")
"""


def test_a_function_stops_only_for_columns_that_its_code_names(lake: LakeDoor) -> None:
    lake.declare_in_python(PYTHON)
    lake("init")
    lake.land("raw.trips", ROWS, through="2026-01-01-01:00")
    with lake.table("raw.trips").update_schema() as update:
        update.rename_column("metres", "length").update_column("metres", LongType())
    found = lake.run("catch-up")
    assert found.code == 1
    assert "raw.trips should have the column metres (int), but has no such column." in found.text
    assert lake.values("core.trip_ids", "trip_id") == ["t1", "t2"]
    assert lake.run("migrate", "raw.trips", "--apply").code == 1, "Iceberg narrows no type"
    assert "raw.trips should have the column metres (int), but has it as long." in lake.run("catch-up").text
    lake.declare_in_python(PYTHON.replace('"metres": "int"', '"metres": "long"'))
    lake("catch-up")
    assert lake.values("core.trip_km", "km") == [0.1, 0.2]


def test_no_declared_column_is_left_out_of_a_file(lake_without_spark: LakeDoor) -> None:
    lake = lake_without_spark
    lake.declare_in_python(PYTHON)
    lake("init")
    lake.declare_in_python(
        PYTHON.replace(
            '"at": "timestamptz"},\n    time_column="at",\n    ren',
            '"kind": "string", "at": "timestamptz"},\n    time_column="at",\n    ren',
        )
    )
    file = lake.write("a.csv", "trip_id,metres,kind,at\nt1,100,bus,2026-01-01T00:05:00Z\n")
    refused = lake.refused("land", "raw.trips", file)
    assert "raw.trips should have the column kind (string), but has no such column." in refused
    assert "lake migrate raw.trips" in refused
    assert lake.rows("raw.trips") == []
    lake("migrate", "raw.trips", "--apply")
    lake("land", "raw.trips", file)
    assert lake.values("raw.trips", "kind") == ["bus"]
    # Others add columns, and make one required: landing and `lake migrate` know the declared ones.
    with lake.table("raw.trips").update_schema(allow_incompatible_changes=True) as update:
        update.add_column("extra", DoubleType())
        update.update_column("kind", required=True)
        update.add_column("other", StringType())
    said = lake("migrate", "raw.trips")
    assert "raw.trips has kind as required; the declared column may be null. → make optional" in said
    assert "lake migrate raw.trips --drop extra --apply" in said
    lake("migrate", "raw.trips", "--apply", "--drop", "extra", "--drop", "other")
    assert lake("migrate") == "All columns are as declared.\n"
    for wrong, what in (('{"speed": "length"}', "declares no such column"), ('{"metres": "at"}', "another column")):
        lake.declare_in_python(PYTHON.replace('{"metres": "length"}', wrong))
        assert what in lake.refused("migrate")
