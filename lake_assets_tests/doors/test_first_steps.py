"""The table of the README, through the command line alone."""

from __future__ import annotations

from decimal import Decimal

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


def test_the_table_of_the_readme(lake: LakeDoor) -> None:
    lake.declare(PAYMENT_FACT)
    lake("init")
    lake.land("raw.payments", PAYMENTS, through="2026-01-01-02:00")
    lake("catch-up")
    amounts = {row["payment_id"]: row["amount"] for row in lake.rows("core.payment_fact")}
    assert amounts == {"p1": Decimal("10.00"), "p3": Decimal("7.50")}
    assert lake.values("etl.quarantine", "reason") == ["amount is negative"]
    lake.land("raw.payments", LATE)
    lake("catch-up")
    assert lake.values("core.payment_fact", "payment_id") == ["p1", "p3", "p4"]
