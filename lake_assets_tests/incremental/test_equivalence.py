"""The equality that proves it all: however rows arrive, targets equal what one rebuild from all raw rows gives.

Each lake lives through a random history: landings late, twice and in gaps; sessions of some targets now and then;
compactions of targets and of raw tables; rows deleted and updated in raw tables, by copy-on-write and merge-on-read;
snapshots that expire, and backfills.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING

import pytest

from lake_assets.errors import HistoryCut
from lake_assets.incremental import tables
from lake_assets.incremental.declaration import Stateful
from lake_assets.membership import PIPELINE
from lake_assets.membership.simulator import Arrival, Outage, Population, Simulation, generate
from lake_assets_tests.incremental.scenario import START, Lake, signup, with_target
from lake_assets_tests.membership.oracle import KEY

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets_tests.membership.oracle import Row

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
        self.all = (self.compact_raw, self.compact_target, self.delete, self.update, self.expire, self.rebuild)

    def compact_raw(self) -> None:
        self.lake.compact(self.random.choice(list(KEY)))

    def compact_target(self) -> None:
        self.lake.compact(f"core.{self.random.choice(TARGETS)}")

    def expire(self) -> None:
        """Only the newest snapshot of a table stays: what was read up to is gone."""
        self.lake.expire(self.random.choice([*KEY, "core.signup_fact", "core.cancel_request_fact"]))

    def rebuild(self) -> None:
        target = self.lake.target(self.random.choice(TARGETS))
        with suppress(HistoryCut):  # the watermark's own snapshot may have expired
            self.lake.engine.rebuild(target, self.random.sample(range(START, START + 5), 2))

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
        for write in random.sample(others.all, 2):
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


def test_hours_beyond_the_catch_up_threshold_are_skipped_until_a_backfill(
    catalog: Catalog, spark: SparkSession
) -> None:
    near = replace(PIPELINE.target("cancel_fact"), mode=Stateful(catchup_threshold=2))
    lake = Lake(catalog, spark, with_target(PIPELINE, near))
    for hours in (range(1, 6), (1, 5)):
        lake.append("raw.cancels", [_cancel(signup(len(hours), hour)) for hour in hours])
        lake.complete("raw.cancels", START + 5)
        lake.complete("raw.cancel_requests", START + 5)
        reports = lake.catch_up("cancel_request_fact", "cancel_fact")
    assert reports[-1].hours_built == (START + 5,)
    assert lake.engine.store.state("core.cancel_fact").committed.skipped == {START + 1}
    lake.engine.rebuild(lake.target("cancel_fact"), [START + 1])
    lake.assert_true("cancel_fact")
    assert lake.engine.store.state("core.cancel_fact").committed.skipped == frozenset()


def _cancel(row: Row) -> Row:
    return {**row, "cancel_id": row["signup_id"], "processing_ts": row["event_ts"]}
