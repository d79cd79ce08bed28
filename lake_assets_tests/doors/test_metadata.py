"""What the metadata of tables say and decide: how they are created, complete hours, what a table holds. No Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType

from lake_assets_tests.doors.lake_door import LakeDoor

CLICKS = """
from lake_assets import Pipeline, RawTable, Source, Stateless, incremental_asset

COLUMNS = {"click_id": "string", "at": "timestamptz", "price": "decimal(9, 2)", "number": "int"}


@incremental_asset(
    mode=Stateless(),
    sources=[Source("raw.clicks", time_column="at")],
    key="click_id",
    time_column="at",
    columns=COLUMNS,
    lineage={"at": ["raw.clicks.at"]},
)
def click_fact(session, clicks):
    "Clicks."
    return clicks.select(*COLUMNS)


PIPELINE = Pipeline(raw=(RawTable("raw.clicks", COLUMNS, time_column="at"),), targets=(click_fact,),
                    start="2026-01-01-00:00")
"""
START = datetime(2026, 1, 1, tzinfo=UTC)
COMPLETE = "lake.complete-through"


@pytest.fixture
def clicks(lake_without_spark: LakeDoor) -> LakeDoor:
    """Without rows."""
    lake_without_spark.declare_in_python(CLICKS)
    said = lake_without_spark("init")
    assert [line for line in said.splitlines() if "click" in line] == ["created raw.clicks", "created core.click_fact"]
    return lake_without_spark


def set_property(lake: LakeDoor, table: str, name: str, value: str) -> None:
    with lake.table(table).transaction() as transaction:
        transaction.set_properties({name: value})


def append(lake: LakeDoor, table: str, *rows: dict[str, Any]) -> None:
    found = lake.table(table)
    found.append(pa.Table.from_pylist(list(rows), schema=schema_to_pyarrow(found.schema(), include_field_ids=False)))


def click(hour: int | None, identifier: str | None, number: int | None = None) -> dict[str, Any]:
    return {"click_id": identifier, "at": hour and START + timedelta(hours=hour, minutes=5), "number": number}


def partitions(lake: LakeDoor, table: str, *columns: str) -> list[tuple[dict[str, str | None], int, int, list[Any]]]:
    """Of each partition: rows, files, and of each column least, greatest and number of nulls."""
    return [
        (p["partition"], p["rows"], p["files"], [(c["lower"], c["upper"], c["nulls"]) for c in p["columns"]])
        for p in lake.json("inspect", table, *columns)["partitions"]
    ]


def test_tables_are_created_once_as_they_are_declared_and_checked_before_anything_is_staged(clicks: LakeDoor) -> None:
    assert clicks("init") == "Nothing to create.\n"
    raw, fact = clicks.table("raw.clicks"), clicks.table("core.click_fact")
    declared = [("click_id", "string"), ("at", "timestamptz"), ("price", "decimal(9, 2)"), ("number", "int")]
    assert [(each.name, str(each.field_type)) for each in fact.schema().fields] == declared
    added = [("landed_at", "timestamptz"), ("landing_date", "date"), ("landing_hour", "int"), ("batch_id", "string")]
    assert [(each.name, str(each.field_type)) for each in raw.schema().fields] == declared + added
    assert [each.name for each in raw.spec().fields] == ["landing_date", "landing_hour", "batch_id"]
    assert [str(each.transform) for each in fact.spec().fields] == ["hour"]
    clicks("land", "raw.clicks", clicks.write("a.csv", "click_id,at,price,number\na,2026-01-01T01:05:00Z,1.50,7\n"))
    clicks("complete", "raw.clicks", "2026-01-01-01:00")
    set_property(clicks, "core.click_fact", "write.wap.enabled", "false")
    refused = clicks.refused("plan", "click_fact")
    assert "core.click_fact has write.wap.enabled off" in refused
    assert "ALTER TABLE lake.core.click_fact" in refused
    set_property(clicks, "core.click_fact", "write.wap.enabled", "true")
    with raw.update_schema() as update:
        update.delete_column("number")
        update.rename_column("price", "cost")
    stopped = clicks.refused("plan", "click_fact")
    assert "raw.clicks should have the column price (decimal(9, 2)), but has no such column" in stopped
    clicks.catalog.drop_table("raw.clicks")
    assert clicks.refused("plan", "click_fact").splitlines()[:2] == [
        "Error: Table raw.clicks is not in the catalog.",
        "  → Create it with `lake init`, or correct its name in the declaration.",
    ]


def test_a_raw_table_is_declared_complete_by_hand_and_its_readers_go_on(clicks: LakeDoor) -> None:
    append(clicks, "raw.clicks", {**click(0, "a"), "at": START, "landed_at": START, "landing_date": START.date()})
    assert clicks("complete", "raw.clicks", "2026-01-01-03:00").endswith("2026-01-01-03:00 (before: unknown).\n")
    assert "2026-01-01-03:00" in clicks("plan", "click_fact")
    place = clicks.table("raw.clicks").metadata_location
    clicks("complete", "clicks", "2026-01-01-03:00")  # the same again commits nothing
    refused = clicks.refused("complete", "raw.clicks", "2026-01-01-02:00")
    assert "is complete through 2026-01-01-03:00 already" in refused
    assert "--force" in refused
    for name, why in (("click_fact", "is a target"), ("core.click_fact", "is a target"), ("raw.clics", "no raw table")):
        refused = clicks.refused("complete", name, "2026-01-01-04:00")
        assert why in refused
        assert ("Did you mean 'raw.clicks'?" if name == "raw.clics" else "Name a raw table: raw.clicks.") in refused
    for verb, misspelt, near in (
        ("inspect", "core.click_fcat", "core.click_fact"),
        ("plan", "click_fcat", "click_fact"),
    ):
        assert f"Did you mean {near!r}?" in clicks.refused(verb, misspelt)
    now = datetime.now(UTC)
    for ahead in (timedelta(hours=2), timedelta(days=400)):
        hour = f"{now + ahead:%Y-%m-%d-%H:00}"
        assert f"HOUR is {hour}, which is in the future" in clicks.refused("complete", "raw.clicks", hour)
    assert "HOUR is 'soon', which is not an hour key" in clicks.refused("complete", "raw.clicks", "soon")
    assert clicks.table("raw.clicks").metadata_location == place
    clicks("complete", "raw.clicks", "2026-01-01-02:00", "--force")
    assert clicks.table("raw.clicks").properties[COMPLETE] == "2026-01-01-02:00"

    set_property(clicks, "raw.clicks", COMPLETE, "2026-01-01 05:00")
    for command in (("complete", "raw.clicks", "2026-01-01-03:00"), ("plan", "click_fact")):
        refused = clicks.refused(*command)
        assert f"{COMPLETE} of raw.clicks is '2026-01-01 05:00'" in refused
        assert "`lake complete raw.clicks HOUR --force`" in refused
    begun = f"{now:%Y-%m-%d-%H:00}"
    clicks("complete", "raw.clicks", begun, "--force")
    assert clicks.table("raw.clicks").properties[COMPLETE] == begun


def test_what_a_table_holds_is_told_by_its_manifests(clicks: LakeDoor) -> None:
    assert partitions(clicks, "click_fact") == []
    assert clicks("inspect", "raw.clicks") == "raw.clicks has no rows.\n"
    assert "raw.clicks has no column 'nope'" in clicks.refused("inspect", "raw.clicks", "nope")
    append(clicks, "core.click_fact", click(1, "b", 7), click(1, None), click(2, "c"))
    append(clicks, "core.click_fact", click(1, "a", -3), click(None, "d", 1))
    time = "2026-01-01T01:05:00+00:00"
    first, second, third = partitions(clicks, "click_fact", "click_id", "number", "at")
    assert first[:3] == ({"at_hour": None}, 1, 1)
    assert second == ({"at_hour": "2026-01-01-01"}, 3, 2, [("a", "b", 1), ("-3", "7", 1), (time, time, 0)])
    assert third[:3] == ({"at_hour": "2026-01-01-02"}, 1, 1)
    assert (first[3][1], third[3][1]) == (("1", "1", 0), (None, None, 1))
    assert clicks.json("inspect", "core.click_fact")["lineage"] == {"at": ["raw.clicks.at"]}
    shown = clicks("inspect", "click_fact", "click_id")
    assert "at_hour=2026-01-01-01" in shown

    # Any table, in whatever way it was partitioned when a file was written, and however much of a text is kept.
    clicks.catalog.create_namespace_if_not_exists("other")
    schema = pa.schema([("id", pa.string()), ("number", pa.int32()), ("day", pa.date32())])
    for mode, upper in (("truncate(16)", "x" * 15 + "y"), ("full", "x" * 40), ("none", None)):
        name = f"other.{mode[:4]}"
        table = clicks.catalog.create_table(name, schema, properties={"write.metadata.metrics.column.id": mode})
        append(clicks, name, {"id": "x" * 40}, {"id": "a"})
        assert partitions(clicks, name, "id")[0][3][0][:2] == (upper and "a", upper), mode
        (column,) = clicks.json("inspect", name, "id")["partitions"][0]["columns"]
        assert column["may_be_truncated"] is (mode == "truncate(16)")
    table = clicks.table("other.full")
    with table.update_spec() as spec:
        spec.add_field("day", IdentityTransform(), "day")
        spec.add_field("id", BucketTransform(4), "bucket")
    append(clicks, "other.full", {"id": "a", "number": 2, "day": START.date()})
    with clicks.table("other.full").update_schema() as update:
        update.update_column("number", LongType())
    append(clicks, "other.full", {"id": "a", "number": 2**40, "day": START.date()})
    before, after = partitions(clicks, "other.full", "number")
    assert before[:3] == ({}, 2, 1)
    assert (after[0]["day"], *after[1:]) == ("2026-01-01", 2, 2, [("2", str(2**40), 0)])
    clicks.table("other.full").delete(AlwaysTrue())
    assert partitions(clicks, "other.full") == []
