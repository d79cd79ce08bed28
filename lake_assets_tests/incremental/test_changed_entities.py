"""A dimension that recomputes the accounts that changed, and no other, has the rows of a full rebuild."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING

import pytest

from lake_assets.base.columns import ENTITY
from lake_assets.incremental.declaration import Sequential, Target
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import SessionPlan, SessionReport
from lake_assets.incremental.engine.stage import differing, of_entities
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.scenario import NOW, START, Lake, signup
from lake_assets_tests.membership.in_memory import in_order

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets_tests.membership.in_memory import Lake as Rows
    from lake_assets_tests.membership.oracle import Row

MINE = replace(PIPELINE.target("account_state_dim"), mode=Sequential(entity="account_id", few_rows=0))
TWIN = replace(MINE, table="core.account_state_of_all", mode=Sequential(chunk_hours=None))
"""Its chunks do not begin small, as those of `MINE` do not while it recomputes changed accounts alone."""
FACTS = tuple(target for target in PIPELINE.targets if target.table in {s.table for s in MINE.sources})
ACCOUNTS = 59
PRICES = {"basic": "7.99", "family": "14.99", "premium": "19.99"}


def members(catalog: Catalog, spark: SparkSession) -> Lake:
    """Accounts a0, a1, ... signed up in hour 0; the dimension, and its twin without an entity, are built through 3."""
    lake = Lake(catalog, spark, replace(PIPELINE, targets=(*PIPELINE.upstream_of(MINE), MINE, TWIN)))
    lake.append("core.signup_fact", [signed_up(n, 0, f"a{n}") for n in range(ACCOUNTS)])
    complete(lake, 3)
    session(lake)
    return lake


def complete(lake: Lake, hour: int) -> None:
    for fact in FACTS:
        lake.complete(fact.table, START + hour)


def signed_up(number: int, hour: int, account: str) -> Row:
    row = signup(number, hour, account_id=account)
    return {**row, "signed_up_at": row["event_ts"]}


def changed(number: int, hour: int, account: str, plan: str = "premium") -> Row:
    row = signup(number, hour, account_id=account, plan=plan, monthly_price=Decimal(PRICES[plan]))
    return {**row, "change_id": f"c-{number}-{hour}", "changed_at": row["event_ts"]}


def canceled(number: int, hour: int, account: str) -> Row:
    row = signup(number, hour, account_id=account)
    return {**row, "cancel_id": f"x-{number}-{hour}", "canceled_at": row["event_ts"], "churn_type": "involuntary"}


def session(lake: Lake) -> SessionReport:
    """The first due session of the dimension, after that of its twin: all due ones write the same hours and rows."""
    twin, (first, *others) = lake.session(TWIN.name), lake.catch_up(MINE.name)
    built = {hour for report in (first, *others) for hour in report.hours_built}
    assert built == {*twin.hours_built}, first.plan.notes
    assert rows(lake, MINE) == rows(lake, TWIN), first.plan.notes
    return first


def rows(lake: Lake, target: Target) -> Rows:
    """The rows of the dimension or its twin, in an order of their own."""
    return in_order({MINE.table: iceberg.load(lake.catalog, target.table).scan().to_arrow().to_pylist()})


def numbers(hours: Iterable[int]) -> list[int]:
    return [h - START for h in hours]


@pytest.mark.journey
def test_whatever_changes_the_rows_are_those_of_a_full_recomputation(catalog: Catalog, spark: SparkSession) -> None:
    lake, draw = members(catalog, spark), Random(22)
    lake.append("core.plan_fact", [changed(1, 1, "a7"), changed(2, 4, "a8"), changed(3, 4, "a7", "basic")])
    lake.append("core.cancel_fact", [canceled(1, 2, "a8"), canceled(2, 4, "a9")])
    complete(lake, 4)
    report = session(lake)
    assert (numbers(report.hours_built), report.plan.changed_through) == ([1, 2, 3, 4], START + 3)

    for through in range(5, 8):
        disturb(lake, draw, 2 * through, through)
        disturb(lake, draw, 2 * through + 1, through)
        complete(lake, through)
        session(lake)

    # The target's files are others, but hold the same rows; and a change of a stranger changes nothing.
    lake.compact(MINE.table)
    lake.append("core.plan_fact", [changed(4, 6, "nobody")])
    report = session(lake)
    assert (numbers(report.hours_unchanged), report.plan.changed_through) == ([6, 7], START + 7)
    assert report.published_snapshot_id is None


def disturb(lake: Lake, draw: Random, number: int, through: int) -> None:
    """A row comes, goes, or goes over to another account; some that come are of an hour that is complete."""
    hour, account = draw.randint(1, through), f"a{draw.randrange(ACCOUNTS + 3)}"
    kind = draw.choice(["change", "change", "cancel", "signup", "delete", "update"])
    if kind == "change":
        lake.append("core.plan_fact", [changed(number, hour, account, draw.choice(list(PRICES)))])
    elif kind == "cancel":
        lake.append("core.cancel_fact", [canceled(number, hour, account)])
    elif kind == "signup":
        lake.append("core.signup_fact", [signed_up(number, hour, account)])
    else:
        fact = draw.choice(FACTS).table
        lake.set_property(fact, f"write.{kind}.mode", draw.choice(["copy-on-write", "merge-on-read"]))
        whose = f"account_id in ('{account}', 'a{draw.randrange(ACCOUNTS)}')"
        change = "DELETE FROM lake.{}" if kind == "delete" else "UPDATE lake.{} SET account_id = 'a1'"
        lake.spark.sql(f"{change.format(fact)} WHERE {whose}")


def test_what_somebody_else_has_written_is_not_taken_over(catalog: Catalog, spark: SparkSession) -> None:
    lake = members(catalog, spark)
    spoil = f"UPDATE lake.{MINE.table} SET monthly_price = 0 WHERE state_hour >= timestamp'2026-01-01 02:00:00Z'"
    spark.sql(spoil)
    lake.append("core.plan_fact", [changed(1, 1, "a7"), changed(3, 3, "a7")])
    report = session(lake)
    assert (numbers(report.hours_built), report.plan.changed_through) == ([1, 2, 3], None)

    # The same, but it is written to between the plan and the staging of its rows: it is planned anew.
    lake.append("core.plan_fact", [changed(2, 1, "a8")])
    lake.session(TWIN.name)
    decision = lake.engine.decide(MINE)
    assert isinstance(decision, SessionPlan)
    assert decision.changed_through == START + 3
    spoils = iter([spoil])

    def spark_of_the_session() -> SparkSession:
        for statement in spoils:
            spark.sql(statement)
        return spark

    slow = Engine(catalog, lake.pipeline, clock=lambda: NOW, spark=spark_of_the_session)
    done = slow.run(MINE)
    assert isinstance(done, SessionReport)
    assert (numbers(done.hours_built), done.plan.changed_through) == ([1, 2, 3], None)
    assert rows(lake, MINE) == rows(lake, TWIN)


def test_rows_are_told_by_entity_and_null_is_one(spark: SparkSession) -> None:
    def frame(*found: tuple[str | None, int]) -> DataFrame:
        return spark.createDataFrame(list(found), "account string, amount int")

    before = frame(("a", 1), ("b", 2), ("b", 2), (None, 3), ("d", 4))
    after = frame(("a", 1), ("b", 2), ("c", 5), (None, 6), ("d", 4))
    ids = differing(before, after).withColumnRenamed("account", ENTITY).select(ENTITY).distinct()
    assert {row[ENTITY] for row in ids.collect()} == {"b", "c", None}
    assert {tuple(row) for row in of_entities(after, "account", ids).collect()} == {("b", 2), ("c", 5), (None, 6)}
    others = of_entities(after, "account", ids, how="left_anti")
    assert {tuple(row) for row in others.collect()} == {("a", 1), ("d", 4)}
