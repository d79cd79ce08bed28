"""What a session is told and what it says: names of its tables, of its sources, and of what it reads."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

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
    assert [json.loads(each["plan"])["processing_uris"] for each in stored.values()][1] == opened
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
