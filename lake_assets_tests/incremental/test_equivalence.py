"""The equality that proves it all: however rows arrive, targets equal what one rebuild from all raw rows gives.

Each lake lives through a random history: landings late, twice and in gaps; sessions of some targets now and then;
compactions of targets and of raw tables; rows deleted and updated in raw tables, by copy-on-write and merge-on-read.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING

import pytest

from lake_assets.incremental import tables
from lake_assets.membership import PIPELINE
from lake_assets.membership.simulator import Arrival, Outage, Population, Simulation, generate
from lake_assets_tests.incremental.scenario import START, Lake, signup
from lake_assets_tests.membership.oracle import KEY

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

TARGETS = [target.name for target in PIPELINE.in_order()]
MODES = ("copy-on-write", "merge-on-read")


def history(seed: int) -> Simulation:
    return Simulation(
        Population(accounts=30, hours=5, seed=seed, opening=0.6, plan_change=0.2, request=0.2, involuntary_cancel=0.1),
        Arrival(tail=0.2, twice=0.1, again=0.1, bad=0.05, longest_hours=4, outages=(Outage(2, 2, ("raw.cancels",)),)),
    )


class Writers:
    """Others who write to the lake, at random."""

    def __init__(self, lake: Lake, random: Random) -> None:
        self.lake, self.random = lake, random

    def compact_raw(self) -> None:
        self.lake.compact(self.random.choice(list(KEY)))

    def compact_target(self) -> None:
        self.lake.compact(f"core.{self.random.choice(TARGETS)}")

    def delete(self) -> None:
        table = self._in_some_mode("write.delete.mode")
        self.lake.spark.sql(f"DELETE FROM lake.{table} WHERE {self._some_row(table)}")

    def update(self) -> None:
        """A row moves by an hour, to another account."""
        table = self._in_some_mode("write.update.mode")
        time = KEY[table][1]
        sets = (
            f"account_id = 'a-000000001', {time} = greatest({time} - interval 1 hour, timestamp'2026-01-01 00:00:00Z')"
        )
        self.lake.spark.sql(f"UPDATE lake.{table} SET {sets} WHERE {self._some_row(table)}")

    def _in_some_mode(self, property_name: str) -> str:
        table = self.random.choice(list(KEY))
        self.lake.set_property(table, property_name, self.random.choice(MODES))
        return table

    def _some_row(self, table: str) -> str:
        key = KEY[table][0]
        found = tables.load(self.lake.catalog, table).scan(selected_fields=(key,)).to_arrow()[key].to_pylist()
        return f"{key} = '{self.random.choice(sorted(k for k in found if k) or ['none'])}'"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_targets_equal_one_full_rebuild(catalog: Catalog, spark: SparkSession, seed: int) -> None:
    lake, random = Lake(catalog, spark), Random(seed)
    others = Writers(lake, random)
    for landing in generate(history(seed)):
        lake.land(landing)
        for write in random.sample([others.compact_raw, others.compact_target, others.delete, others.update], 2):
            write()
        for name in random.sample(TARGETS, 2):
            lake.run(name)
    lake.catch_up()
    lake.assert_true()


def test_a_repeated_delivery_that_landed_earlier_takes_the_place_of_the_stored_one(
    catalog: Catalog, spark: SparkSession
) -> None:
    lake = Lake(catalog, spark)
    rows = [signup(n, hour) for hour in (1, 2, 3) for n in range(3)]
    late = [{**row, "landed_at": row["landed_at"] + timedelta(hours=2), "plan": "family"} for row in rows]
    lake.append("raw.signups", late)
    lake.session("signup_fact")
    lake.append("raw.signups", [rows[4], signup(7, 2)])
    first = lake.session("signup_fact")
    assert (first.hours_built, first.rows_duplicate) == ((START + 2,), 1)
    lake.assert_true("signup_fact")

    latest = [{**row, "landed_at": row["landed_at"] + timedelta(hours=5)} for row in rows]
    lake.append("raw.signups", [*latest, signup(8, 3)])
    second = lake.session("signup_fact")
    assert (second.hours_built, second.rows_duplicate, second.rows_written) == ((START + 3,), 9, 1)
    lake.assert_true("signup_fact")


def test_a_catch_up_threshold_skips_old_hours_and_a_backfill_builds_them(catalog: Catalog, spark: SparkSession) -> None:
    fact = PIPELINE.target("cancel_fact")
    lake = Lake(
        catalog,
        spark,
        replace(PIPELINE, targets=(*PIPELINE.targets[:3], replace(fact, mode=replace(fact.mode, catchup_threshold=2)))),
    )  # type: ignore[arg-type]
    for landing in generate(history(4)):
        lake.land(landing)
        lake.catch_up("cancel_request_fact", "cancel_fact")
    skipped = lake.engine.store.state("core.cancel_fact").committed.skipped
    assert skipped
    lake.engine.rebuild(lake.target("cancel_fact"), skipped)
    lake.assert_true("cancel_fact")
    assert not lake.engine.store.state("core.cancel_fact").committed.skipped
