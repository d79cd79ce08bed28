"""A lake's random history: what may happen to a lake, and what must hold once all is quiet.

Landings come late, twice and in gaps; sessions of some targets run now and then, and some of them die; targets and raw
tables are compacted; rows are deleted and updated in raw tables, by copy-on-write and merge-on-read; snapshots expire,
sources are rolled back, audits fail, hours are backfilled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from tempfile import mkdtemp

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from lake_assets.base.failpoints import SESSION_POINTS
from lake_assets.base.hours import ranges
from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.spark import open_spark
from lake_assets.demo.membership_simulator import Arrival, Outage, Population, Simulation, generate
from lake_assets.errors import AuditFailed, HistoryCut
from lake_assets.incremental.declaration import Sequential, Stateless
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.model import SessionReport
from lake_assets.membership import PIPELINE
from lake_assets.settings import Settings
from lake_assets_tests.incremental.crash_matrix import start
from lake_assets_tests.incremental.scenario import START, Lake, raw_row, signup, with_target
from lake_assets_tests.membership.oracle import KEY

TARGETS = [target.name for target in PIPELINE.in_order()]
BY_ACCOUNT = replace(PIPELINE.target("account_state_dim"), mode=Sequential(entity="account_id", few_rows=0))
"""Changed accounts alone are recomputed, however few rows there are; runs that die recompute all."""

FIRST = 4
"""Landings after which all raw tables are complete through some hour."""

subjects = st.sampled_from([*TARGETS, TARGETS[-1]])
"""What a history is about: a target and all that it is built from. The last one needs all, and comes more often."""
targets = st.runner().flatmap(lambda history: st.sampled_from(history.targets))
raw_tables = st.runner().flatmap(lambda history: st.sampled_from(history.raw))
sources = st.runner().flatmap(lambda history: st.sampled_from([*history.raw, *history.facts_read]))
settling = st.sampled_from([True, False, False])
"""Whether a history settles in its middle, too, which costs as much as all else of it."""
modes = st.sampled_from(["copy-on-write", "merge-on-read"])
numbers = st.integers(0, 1000)


def landings(seed: int) -> Simulation:
    return Simulation(
        Population(accounts=30, hours=5, seed=seed, opening=0.6, plan_change=0.2, request=0.2, involuntary_cancel=0.1),
        Arrival(tail=0.2, twice=0.1, again=0.1, bad=0.05, longest_hours=4, outages=(Outage(2, 2, ("raw.cancels",)),)),
    )


class History(RuleBasedStateMachine):
    """One lake, and all that may happen to one of its targets and to what that is built from.

    home: fresh and empty; default: a new folder, with Spark in this process.
    """

    def __init__(self, home: Settings | None = None) -> None:
        super().__init__()
        self.home = home or Settings(home=Path(mkdtemp(prefix="lake-history-")), spark_remote=None)
        self.spark = open_spark(self.home)
        self.lake = Lake(open_catalog(self.home), self.spark, with_target(PIPELINE, BY_ACCOUNT))
        self.targets: list[str] = []

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            self.spark.stop()

    @initialize(of=subjects, seed=numbers, settles=settling)
    def first_rows(self, of: str, seed: int, settles: bool) -> None:
        target = PIPELINE.target(of)
        built = [*PIPELINE.upstream_of(target), target]
        read = {source.table for each in built for source in each.sources}
        self.targets = [each.name for each in built]
        self.raw = [table for table in KEY if table in read]
        self.facts_read = [each.table for each in built if each.table in read and isinstance(each.mode, Stateless)]
        self.settles = settles
        self.coming = generate(landings(seed))
        self.land(FIRST)

    @rule(number=st.integers(1, 2))
    def land(self, number: int) -> None:
        for landing in islice(self.coming, number):
            self.lake.land(landing, self.raw)

    @precondition(lambda history: "raw.signups" in history.raw)
    @rule(hour=st.integers(0, 4), number=st.integers(10, 59))
    def land_a_row_that_an_audit_stops(self, hour: int, number: int) -> None:
        self.lake.append("raw.signups", [signup(number, hour, account_id=None)])

    @precondition(lambda history: "raw.cancels" in history.raw)
    @rule(hour=st.integers(0, 3), number=st.integers(10, 58))
    def land_a_cancel_that_an_audit_stops(self, hour: int, number: int) -> None:
        """Beside it one that a request led to, and one of the hour after, which no request is left for."""
        self.lake.append("raw.cancel_requests", [raw_row("raw.cancel_requests", number, hour)])
        bad, *others = (raw_row("raw.cancels", *at) for at in ((number, hour), (number + 1, hour), (number, hour + 1)))
        self.lake.append("raw.cancels", [{**bad, "account_id": None}, *others])

    @rule()
    def repair(self) -> None:
        for table in {"raw.signups", "raw.cancels"}.intersection(self.raw):
            if iceberg.load(self.lake.catalog, table).scan("account_id IS NULL").count():
                self.spark.sql(f"UPDATE lake.{table} SET account_id = 'a' WHERE account_id IS NULL")

    @precondition(lambda history: history.settles)
    @rule()
    def settle(self) -> None:
        """Whatever has happened: once all is caught up, every target equals a full rebuild."""
        self.repair()
        for name in self.targets:
            with self.only_planned_hours_change(name):
                self.run_until_idle(name)
            self.check_watermarks(name)
        self.lake.assert_true(*self.targets)

    @rule(name=targets)
    def run(self, name: str) -> None:
        with self.only_planned_hours_change(name), suppress(AuditFailed):
            self.ran(name)

    @rule(name=targets, point=st.sampled_from(SESSION_POINTS))
    def run_and_die(self, name: str, point: str) -> None:
        with self.only_planned_hours_change(name):
            start(self.home, name, point).end()

    @rule(name=targets, hours=st.sets(st.integers(0, 4), min_size=1, max_size=3))
    def backfill(self, name: str, hours: set[int]) -> None:
        # The watermark's own snapshot may have expired.
        with self.only_planned_hours_change(name), suppress(HistoryCut, AuditFailed):
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

    @rule(table=sources)
    def expire(self, table: str) -> None:
        """Only the newest snapshot of a table stays: what was read up to is gone."""
        self.lake.expire(table)

    @rule(table=raw_tables)
    def roll_back(self, table: str) -> None:
        """A source loses what its newest snapshot did."""
        before = list(publish.ancestors(iceberg.load(self.lake.catalog, table)))[1:2]
        if before:
            self.lake.set_main(table, before[0].snapshot_id)

    def ran(self, name: str) -> bool:
        """One session, if one is due."""
        return isinstance(self.lake.run(name), SessionReport)

    def run_until_idle(self, name: str) -> None:
        while self.ran(name):
            pass

    def some_row(self, table: str, number: int) -> str:
        key = KEY[table][0]
        found = iceberg.load(self.lake.catalog, table).scan(selected_fields=(key,)).to_arrow()[key].to_pylist()
        keys = sorted(k for k in found if k) or ["none"]
        return f"{key} = '{keys[number % len(keys)]}'"

    @contextmanager
    def only_planned_hours_change(self, name: str) -> Iterator[None]:
        """No file of an hour comes or goes unless the hour was planned, whatever becomes of the session."""
        before = self.files(name)
        known = len(self.lake.history(name))
        yield
        after = self.files(name)
        changed = {h for h in before.keys() | after.keys() if before.get(h) != after.get(h)}
        played = self.lake.history(name)[max(known - 1, 0) :]
        planned = {h for r in played for h in (*r.plan.hour_numbers, *r.built)}
        assert changed <= planned, f"{name}: hours {ranges(changed - planned)} changed, and were not planned"

    def files(self, name: str) -> dict[int, frozenset[str]]:
        """Event hour → the data files of it."""
        found: dict[int, set[str]] = {}
        for task in iceberg.load(self.lake.catalog, f"core.{name}").scan().plan_files():
            found.setdefault(task.file.partition[0], set()).add(task.file.file_path)
        return {hour: frozenset(paths) for hour, paths in found.items()}

    def check_watermarks(self, name: str) -> None:
        """No session of a process starts anywhere but where the one before it ended: no snapshot is read twice.

        A source whose history was cut is read from the beginning.
        """
        done = [r.plan for r in self.lake.history(name) if r.state == "committed"]
        for one, other in pairwise(done):
            ends = {s.source: s.to_snapshot_id for s in one.sources}
            for source in other.sources if other.kind == "session" else ():
                start = source.from_snapshot_id
                assert start is None or start == ends[source.source], (name, one.session_id, other.session_id)
