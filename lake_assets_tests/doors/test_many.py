"""As many hours, rules and columns as the data has: conditions, plans and files of a session grow with them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lake_assets_tests.doors.lake_door import LakeDoor

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
WIDE = [f"c{number}" for number in range(70)]
COLUMNS = {"payment_id": "string", "event_ts": "timestamptz", **dict.fromkeys(WIDE, "string")}
PAYMENTS = {
    "table": "raw.payments",
    "time_column": "event_ts",
    "key": "payment_id",
    "rules": {f"{column} is bad": f"{column} = 'bad'" for column in WIDE},
    "columns": COLUMNS,
}
BY_EVENT = {
    "table": "core.payment_fact",
    "mode": "stateless",
    "sources": [PAYMENTS],
    "key": "payment_id",
    "time_column": "event_ts",
    "sql": f"SELECT {', '.join(COLUMNS)} FROM payments",
    "audits": ["source_target_counts", "no_missing_events", "unique_key", {"not_null": WIDE}],
}
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
    rows = [",".join(["payment_id", "event_ts", *WIDE])]
    for hour in hours:
        moment = FIRST + timedelta(hours=hour, minutes=5)
        rows.append(",".join([f"{kind}{hour}", moment.strftime("%Y-%m-%dT%H:%M:%SZ"), *["x"] * len(WIDE)]))
    return "\n".join(rows) + "\n"


def found(lake: LakeDoor) -> tuple[list[str], dict[int, int]]:
    """The ids of the payments, and hour → number of them as the table by hour has it."""
    by_hour = lake.rows("core.payments_hourly", "hour", "payments")
    return (
        lake.values("core.payment_fact", "payment_id"),
        {(row["hour"] - FIRST) // timedelta(hours=1): row["payments"] for row in by_hour},
    )


def test_late_rows_of_500_hours_that_do_not_adjoin(lake: LakeDoor) -> None:
    lake.declare(BY_EVENT, BY_HOUR)
    lake("init")
    lake.land("raw.payments", payments(range(0, 1000, 4), "p"), through="2026-02-11-15:00")
    lake("catch-up")
    late = range(0, 1000, 2)
    lake.land("raw.payments", payments(late, "late"))
    assert "2026-02-11-14:00" in lake("plan", "payment_fact")
    lake("catch-up")
    ids = sorted([*(f"p{hour}" for hour in range(0, 1000, 4)), *(f"late{hour}" for hour in late)])
    assert found(lake) == (ids, {hour: 1 + (hour % 4 == 0) for hour in late})
    # The same rows once more: each is compared with what its hour has.
    lake.land("raw.payments", payments(late, "late"))
    lake("catch-up")
    assert lake.values("core.payment_fact", "payment_id") == ids
    assert lake.values("etl.quarantine", "reason") == []


@pytest.mark.journey
def test_a_first_load_of_a_year_goes_in_sessions(lake_without_spark: LakeDoor) -> None:
    """A row in each hour, 70 columns, and Spark in the process with its default heap."""
    lake = lake_without_spark
    lake.longest = 1800
    year = range(8760)
    lake.declare(BY_EVENT, BY_HOUR)
    lake("init")
    lake.land("raw.payments", payments(year, "p"), through="2026-12-31-23:00")
    lake("catch-up")
    ids, by_hour = found(lake)
    assert ids == sorted(f"p{hour}" for hour in year)
    assert by_hour == dict.fromkeys(year, 1)
    sessions = lake.rows("etl.session", "built_hours")
    assert max(row["built_hours"].count(":00") for row in sessions) == 2_000
