"""Data directories that the version before has left in the midst of its work: this one opens them and ends right.

`benchmarks/home_before.py` has made them, and says what was done and where it stopped. What is right here is written
down, and is the same for every version: nothing is lost, nothing counts twice.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from lake_assets_tests.doors.golden_home import GoldenLake

POINTS = (
    "before_planned",
    "after_planned",
    "after_staged",
    "after_audits",
    "after_staged_recorded",
    "after_quarantine",
    "before_published",
    "after_published",
    "after_published_recorded",
    "after_watermark",
    "after_committed",
)
"""Every other one, from the first on, builds a row for each payment; the rest a sum for each account and hour."""

PAYMENTS = {
    "p1": ("a1", "10.00", "00:05"),
    "p2": ("a2", "20.00", "00:10"),
    "p3": ("a1", "5.00", "01:05"),
    "p6": ("a2", "2.00", "02:30"),
    "p7": ("a1", "3.00", "00:50"),
    "p8": ("a2", "4.00", "03:05"),
    "p9": ("a1", "6.00", "04:10"),
    "p10": ("a2", "8.00", "01:15"),
    "p11": ("a5", "9.00", "05:00"),
}

SUMS = {
    ("a1", "00:00"): "13.00",
    ("a2", "00:00"): "20.00",
    ("a1", "01:00"): "5.00",
    ("a2", "01:00"): "8.00",
    ("a2", "02:00"): "2.00",
    ("a2", "03:00"): "4.00",
    ("a1", "04:00"): "6.00",
    ("a5", "05:00"): "9.00",
}
SO_FAR = {
    "p1": "10.00",
    "p7": "13.00",
    "p3": "18.00",
    "p9": "24.00",
    "p2": "20.00",
    "p10": "28.00",
    "p6": "30.00",
    "p8": "34.00",
    "p11": "9.00",
}
BALANCES = {
    "00:00": {"a1": ("13.00", 1), "a2": ("20.00", 0)},
    "01:00": {"a1": ("18.00", 1), "a2": ("28.00", 1)},
    "02:00": {"a1": ("18.00", 1), "a2": ("30.00", 1)},
    "03:00": {"a1": ("18.00", 2), "a2": ("34.00", 1)},
    "04:00": {"a1": ("24.00", 2), "a2": ("34.00", 2)},
    "05:00": {"a1": ("24.00", 2), "a2": ("34.00", 2), "a5": ("9.00", 0)},
}
"""Hour → account → what it has paid, and how often it has visited."""

SEEN = {"00:00": 14, "01:00": 28, "02:00": 41}
"""Hour → readings of each of five sensors until its end. One sensor has one more in each of the two hours after."""

ORDERS = {"o1": ("paid", "02:10"), "o3": ("paid", "01:20"), "o4": ("new", "03:30")}
REFUNDS = {"r1": "Ann", "r2": "Bob", "r3": "Ann", "r5": "Bob"}


@pytest.fixture
def engine(tmp_path: Path, spark_server: str, s3: str) -> GoldenLake:
    return GoldenLake.unpack("engine", tmp_path, s3, LAKE_SPARK_REMOTE=spark_server)


def at(time: str) -> datetime:
    return datetime.fromisoformat(f"2026-01-01T{time}:00").replace(tzinfo=UTC)


def payments(*left_out: str) -> list[tuple[Any, ...]]:
    """The rows of a table of payments."""
    found = {name: row for name, row in PAYMENTS.items() if name not in left_out}
    return sorted((name, account, Decimal(amount), at(time)) for name, (account, amount, time) in found.items())


def tuples(lake: GoldenLake, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of a table, sorted."""
    return sorted(tuple(row[column] for column in columns) for row in lake.rows(table, *columns))


def paid(lake: GoldenLake, name: str) -> list[tuple[Any, ...]]:
    return tuples(lake, f"core.{name}", "payment_id", "account_id", "amount", "paid_at")


def balances(lake: GoldenLake) -> dict[str, dict[str, tuple[str, int]]]:
    found: dict[str, dict[str, tuple[str, int]]] = {}
    for at_hour, account, amount, visits in tuples(lake, "core.balance_dim", "at_hour", "account_id", "paid", "visits"):
        of_hour = found.setdefault(f"{at_hour:%H:%M}", {})
        assert account not in of_hour
        of_hour[account] = (str(amount), visits)
    return found


@pytest.mark.journey
@pytest.mark.timeout(1800)
def test_an_engine_goes_on_where_it_stopped(engine: GoldenLake) -> None:
    lake = engine
    # A program has staged too few rows for its session, and another one none: the engine refuses and builds them.
    assert "source_target_counts" in lake.refused("session", "publish", "written_fact")
    lake("catch-up", *(f"at_{point}" for point in POINTS))
    done = lake.run("catch-up")
    failed = [line for line in done.err.splitlines() if line.startswith("Error")]
    assert all("core.refund_fact" in line for line in failed), f"an hour is held, and nothing else fails: {done.text}"
    assert len(failed) == done.code

    for number, point in enumerate(POINTS):
        if number % 2:
            found = tuples(lake, f"core.at_{point}", "account_id", "paid_at", "amount")
            assert found == sorted((account, at(hour), Decimal(amount)) for (account, hour), amount in SUMS.items())
        else:
            assert paid(lake, f"at_{point}") == payments(), point
    assert paid(lake, "written_fact") == paid(lake, "opened_fact") == payments()
    assert paid(lake, "late_fact") == payments("p7", "p10"), "late rows wait"
    so_far = {name: str(amount) for name, amount in tuples(lake, "core.so_far_fact", "payment_id", "paid_so_far")}
    assert so_far == SO_FAR
    assert balances(lake) == {hour: BALANCES[hour] for hour in ("00:00", "01:00", "02:00")}, "the others are pending"
    assert tuples(lake, "core.order_fact", "order_id", "status", "ordered_at") == [
        (order, status, at(time)) for order, (status, time) in ORDERS.items()
    ]
    assert tuples(lake, "core.seen_fact", "sensor_id", "at_hour", "seen") == sorted(
        [(f"s{number}", at(hour), count) for number in range(5) for hour, count in SEEN.items()]
        + [("s3", at("03:00"), 42), ("s3", at("04:00"), 43)]
    )
    assert dict(tuples(lake, "core.refund_fact", "refund_id", "name")) == REFUNDS, "one hour is held"

    # What was missing comes: the pending hours and the held one are built, the late rows are written if wanted.
    lake.land("raw.visits", "visit_id,account_id,event_ts\nv4,a2,2026-01-01T04:00:00Z\n", through="2026-01-01-05:00")
    lake.land("raw.customers", "customer_id,name,event_ts\nc6,Eve,2026-01-01T03:00:00Z\n")
    lake("catch-up", "balance_dim", "refund_fact", "late_fact", "--deferred")
    assert balances(lake) == BALANCES
    assert dict(tuples(lake, "core.refund_fact", "refund_id", "name")) == {**REFUNDS, "r4": "Eve"}
    assert paid(lake, "late_fact") == payments()

    lake("erase", "customer", "c4")
    lake("erase", "--sweep")
    for customer in ("c3", "c4"):
        assert lake.json("erasure", "certify", "customer", customer)["nowhere"]
    assert dict(tuples(lake, "core.refund_fact", "refund_id", "name")) == {**REFUNDS, "r4": "Eve"}
