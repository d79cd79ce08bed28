"""What a session is told and what it says: names of its tables, of its sources, and of what it reads."""

from __future__ import annotations

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
