"""Tables that are declared in YAML and SQL, end to end: analysed, built, late rows, and nothing left in the session.

Also rows that a query cannot compute.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.engine import catch_up
from lake_assets_tests.incremental.scenario import Lake
from lake_assets_tests.incremental.sql.folders import (
    BALANCES,
    PAYMENTS,
    PAYMENTS_SQL,
    TOTALS,
    check_all,
    payments,
    pipeline_of,
    write,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

START = "2026-01-01-00:00"
MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)

ROWS = pa.schema(
    [
        pa.field("payment_id", pa.string()),
        pa.field("account_id", pa.string()),
        pa.field("amount", pa.int64()),
        pa.field("event_ts", pa.timestamp("us", tz="UTC")),
        pa.field("landed_at", pa.timestamp("us", tz="UTC")),
        pa.field("landing_date", pa.date32()),
        pa.field("landing_hour", pa.int32()),
        pa.field("batch_id", pa.string()),
    ]
)


def payment(number: str, account: str, amount: int, hour: int) -> dict[str, Any]:
    """A payment half an hour after the start of an hour."""
    at = MIDNIGHT + timedelta(hours=hour, minutes=30)
    landing = {"landed_at": at, "landing_date": at.date(), "landing_hour": at.hour, "batch_id": "b"}
    return {"payment_id": number, "account_id": account, "amount": amount, "event_ts": at, **landing}


def land(lake: Lake, *rows: dict[str, Any], through: int) -> None:
    iceberg.load(lake.catalog, "raw.payments").append(pa.Table.from_pylist(list(rows), schema=ROWS))
    lake.set_property("raw.payments", "lake.complete-through", f"2026-01-01-{through:02}:00")


def found(lake: Lake, table: str, *columns: str) -> list[tuple[Any, ...]]:
    rows = iceberg.load(lake.catalog, table).scan(selected_fields=columns).to_arrow().to_pylist()
    values = [tuple(row[column] for column in columns) for row in rows]
    return sorted((v[0].hour if isinstance(v[0], datetime) else v[0], *v[1:]) for v in values)


def test_a_pipeline_of_sql_in_three_modes(tmp_path: Path, catalog: Catalog, spark: SparkSession) -> None:
    folder = tmp_path / "tables"
    payments(folder)
    write(folder, "balance_dim", BALANCES)
    write(folder, "payments_hourly", TOTALS)
    checked, declared = check_all(folder, lambda: spark, start=START)
    assert {one.table: dict(one.columns) for one in checked} == {
        "core.payment_fact": {
            "payment_id": "string",
            "account_id": "string",
            "amount": "long",
            "paid_at": "timestamptz",
        },
        "core.balance_dim": {"balance_hour": "timestamptz", "account_id": "string", "balance": "long"},
        "core.payments_hourly": {
            "paid_hour": "timestamptz",
            "account_id": "string",
            "payments": "long",
            "amount": "long",
            "note": "string",
        },
    }
    assert all(one.written for one in checked)
    pipeline = pipeline_of(folder, start=START)
    assert [target.table for target in pipeline.targets] == [target.table for target in declared.targets]

    lake = Lake(catalog, spark, pipeline)
    land(lake, payment("p1", "a", 5, 0), payment("p2", "b", 7, 1), payment("p3", "a", -1, 1), through=2)
    lake.catch_up("payment_fact", "balance_dim", "payments_hourly")
    assert found(lake, "core.payment_fact", "payment_id", "amount") == [("p1", 5), ("p2", 7)]
    assert len(lake.quarantined("core.payment_fact")) == 1

    land(lake, payment("p4", "a", 10, 0), payment("p2", "b", 7, 1), through=3)  # late, and a repeated delivery
    lake.catch_up("payment_fact", "balance_dim", "payments_hourly")
    assert found(lake, "core.payment_fact", "payment_id", "amount") == [("p1", 5), ("p2", 7), ("p4", 10)]
    assert found(lake, "core.balance_dim", "balance_hour", "account_id", "balance") == [
        (0, "a", 15),
        *((hour, account, balance) for hour in (1, 2, 3) for account, balance in (("a", 15), ("b", 7))),
    ]
    assert found(lake, "core.payments_hourly", "paid_hour", "account_id", "payments", "amount", "note") == [
        (0, "a", 2, 15, "{p}"),
        (1, "b", 1, 7, "{p}"),
    ]
    assert spark.catalog.listTables() == []  # a query leaves no view behind
    assert check_all(folder, lambda: spark, start=START, only_changed=True)[0] == []


FAILING = {
    "CAST(account_id AS int)": (
        "the value 'a' is no INT",
        "Use try_cast, which makes NULL of it, or leave such rows out: "
        "a condition in the rules of the source quarantines them.",
    ),
    "100 / (amount - 5)": (
        "a row divides by zero",
        "Use try_divide(a, b), which makes NULL of it, or leave such rows out: "
        "a condition in the rules of the source quarantines them.",
    ),
    "(SELECT p.amount FROM payments p)": (
        "a subquery in the place of a value has more than one row",
        "Aggregate it, or join it instead.",
    ),
}


def test_a_row_that_a_query_cannot_compute_is_named_and_others_go_on(
    tmp_path: Path, catalog: Catalog, spark: SparkSession
) -> None:
    folder, sql = tmp_path / "tables", tmp_path / "tables" / "payment_fact" / "payment_fact.sql"
    payments(folder)
    write(folder, "payments_hourly", TOTALS)
    other = PAYMENTS.replace("payment_fact", "other_fact").replace("      columns:", "      # columns:")
    write(folder, "other_fact", other, PAYMENTS_SQL)
    _, declared = check_all(folder, lambda: spark, start=START)
    lake = Lake(catalog, spark, declared)
    land(lake, payment("p1", "a", 5, 0), payment("p2", "b", 7, 1), through=2)
    for expression, (problem, remedy) in FAILING.items():
        payments(folder, sql=PAYMENTS_SQL.replace("amount,", f"CAST(\n  {expression} AS long) AS amount,"))
        _, changed = check_all(folder, lambda: spark, start=START)
        outcomes = {found.table: found for found in catch_up(lake.engine_of(changed), changed.in_order())}
        failure = outcomes["core.payment_fact"].failure
        assert failure is not None
        assert failure.splitlines() == [
            f"core.payment_fact: at {sql}:2, in rows for 2026-01-01-00:00..2026-01-01-01:00, {problem}.",
            f"  → {remedy}",
        ]
        behind = outcomes["core.payments_hourly"]
        assert behind.waiting is not None
        assert behind.waiting.reason.startswith("core.payment_fact: ")
        assert outcomes["core.other_fact"].failure is None
    assert len(found(lake, "core.other_fact", "payment_id")) == 2

    payments(folder)  # corrected: the session that failed is finished
    _, corrected = check_all(folder, lambda: spark, start=START)
    assert not any(found.failure for found in catch_up(lake.engine_of(corrected), corrected.in_order()))
    assert found(lake, "core.payment_fact", "payment_id", "amount") == [("p1", 5), ("p2", 7)]
