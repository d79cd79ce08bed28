"""The equality that proves it all: however rows arrive, targets equal what one rebuild from all raw rows gives.

Each lake lives through a random history: landings late, twice and in gaps; sessions of some targets now and then, some
of which die; compactions of targets and of raw tables; rows deleted and updated in raw tables, by copy-on-write and
merge-on-read; snapshots that expire, sources that are rolled back, watermarks that are lost, audits that fail, and
backfills.
A failure prints the steps that led to it, as a script: the methods of `History`, in order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from lake_assets.errors import AuditFailed, HistoryCut
from lake_assets.incremental import publish, tables
from lake_assets.incremental.declaration import Sequential, Stateful
from lake_assets.incremental.failpoints import POINTS
from lake_assets.incremental.hours import ranges
from lake_assets.incremental.session import SessionReport
from lake_assets.incremental.sessions import HIGH_WATERMARK
from lake_assets.local.catalog import open_catalog
from lake_assets.local.spark import open_spark
from lake_assets.membership import PIPELINE
from lake_assets.membership.simulator import Arrival, Outage, Population, Simulation, generate
from lake_assets.settings import Settings
from lake_assets_tests.incremental.crash_matrix import start
from lake_assets_tests.incremental.scenario import START, Lake, signup, with_target
from lake_assets_tests.membership.oracle import KEY

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets_tests.membership.oracle import Row

TARGETS = [target.name for target in PIPELINE.in_order()]
BY_ACCOUNT = replace(PIPELINE.target("account_state_dim"), mode=Sequential(entity="account_id", few_rows=0))
"""Changed accounts alone are recomputed, however few rows there are; runs that die recompute all."""
HISTORIES = int(os.environ.get("LAKE_TEST_HISTORIES", "60"))
"""Random histories on real tables; a longer run sets more."""
SEED = os.environ.get("LAKE_TEST_SEED", "0")
"""What the histories are drawn from: the same ones, unless another is set."""
PARTS = 4
"""So many tests share the histories, so that two processes can."""
EACH = -(-HISTORIES // PARTS)
LONGEST = 60
"""Seconds that a history may take, on a busy machine."""

raw_tables, targets = st.sampled_from(list(KEY)), st.sampled_from(TARGETS)
modes = st.sampled_from(["copy-on-write", "merge-on-read"])
numbers = st.integers(0, 1000)


def landings(seed: int) -> Simulation:
    return Simulation(
        Population(accounts=30, hours=5, seed=seed, opening=0.6, plan_change=0.2, request=0.2, involuntary_cancel=0.1),
        Arrival(tail=0.2, twice=0.1, again=0.1, bad=0.05, longest_hours=4, outages=(Outage(2, 2, ("raw.cancels",)),)),
    )


class History(RuleBasedStateMachine):
    """One lake, and all that may happen to it."""

    def __init__(self, home: Settings) -> None:
        super().__init__()
        self.home, self.spark = home, open_spark(home)
        self.lake = Lake(open_catalog(home), self.spark, with_target(PIPELINE, BY_ACCOUNT))

    def teardown(self) -> None:
        """Whatever has happened: once all is caught up, every target equals a full rebuild."""
        try:
            self.repair()
            for name in TARGETS:
                with self.only_planned_hours_change(name):
                    self.run_until_idle(name)
                self.check_watermarks(name)
            self.lake.assert_true()
        finally:
            self.spark.stop()

    @initialize(seed=numbers)
    def first_rows(self, seed: int) -> None:
        self.coming = generate(landings(seed))
        self.land()

    @rule()
    def land(self) -> None:
        with suppress(StopIteration):
            self.lake.land(next(self.coming))

    @rule(hour=st.integers(0, 4), number=st.integers(10, 59))
    def land_a_row_that_an_audit_stops(self, hour: int, number: int) -> None:
        self.lake.append("raw.signups", [signup(number, hour, account_id=None)])

    @rule()
    def repair(self) -> None:
        if tables.load(self.lake.catalog, "raw.signups").scan("account_id IS NULL").count():
            self.spark.sql("UPDATE lake.raw.signups SET account_id = 'a' WHERE account_id IS NULL")

    @rule(name=targets)
    def run(self, name: str) -> None:
        with self.only_planned_hours_change(name), suppress(AuditFailed):
            self.ran(name)

    @rule(name=targets, point=st.sampled_from(POINTS))
    def run_and_die(self, name: str, point: str) -> None:
        start(self.home, name, point).end()

    @rule(name=targets, hours=st.sets(st.integers(0, 4), min_size=1, max_size=3))
    def backfill(self, name: str, hours: set[int]) -> None:
        with suppress(HistoryCut, AuditFailed):  # the watermark's own snapshot may have expired
            self.lake.engine.rebuild(self.lake.target(name), {START + h for h in hours})

    @rule(table=raw_tables)
    def compact_raw(self, table: str) -> None:
        self.lake.compact(table)

    @rule(name=targets)
    def compact_target(self, name: str) -> None:
        self.lake.compact(f"core.{name}")

    @rule(table=raw_tables, mode=modes, number=numbers)
    def delete(self, table: str, mode: str, number: int) -> None:
        self.lake.set_property(table, "write.delete.mode", mode)
        self.spark.sql(f"DELETE FROM lake.{table} WHERE {self.some_row(table, number)}")

    @rule(table=raw_tables, mode=modes, number=numbers)
    def update(self, table: str, mode: str, number: int) -> None:
        """A row moves by an hour, to another account."""
        self.lake.set_property(table, "write.update.mode", mode)
        time = KEY[table][1]
        earlier = f"greatest({time} - interval 1 hour, timestamp'2026-01-01 00:00:00Z')"
        row = self.some_row(table, number)
        self.spark.sql(f"UPDATE lake.{table} SET account_id = 'a-000000001', {time} = {earlier} WHERE {row}")

    @rule(table=st.sampled_from([*KEY, "core.signup_fact", "core.cancel_request_fact"]))
    def expire(self, table: str) -> None:
        """Only the newest snapshot of a table stays: what was read up to is gone."""
        self.lake.expire(table)

    @rule(table=raw_tables)
    def roll_back(self, table: str) -> None:
        """A source loses what its newest snapshot did."""
        before = list(publish.ancestors(tables.load(self.lake.catalog, table)))[1:2]
        if before:
            self.lake.set_main(table, before[0].snapshot_id)

    @rule(name=targets)
    def lose_watermark(self, name: str) -> None:
        tables.load(self.lake.catalog, HIGH_WATERMARK).delete(f"process_name = 'core.{name}'")

    def ran(self, name: str) -> bool:
        """One session, if one is due. A source whose history was cut is read anew, as the error says."""
        try:
            return isinstance(self.lake.run(name), SessionReport)
        except HistoryCut:
            self.lake.engine.rebuild(self.lake.target(name), [START], reset=True)
            return True

    def run_until_idle(self, name: str) -> None:
        while self.ran(name):
            pass

    def some_row(self, table: str, number: int) -> str:
        key = KEY[table][0]
        found = tables.load(self.lake.catalog, table).scan(selected_fields=(key,)).to_arrow()[key].to_pylist()
        keys = sorted(k for k in found if k) or ["none"]
        return f"{key} = '{keys[number % len(keys)]}'"

    @contextmanager
    def only_planned_hours_change(self, name: str) -> Iterator[None]:
        """No file of an hour comes or goes unless the hour was planned, whatever becomes of the session."""
        before = self.files(name)
        known = len(self.lake.engine.store.history(f"core.{name}"))
        yield
        after = self.files(name)
        changed = {h for h in before.keys() | after.keys() if before.get(h) != after.get(h)}
        played = self.lake.engine.store.history(f"core.{name}")[max(known - 1, 0) :]
        planned = {h for r in played for h in (*r.plan.hour_numbers, *r.built)}
        assert changed <= planned, f"{name}: hours {ranges(changed - planned)} changed, and were not planned"

    def files(self, name: str) -> dict[int, frozenset[str]]:
        """Event hour → the data files of it."""
        rows = tables.load(self.lake.catalog, f"core.{name}").inspect.files().to_pylist()
        found: dict[int, set[str]] = {}
        for row in rows:
            found.setdefault(next(iter(row["partition"].values())), set()).add(row["file_path"])
        return {hour: frozenset(paths) for hour, paths in found.items()}

    def check_watermarks(self, name: str) -> None:
        """No session of a process starts anywhere but where the one before it ended: no snapshot is read twice."""
        history = self.lake.engine.store.history(f"core.{name}")
        done = [r.plan for r in history if r.state == "committed"]
        for one, other in pairwise(done):
            for before, after in zip(one.sources, other.sources, strict=True):
                assert after.from_snapshot_id in (None, before.to_snapshot_id), (name, one.session_id, other.session_id)


@pytest.mark.slow
@pytest.mark.timeout(LONGEST * (EACH + 1))
@pytest.mark.parametrize("part", range(PARTS))
def test_targets_equal_one_full_rebuild_whatever_happens(part: int, tmp_path: Path, spark_server: str) -> None:
    homes = (Settings(home=tmp_path / str(n), spark_remote=spark_server) for n in range(1_000_000))
    make: Callable[[], History] = seed(f"{SEED}, part {part}")(lambda: History(next(homes)))
    run_state_machine_as_test(
        make,
        settings=settings(
            max_examples=EACH + 1,  # the first is the simplest there is, the same in each part
            stateful_step_count=14,
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.generate, Phase.shrink) if HISTORIES > 100 else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )


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
