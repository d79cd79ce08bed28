"""A dimension that recomputes the accounts that changed, and no other, has the rows of a full rebuild."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lake_assets.incremental.declaration import Sequential
from lake_assets.incremental.entity_rows import CHANGED, ChangedEntities, differing, ids_of
from lake_assets.incremental.session import SessionPlan
from lake_assets.incremental.sessions import SessionRecord
from lake_assets.membership import PIPELINE
from lake_assets.membership.raw import RAW
from lake_assets_tests.incremental.scenario import NOW, START, Lake, signup, with_target

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets_tests.membership.oracle import Row

DIMENSION = "account_state_dim"
BY_ACCOUNT = replace(PIPELINE.target(DIMENSION), mode=Sequential(entity="account_id", few_rows=0))
ACCOUNTS = 50


def members(catalog: Catalog, spark: SparkSession) -> Lake:
    """Accounts a0, a1, ... signed up in hour 0; all is built through hour 3."""
    lake = Lake(catalog, spark, with_target(PIPELINE, BY_ACCOUNT))
    lake.append("raw.signups", [signup(n, 0, account_id=f"a{n}") for n in range(ACCOUNTS)])
    complete(lake, 3)
    lake.catch_up()
    return lake


def complete(lake: Lake, hour: int) -> None:
    for raw in RAW:
        lake.complete(raw.table, START + hour)


def change(account: str, hour: int) -> Row:
    row = signup(20, hour, account_id=account, plan="premium")
    return {**row, "change_id": f"c-{account}-{hour}", "monthly_price": row["monthly_price"] * 2}


def cancel(account: str, hour: int) -> Row:
    row = signup(30, hour, account_id=account)
    return {**row, "cancel_id": f"x-{account}-{hour}", "processing_ts": row["event_ts"]}


def built(lake: Lake, *, through: int | None) -> list[int]:
    """What is due is done; the dimension recomputed changed accounts through an hour, and is right. Its hours built."""
    *_, report = lake.catch_up()
    assert report.plan.process == "core.account_state_dim"
    assert report.plan.changed_through == (None if through is None else START + through), report.plan.notes
    lake.assert_true(DIMENSION)
    return [h - START for h in report.hours_built]


def test_late_rows_of_some_accounts_leave_the_rows_of_others(catalog: Catalog, spark: SparkSession) -> None:
    lake = members(catalog, spark)
    lake.append("raw.plan_changes", [change("a7", 1), change("a8", 4), change("a7", 4)])
    lake.append("raw.cancels", [cancel("a8", 2), cancel("a9", 4)])
    complete(lake, 4)
    assert built(lake, through=3) == [1, 2, 3, 4]

    # Rows that went, or went over to another account; the target's files and a source's are others meanwhile.
    lake.compact("core.account_state_dim")
    lake.compact("core.plan_fact")
    spark.sql("DELETE FROM lake.raw.cancels WHERE account_id = 'a8'")
    spark.sql("UPDATE lake.raw.plan_changes SET account_id = 'a3' WHERE change_id = 'c-a7-1'")
    assert built(lake, through=4) == [1, 2, 3, 4]

    # A change of a stranger: nothing follows from it, so nothing is published.
    main = lake.main("core.account_state_dim")
    lake.append("raw.plan_changes", [change("nobody", 2)])
    assert built(lake, through=4) == []
    assert lake.main("core.account_state_dim") == main


def test_what_somebody_else_has_written_is_not_taken_over(catalog: Catalog, spark: SparkSession) -> None:
    lake = members(catalog, spark)
    spoil = "UPDATE lake.core.account_state_dim SET monthly_price = 0 WHERE account_id = 'a1'"
    spark.sql(f"{spoil} AND state_hour >= timestamp'2026-01-01 02:00:00Z'")
    lake.append("raw.plan_changes", [change("a7", 1)])
    assert built(lake, through=None) == [1, 2, 3]

    # The same, but it is written to between the plan and the session.
    lake.append("raw.plan_changes", [change("a8", 1)])
    lake.catch_up("plan_fact")
    decision = lake.engine.decide(lake.target(DIMENSION))
    assert isinstance(decision, SessionPlan)
    assert decision.changed_through == START + 3
    opened = SessionRecord(decision, "planned", 0, BY_ACCOUNT.mode.pattern_id, "", NOW)
    lake.engine.store.record(opened, after=lake.engine.store.state("core.account_state_dim").session)
    spark.sql(f"{spoil} AND state_hour >= timestamp'2026-01-01 02:00:00Z'")
    assert built(lake, through=3) == [1, 2, 3]


def test_rows_are_told_by_entity_and_null_is_one(spark: SparkSession) -> None:
    def rows(*found: tuple[str | None, int]) -> DataFrame:
        return spark.createDataFrame(list(found), "account string, amount int")

    before = rows(("a", 1), ("b", 2), ("b", 2), (None, 3), ("d", 4))
    after = rows(("a", 1), ("b", 2), ("c", 5), (None, 6), ("d", 4))
    changed = ChangedEntities("account", ids_of([differing(before, after), rows(("e", 7))], "account"))
    found = {row[CHANGED] for row in changed.ids.collect()}
    assert found == {"b", "c", "e", None}
    assert {tuple(row) for row in changed.of(after).collect()} == {("b", 2), ("c", 5), (None, 6)}
    assert {tuple(row) for row in changed.others(after).collect()} == {("a", 1), ("d", 4)}
