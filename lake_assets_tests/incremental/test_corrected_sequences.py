"""Corrections of a source whose targets depend on the order of rows: sequential, and stateful by range."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from lake_assets import Pipeline, Sequential, SessionContext, Stateful, audits, incremental_asset
from lake_assets.base.hours import hour_of
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.operations import verify
from lake_assets_tests.incremental.payments import COLUMNS, LAST, PAYMENTS, START, Row, arrow, standing, version
from lake_assets_tests.incremental.scenario import Lake

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession


@incremental_asset(
    mode=Sequential(),
    sources=[LAST],
    key="name",
    time_column="at",
    columns={"name": "string", "at": "timestamptz", "total": "long"},
    audits=[audits.unique_key()],
)
def payment_total(session: SessionContext, payments: DataFrame) -> DataFrame:
    """All payments that stand up to the end of each hour: those up to the hour before, and the hour's own."""
    assert session.published is not None
    before = session.published.where(f"at = timestamp_seconds({(session.hours[0] - 1) * 3600})").collect()
    total = before[0]["total"] if before else 0
    amounts: dict[int, int] = {}
    for row in session.within(payments, "event_ts").selectExpr("unix_seconds(event_ts) AS s", "amount").collect():
        hour = row["s"] // 3600
        amounts[hour] = amounts.get(hour, 0) + row["amount"]
    rows = []
    for hour in session.hours:
        total += amounts.get(hour, 0)
        rows.append(("all", hour * 3600, total))
    found = payments.sparkSession.createDataFrame(rows, "name string, s long, total long")
    return found.selectExpr("name", "timestamp_seconds(s) AS at", "total")


@incremental_asset(
    mode=Stateful(),
    sources=[LAST],
    key="payment_id",
    time_column="paid_at",
    columns={**COLUMNS, "total": "long"},
    audits=[audits.unique_key(), audits.source_target_counts()],
)
def payment_with_total(session: SessionContext, payments: DataFrame) -> DataFrame:
    """Each payment that stands, with the sum of all payments up to it."""
    so_far = F.sum("amount").over(Window.partitionBy(F.lit(1)).orderBy("event_ts", "payment_id"))
    rows = payments.select("payment_id", "amount", F.col("event_ts").alias("paid_at"), so_far.alias("total"))
    return session.within(rows, "paid_at")


PIPELINE = Pipeline(raw=(PAYMENTS,), targets=(payment_total, payment_with_total), start="2026-01-01-00:00")

FIRST = 1
"""The hour of the earliest row that has ever landed. A sequential target begins there."""


def assert_true(lake: Lake, landed: list[Row], through: int) -> None:
    """Both targets equal a replay of all rows, up to an hour."""
    paid = [row for row in standing(landed) if hour_of(row["paid_at"]) - START <= through]
    by_hour = {}
    for hour in range(FIRST, through + 1):
        by_hour[hour] = sum(row["amount"] for row in paid if hour_of(row["paid_at"]) - START <= hour)
    found = iceberg.load(lake.catalog, payment_total.table).scan().to_arrow().to_pylist()
    assert {hour_of(row["at"]) - START: row["total"] for row in found} == by_hour
    expected = {}
    for row in paid:
        order = (row["paid_at"], row["payment_id"])
        earlier = [other for other in paid if (other["paid_at"], other["payment_id"]) <= order]
        expected[row["payment_id"]] = (row["amount"], sum(other["amount"] for other in earlier))
    found = iceberg.load(lake.catalog, payment_with_total.table).scan().to_arrow().to_pylist()
    assert {row["payment_id"]: (row["amount"], row["total"]) for row in found} == expected
    assert len(found) == len(expected)


@pytest.mark.journey
def test_a_correction_rebuilds_all_hours_from_the_one_that_a_row_leaves(catalog: Catalog, spark: SparkSession) -> None:
    lake, landed = Lake(catalog, spark, PIPELINE), list[Row]()

    def planned(*rows: Row, through: int) -> list[set[int]]:
        """Land rows and run all sessions: the hours that those of each target have planned."""
        landed.extend(rows)
        lake.append("raw.payments", arrow(rows))
        lake.complete("raw.payments", START + through)
        found: dict[str, set[int]] = {target.table: set() for target in PIPELINE.targets}
        for report in lake.catch_up():
            found[report.plan.process].update(hour - START for hour in report.plan.hour_numbers)
        assert_true(lake, landed, through)
        return list(found.values())

    first = [version("a", 1, 10, amount=1), version("b", 2, 10, amount=2), version("c", 4, 10, amount=4)]
    assert [max(hours) for hours in planned(*first, through=4)] == [4, 4]
    # b leaves hour 2 for hour 3, with another amount; the plan finds hour 2 in what was read before.
    assert planned(version("b", 3, 20, amount=8), through=4) == [{2, 3, 4}] * 2
    # a is deleted, by a row without a time; c goes to an hour that is not complete yet.
    deleted = planned(version("a", None, 20, op="D"), version("c", 6, 20, amount=16), through=5)
    assert deleted == [{1, 2, 3, 4, 5}] * 2
    planned(version("a", 5, 30, amount=32), version("b", 1, 15, amount=64), through=7)
    for target in PIPELINE.targets:
        assert verify.compare(lake.engine, target).equal
