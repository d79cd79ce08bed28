"""The membership tables equal the oracle, however their hours are cut into sessions: hundreds of accounts a job."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING

import pytest

from lake_assets.base.hours import hour_of, hour_start, parse_hour
from lake_assets.membership import PIPELINE
from lake_assets_tests.membership import oracle
from lake_assets_tests.membership.in_memory import COLUMNS, Lake, build, in_order
from lake_assets_tests.membership.oracle import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = parse_hour("2026-01-01-00:00")
HOURS = range(FIRST, FIRST + 6)
START = hour_start(FIRST)


def histories(random: Random, accounts: int) -> Lake:
    """Raw rows of short, dense histories: equal times, edges of hours, equal prices, strangers, cancels in a row."""
    raw: Lake = {table: [] for table in oracle.KEY}
    for account in range(accounts):
        for n in range(random.randint(1, 9)):
            table = random.choice(list(raw))
            raw[table].append(event(random, table, f"a{account}", f"{random.randint(0, 9)}-{account}-{n}"))
    return raw


def event(random: Random, table: str, account: str, key: str) -> Row:
    key_column, time_column = oracle.KEY[table]
    time = max(START, START + timedelta(minutes=20 * random.randrange(18), microseconds=random.choice((0, 0, -1, 1))))
    plan, price = random.choice([("basic", "7.99"), ("basic", "8.99"), ("standard", "8.99"), ("family", "24.99")])
    row = {
        key_column: key,
        time_column: time,
        "account_id": account,
        "plan": plan,
        "monthly_price": Decimal(price),
        "reason": random.choice(["price", "moved", None]),
        "landed_at": time + timedelta(minutes=random.randint(0, 300)),
        "batch_id": "b",
    }
    return {column: row.get(column) for column in COLUMNS[table]}


def truth(raw: Lake) -> Lake:
    through = dict.fromkeys(oracle.KEY, hour_start(HOURS[-1]))
    return in_order(oracle.expected(raw, start=START, through=through))


def test_histories_reach_every_state_and_both_churn_types() -> None:
    lake = truth(histories(Random(1), accounts=600))
    assert {row["state"] for row in lake["core.account_state_dim"]} == {"Active", "Upgraded", "Downgraded", "Canceled"}
    assert {row["churn_type"] for row in lake["core.cancel_fact"]} == {"voluntary", "involuntary"}


@pytest.mark.parametrize("seed", [1, 2])
def test_one_session_over_all_hours_gives_the_truth(spark: SparkSession, seed: int) -> None:
    raw = histories(Random(seed), accounts=600)
    assert in_order(build(spark, raw, {}, [HOURS])) == truth(raw)


def test_hour_by_hour_gives_the_truth(spark: SparkSession) -> None:
    raw = histories(Random(3), accounts=400)
    assert in_order(build(spark, raw, {}, [[hour] for hour in HOURS])) == truth(raw)


def test_rows_that_came_late_or_went_give_the_truth_from_their_earliest_hour_on(spark: SparkSession) -> None:
    random = Random(4)
    everything = histories(random, accounts=400)

    def most() -> Lake:
        return {
            table: [r for r in rows if is_early(table, r) or random.random() < 0.7]
            for table, rows in everything.items()
        }

    def is_early(table: str, row: Row) -> bool:
        return hour_of(row[oracle.KEY[table][1]]) < HOURS[2]

    published = build(spark, most(), {}, [HOURS])
    raw = most()
    assert in_order(build(spark, raw, published, [HOURS[2:]])) == truth(raw)


def test_targets_come_after_what_they_are_built_from() -> None:
    names = [target.name for target in PIPELINE.in_order()]
    assert names[-2:] == ["account_state_dim", "account_state_daily"]
    assert names.index("cancel_request_fact") < names.index("cancel_fact")


def test_lineage_names_columns_that_exist() -> None:
    for target in PIPELINE.targets:
        upstream = {f"{source.table}.{column}" for source in target.sources for column in COLUMNS[source.table]}
        assert {c for columns in target.lineage.values() for c in columns} <= upstream
        assert target.lineage.keys() <= target.columns.keys()
