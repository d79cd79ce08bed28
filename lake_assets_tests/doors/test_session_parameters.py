"""What a session is told and what it says: names of its tables, of its sources, and of what it reads."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.transforms import HourTransform

from lake_assets_tests.doors.lake_door import LakeDoor
from lake_assets_tests.doors.test_first_steps import PAYMENT_FACT
from lake_assets_tests.doors.test_sessions import FACT, csv, row

NAMED = {"LAKE_SESSION_TABLE": "audit.psyberg_session_f", "LAKE_HIGH_WATERMARK_TABLE": "audit.high_water_mark"}


def test_the_tables_of_the_log_have_the_names_of_the_settings(lake: LakeDoor) -> None:
    lake.environment |= NAMED
    lake.declare(PAYMENT_FACT)
    lake("init")
    lake.land("raw.payments", csv(row(1, "00:05"), row(2, "01:05")), through="2026-01-01-01:00")
    lake("catch-up")
    assert lake.values(FACT, "payment_id") == ["p1", "p2"]
    assert [each["process_name"] for each in lake.rows("audit.psyberg_session_f")] == [FACT]
    assert [each["source"] for each in lake.rows("audit.high_water_mark")] == ["raw.payments"]
    assert [".".join(name) for name in lake.catalog.list_tables("etl")] == ["etl.erasure", "etl.quarantine"]
    assert len(lake.json("sessions", "payment_fact")) == 1
    assert "audit.psyberg_session_f and audit.high_water_mark can be read" in lake.run("doctor").out
    lake("maintain", "audit.psyberg_session_f")
    lake("verify", "payment_fact")


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("LAKE_SESSION_TABLE", "psyberg_session_f"),
        ("LAKE_SESSION_TABLE", "etl.Session"),
        ("LAKE_HIGH_WATERMARK_TABLE", "a.b.c"),
        ("LAKE_HIGH_WATERMARK_TABLE", "etl.session"),
        ("LAKE_SESSION_TABLE", "etl.quarantine"),
    ],
)
def test_a_name_that_is_no_table_of_its_own_is_refused(lake_without_spark: LakeDoor, variable: str, name: str) -> None:
    refused = lake_without_spark.refused("status", **{variable: name})
    assert f"{variable} is '{name}': " in refused
    assert "lake.env" in refused


OPTIONS = ("--src-tables", "orders|ordered_at", "--etl-pattern-id", "1")


def plain_tables(lake: LakeDoor) -> None:
    """Tables of another program: one of orders, and a target that has rows already."""
    lake.declare(PAYMENT_FACT)
    lake("init")
    schema = pa.schema([("order_id", pa.string()), ("ordered_at", pa.timestamp("us", tz="UTC"))])
    lake.catalog.create_namespace("shop")
    for name in ("shop.orders", "shop.order_fact"):
        lake.catalog.create_table(name, schema)
    with lake.table("shop.order_fact").update_spec() as update:
        update.add_field("ordered_at", HourTransform(), "ordered_at_hour")
    rows = [{"order_id": f"o{n}", "ordered_at": datetime(2026, 1, 1, n, 5, tzinfo=UTC)} for n in range(3)]
    for name, found in (("shop.orders", rows), ("shop.order_fact", rows[:1])):
        lake.table(name).append(pa.Table.from_pylist(found, schema=schema))


def test_what_is_named_of_an_undeclared_target_is_planned_or_refused_by_name(lake_without_spark: LakeDoor) -> None:
    lake = lake_without_spark
    plain_tables(lake)
    before = lake.table("shop.order_fact").metadata_location

    def refused(*options: str) -> str:
        return lake.refused("session", "init", "order_fact", *options)

    assert "There is no target 'order_fact'" in refused()
    assert "without a time column" in refused("--src-tables", "orders", "--etl-pattern-id", "1")
    assert "LAKE_SESSION_TABLE=a.b" in refused(*OPTIONS, "--psyberg-session-table", "a.b")
    assert "LAKE_HIGH_WATERMARK_TABLE=a.b" in refused(*OPTIONS, "--psyberg-hwm-table", "a.b")
    assert lake.table("shop.order_fact").metadata_location == before, "what is refused changes nothing"

    opened = lake.json("session", "init", "order_fact", *OPTIONS, "--process-name", "load_orders")
    assert opened["table"] == "shop.order_fact"
    assert opened["plan"]["load"] == "overwrite", "an append would double the rows that it has"
    assert "'load_orders', and not by 'p'" in refused("--process-name", "p")
    assert lake.json("session", "init", "order_fact") == opened
    assert "shop.orders: partition={}, file=" in lake("session", "init", "order_fact")
    assert "Nothing was written" in lake.refused("session", "publish", "order_fact")
    waited = lake.run("signal", "order_fact", "--wait-for", "2026-01-01-00:00", "--timeout", "0")
    assert (waited.code, waited.out) == (1, "shop.order_fact is complete through no hour yet.\n"), waited.text
    assert lake.json("sessions", "order_fact") == []


def test_what_is_named_of_a_declared_target_has_to_agree(lake_without_spark: LakeDoor) -> None:
    lake = lake_without_spark
    lake.declare(PAYMENT_FACT)
    lake("init")
    lake.land("raw.payments", csv(row(1, "00:05")), through="2026-01-01-00:00")
    for sources in ("payments", "raw.payments|event_ts"):
        options = ("--src-tables", sources, "--etl-pattern-id", "1", "--process-name", "p")
        found = lake.json("session", "init", "payment_fact", *options)
        assert found == lake.json("session", "init", "payment_fact")
    assert "is declared as stateless, which is 1" in lake.refused(
        "session", "init", "payment_fact", "--etl-pattern-id", "2"
    )
    for sources in ("payments|landed_at", "core.payment_fact"):
        said = lake.refused("session", "init", "payment_fact", "--src-tables", sources)
        assert "is declared with 'raw.payments|event_ts'" in said


def place(uri: dict[str, Any]) -> tuple[object, ...]:
    return uri["source"], bool(uri.get("waited")), "file" in uri, "landing_hour" in uri


def test_the_places_of_new_rows_name_their_source_also_of_rows_that_had_waited(lake: LakeDoor) -> None:
    lake.declare({**PAYMENT_FACT, "mode": "stateful"})
    lake("init")
    rows = csv(row(1, "00:05"), row(2, "01:05"))
    lake.land("raw.payments", rows, through="2026-01-01-00:00")
    lake("catch-up")
    lake.land("raw.payments", csv(row(3, "00:15")), through="2026-01-01-01:00")
    opened = lake.json("session", "init", "payment_fact")["plan"]["processing_uris"]
    assert [place(uri) for uri in opened] == [
        ("raw.payments", False, False, True),
        ("raw.payments", True, False, True),
    ]
    assert opened[0]["batch_id"] != opened[1]["batch_id"], "hour 1 came with the first batch, and had to wait"
    lake("catch-up")
    stored = {each["revision"]: each for each in lake.rows("etl.session")}
    assert json.loads(stored[2]["processing_uris"]) == opened
    assert json.loads(stored[2]["plan"])["processing_uris"] == opened
    now = datetime.now(UTC)
    assert stored[1]["from_processing_date"] is None, "it has read a table from its beginning"
    assert stored[1]["to_processing_date"] <= now.date().isoformat()
    assert stored[2]["from_processing_hour"] in (now.hour, (now.hour - 1) % 24)
    for bound in ("from_event", "to_event", "from_landing", "to_landing", "from_processing", "to_processing"):
        assert stored[2][f"{bound}_date"] is not None
        assert 0 <= stored[2][f"{bound}_hour"] < 24


def test_a_log_of_before_gets_the_columns_of_now_and_keeps_its_rows(lake: LakeDoor) -> None:
    lake.declare(PAYMENT_FACT)
    lake("init")
    lake.land("raw.payments", csv(row(1, "00:05")), through="2026-01-01-00:00")
    lake("catch-up")
    of_now = [f"{end}_processing_{part}" for end in ("from", "to") for part in ("date", "hour")]
    with lake.table("etl.session").update_schema() as update:
        for column in of_now:
            update.delete_column(column)
    old = json.dumps([{"landing_date": "2026-01-01", "landing_hour": 0, "batch_id": "b"}])
    rows = lake.table("etl.session").scan().to_arrow().to_pylist()
    stored = lake.table("etl.session")
    rows[0]["processing_uris"] = old
    rows[0]["plan"] = json.dumps({**json.loads(rows[0]["plan"]), "processing_uris": json.loads(old)})
    stored.overwrite(pa.Table.from_pylist(rows, schema=stored.schema().as_arrow()))
    assert len(lake.json("sessions", "payment_fact")) == 1

    lake.land("raw.payments", csv(row(2, "01:05")), through="2026-01-01-01:00")
    lake("catch-up")
    assert len(lake.json("sessions", "payment_fact")) == 2
    found = {each["revision"]: each for each in lake.rows("etl.session")}
    assert [found[1][column] for column in of_now] == [None] * 4
    assert found[1]["processing_uris"] == old
    assert None not in [found[2][column] for column in of_now]
