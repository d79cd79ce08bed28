"""As many hours, rules and columns as the data has: conditions, plans and files of a session grow with them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyarrow.dataset import dataset

from lake_assets_tests.doors.lake_door import LakeDoor

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = {"payment_id": "string", "event_ts": "timestamptz"}
WIDE = {"reading_id": "string", "read_at": "timestamptz", **{f"c{number}": "string" for number in range(70)}}


def fact(table: str, raw: str, columns: dict[str, str], *, checked: list[str]) -> dict[str, Any]:
    """A table of the rows of a raw table, with a rule and a `not_null` for each of some columns."""
    key, time = list(columns)[:2]
    source = {
        "table": raw,
        "time_column": time,
        "key": key,
        "rules": {f"{column} is bad": f"{column} = 'bad'" for column in checked},
        "columns": columns,
    }
    return {
        "table": table,
        "mode": "stateless",
        "sources": [source],
        "key": key,
        "time_column": time,
        "sql": f"SELECT {', '.join(columns)} FROM {raw.partition('.')[2]}",
        "audits": ["source_target_counts", "no_missing_events", "unique_key", {"not_null": [key, *checked]}],
    }


BY_EVENT = fact("core.payment_fact", "raw.payments", COLUMNS, checked=[])
OF_READINGS = fact("core.reading_fact", "raw.readings", WIDE, checked=list(WIDE)[2:])
BY_HOUR = {
    "table": "core.payments_hourly",
    "mode": {"stateful": {"load": "changed", "chunk_hours": None}},
    "sources": [{"table": "core.payment_fact", "time_column": "event_ts", "name": "facts"}],
    "key": "hour",
    "time_column": "hour",
    "sql": "SELECT date_trunc('HOUR', event_ts) AS hour, count(*) AS payments FROM facts GROUP BY 1",
}


def payments(hours: range, kind: str) -> str:
    """One row in each of the hours."""
    moments = {hour: FIRST + timedelta(hours=hour, minutes=5) for hour in hours}
    rows = [f"{kind}{hour},{moment:%Y-%m-%dT%H:%M:%SZ}" for hour, moment in moments.items()]
    return "\n".join(["payment_id,event_ts", *rows, ""])


def rows_of_files(lake: LakeDoor, table: str) -> list[dict[str, Any]]:
    """The rows of a table of thousands of files, which pyarrow reads at once and pyiceberg one after the other."""
    tasks = list(lake.table(table).scan().plan_files())
    assert not any(task.delete_files for task in tasks)
    files = [urlsplit(task.file.file_path).path for task in tasks]
    rows: list[dict[str, Any]] = dataset(files, format="parquet").to_table().to_pylist() if files else []
    return sorted(rows, key=repr)


def found(lake: LakeDoor) -> tuple[list[str], dict[int, int]]:
    """The ids of the payments, and hour → number of them as the table by hour has it."""
    by_hour = rows_of_files(lake, "core.payments_hourly")
    return (
        sorted(row["payment_id"] for row in rows_of_files(lake, "core.payment_fact")),
        {(row["hour"] - FIRST) // timedelta(hours=1): row["payments"] for row in by_hour},
    )


def test_late_rows_of_200_hours_that_do_not_adjoin(lake: LakeDoor) -> None:
    lake.declare(BY_EVENT, BY_HOUR)
    lake("init")
    lake.land("raw.payments", payments(range(0, 1000, 990), "p"), through="2026-02-11-15:00")
    lake("catch-up")
    late = range(0, 1000, 5)
    lake.land("raw.payments", payments(late, "late"))
    assert "2026-02-11-11:00" in lake("plan", "payment_fact")
    lake("catch-up")
    ids = sorted(["p0", "p990", *(f"late{hour}" for hour in late)])
    assert found(lake) == (ids, {hour: 1 + (hour in (0, 990)) for hour in late})
    # Rows of some of them once more: each is compared with what its hour has.
    lake.land("raw.payments", payments(late[:40], "late"))
    lake("catch-up")
    assert lake.values("core.payment_fact", "payment_id") == ids
    assert lake.values("etl.quarantine", "reason") == []


def test_rules_and_audits_of_70_columns(lake: LakeDoor) -> None:
    lake.declare(OF_READINGS)
    lake("init")
    good = ["r1", "2026-01-01T00:05:00Z", *["x"] * 70]
    bad = ["r2", "2026-01-01T00:06:00Z", *["x"] * 69, "bad"]
    rows = "\n".join(",".join(row) for row in (list(WIDE), good, bad))
    lake.land("raw.readings", rows + "\n", through="2026-01-01-00:00")
    lake("catch-up")
    assert lake.values("core.reading_fact", "reading_id") == ["r1"]
    assert lake.values("etl.quarantine", "reason") == ["c69 is bad"]


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_a_first_load_and_a_rebuild_of_many_hours_go_in_sessions(
    lake_without_spark: LakeDoor, spark_server: str
) -> None:
    """A row in each hour, first by a Spark in the process with its default heap. What a rebuild has left when it is
    killed comes with the next session.
    """
    lake = lake_without_spark
    lake.longest = 1800
    hours = range(-8_760, 1_340)
    first, last = "2025-01-01-00:00", "2026-02-25-19:00"
    lake.environment["LAKE_START"] = first
    lake.declare(BY_EVENT, BY_HOUR)
    lake("init")
    lake.land("raw.payments", payments(hours, "p"), through=last)
    lake("catch-up")
    ids, by_hour = found(lake)
    assert ids == sorted(f"p{hour}" for hour in hours)
    assert by_hour == dict.fromkeys(hours, 1)
    sessions = lake.rows("etl.session", "built_hours")
    assert max(row["built_hours"].count(":00") for row in sessions) == 10_000

    lake.environment["LAKE_SPARK_REMOTE"] = spark_server
    rows = rows_of_files(lake, "core.payment_fact")
    lake.table("core.payment_fact").delete("payment_id != 'p7'")
    done = lake.run("rebuild", "payment_fact", first, last, LAKE_FAILPOINT="after-committed")
    assert done.code == 137
    assert len(rows_of_files(lake, "core.payment_fact")) == 10_000
    report = lake.json("repair", "payment_fact")
    assert len(report["plan"]["hours"]) == len(hours) - 10_000
    assert report["plan"]["pending"] == []
    assert rows_of_files(lake, "core.payment_fact") == rows
    assert "No session" in lake("plan", "payment_fact")
