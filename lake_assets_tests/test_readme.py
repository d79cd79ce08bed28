"""The ten minutes of README.md: its YAML and its CSV are read out of it, and do what it says."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pytest

from lake_assets_tests.doors.lake_door import LakeDoor

README = (Path(__file__).parents[1] / "README.md").read_text()
LATE = "payment_id,account_id,amount,event_ts\np4,a2,2.25,2026-01-01T00:07:00Z\n"


def block(pattern: str) -> str:
    """The only block of README.md whose text matches."""
    (found,) = re.findall(rf"^```\w*\n({pattern}.*?)^```$", README, re.S | re.M)
    return str(found)


@pytest.mark.slow
def test_a_table_of_your_own_in_ten_minutes(tmp_path: Path, spark_server: str) -> None:
    lake = LakeDoor(tmp_path, {"LAKE_SPARK_REMOTE": spark_server, "LAKE_PIPELINES": "tables"})
    lake.write("tables/payment_fact.yaml", block("type: lake_assets.IncrementalTable"))
    lake.write("payments.csv", block("payment_id,"))
    lake.write("late.csv", LATE)
    shown = block(r"\$ lake init")
    created = lake("init")
    assert all(line in created for line in ("analysed core.payment_fact\n", "6 tables created.\n"))
    land = "land raw.payments payments.csv --through 2026-01-01-02:00"
    assert f"$ lake {land}\n{lake(*land.split())}" in shown
    built = lake("catch-up").splitlines()[0].rpartition(";")[0]
    assert f"$ lake catch-up\n{built}" in shown
    assert lake.values("etl.quarantine", "reason") == ["amount is negative"]
    lake("land", "raw.payments", "late.csv")
    assert "append 2026-01-01-00:00 (1 rows read" in lake("catch-up")
    amounts = {row["payment_id"]: row["amount"] for row in lake.rows("core.payment_fact")}
    assert amounts == {"p1": Decimal("10.00"), "p3": Decimal("7.50"), "p4": Decimal("2.25")}
