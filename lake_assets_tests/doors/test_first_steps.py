"""The table of the README with other keys and times. Its ten minutes are played by test_readme.py."""

from __future__ import annotations

from typing import Any

from lake_assets_tests.doors.lake_door import LakeDoor

PAYMENT_FACT = {
    "table": "core.payment_fact",
    "mode": "stateless",
    "sources": [
        {
            "table": "raw.payments",
            "time_column": "event_ts",
            "key": "payment_id",
            "rules": {"amount is negative": "amount < 0"},
            "columns": {
                "payment_id": "string",
                "account_id": "string",
                "amount": "decimal(9, 2)",
                "event_ts": "timestamptz",
            },
        }
    ],
    "key": "payment_id",
    "time_column": "paid_at",
    "sql": "SELECT payment_id, account_id, amount, event_ts AS paid_at FROM payments",
    "audits": ["source_target_counts", "no_missing_events", "unique_key", {"not_null": ["account_id"]}],
}

PAYMENTS = """payment_id,account_id,amount,event_ts
p1,a1,10.00,2026-01-01T00:05:00Z
p2,a1,-1.00,2026-01-01T00:06:00Z
p3,a2,7.50,2026-01-01T02:05:00Z
"""
LATE = """payment_id,account_id,amount,event_ts
p4,a1,3.00,2026-01-01T00:05:00Z
"""


def test_rows_that_land_twice_count_once_whatever_the_key_and_time_of_the_target(lake: LakeDoor) -> None:
    payment_fact: dict[str, Any] = dict(PAYMENT_FACT)
    source = payment_fact["sources"][0]
    queries = {
        "by_account": ("account_id, payment_id, event_ts AS paid_at", ["account_id", "payment_id"]),
        "by_name": ("concat('p-', payment_id) AS name, event_ts AS paid_at", "name"),
        "by_hour": ("payment_id, date_trunc('hour', event_ts) AS paid_at", "payment_id"),
        "by_part": ("payment_id, explode(array(1, 2)) AS part, event_ts AS paid_at", ["payment_id", "part"]),
    }
    for name, (columns, key) in queries.items():
        found = {**payment_fact, "table": f"core.{name}", "sql": f"SELECT {columns} FROM payments", "key": key}
        lake.declare({**found, "sources": [source], "audits": []})
        source = {name: value for name, value in source.items() if name != "columns"}
    lake("init")
    for number in (0, 1):
        lake.land("raw.payments", PAYMENTS if number == 0 else PAYMENTS + LATE.partition("\n")[2])
        lake("catch-up")
        for name in queries:
            assert len(lake.rows(f"core.{name}")) == (2 + number) * (1 + (name == "by_part")), name
    lake("verify", LAKE_VERIFY_HOURS="10")
