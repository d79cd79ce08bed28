"""Maintenance of real tables, at any time between sessions: every watermark stays reachable, and the rest is gone."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from lake_assets.demo.membership_simulator import Arrival, Population, Simulation, generate
from lake_assets.errors import UsageError
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.engine import Engine, utc_now
from lake_assets.incremental.engine.retention import bare_path
from lake_assets.incremental.engine.source_changes import changes
from lake_assets.incremental.operations.maintain import Maintainer, Policy, engine_tables, tables_of
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.clicks import CLICKS, land_clicks
from lake_assets_tests.incremental.crash_matrix import die
from lake_assets_tests.incremental.scenario import START, Lake, signup

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

FORGETFUL = Policy(retain=timedelta(0), newest=1, compact_files=2, many_manifests=2)
SMALL = Simulation(
    Population(accounts=30, hours=3, seed=5, request=0.3, involuntary_cancel=0.3), Arrival(tail=0.2, again=0.1)
)


@pytest.fixture
def lake(catalog: Catalog, spark: SparkSession) -> Lake:
    return Lake(catalog, spark)


def maintainer(lake: Lake, policy: Policy = FORGETFUL) -> Maintainer:
    return Maintainer(Engine(lake.catalog, lake.pipeline, clock=utc_now, spark=lambda: lake.spark), policy)


def folder(lake: Lake, name: str) -> Path:
    return Path(urlsplit(iceberg.load(lake.catalog, name).location()).path)


def age(root: Path, days: int) -> None:
    """Let all files under a folder look as if they were written so many days ago."""
    then = (utc_now() - timedelta(days=days)).timestamp()
    for file in root.rglob("*"):
        os.utime(file, (then, then))


def land_signups(lake: Lake, hours: range) -> None:
    """One snapshot for each hour."""
    for hour in hours:
        lake.append("raw.signups", [signup(1, hour)])
        lake.complete("raw.signups", START + hour)


def assert_planned_by_history(lake: Lake) -> None:
    for target in lake.pipeline.targets:
        marks = lake.engine.state(target).watermarks
        for source in target.sources:
            mark = marks.get(source.table)
            found = changes(iceberg.load(lake.catalog, source.table), source, mark, start=START)
            expected = "initial" if mark is None or mark.snapshot_id is None else "history"
            assert found.how == expected, (target.table, source.table)


@pytest.mark.journey
def test_between_sessions_at_random_no_process_loses_its_way(lake: Lake) -> None:
    random, forgotten = Random(11), 0
    for landing in generate(SMALL):
        lake.land(landing)
        lake.catch_up(*random.sample([t.name for t in PIPELINE.in_order()], k=1))
        for name in random.sample(tables_of(lake.pipeline, lake.catalog.properties), k=2):
            done = maintainer(lake).maintain(name)
            forgotten += done.snapshots_expired
            assert done.after.stored_bytes <= done.before.stored_bytes or done.partitions_compacted
        assert_planned_by_history(lake)
    lake.catch_up()
    lake.assert_true()
    assert forgotten


def test_a_session_that_died_hinders_no_maintenance_and_the_next_is_planned_on_what_that_left(
    lake: Lake, home: Settings
) -> None:
    for hours in (range(3), range(3, 6)):
        land_signups(lake, hours)
        lake.append("raw.signups", [signup(hours.stop, 0)])  # a second file for hour 0
        lake.session("signup_fact")
    lake.append("raw.signups", [signup(9, 2)])
    die(home, "signup_fact", "after-staged")
    land_signups(lake, range(6, 8))

    done = {name: maintainer(lake).maintain(name) for name in ("raw.signups", "core.signup_fact")}

    assert done["core.signup_fact"].partitions_compacted == 1
    assert_planned_by_history(lake)
    lake.catch_up("signup_fact")
    lake.assert_true("signup_fact")


def test_figures_and_a_dry_run_that_changes_nothing(lake: Lake) -> None:
    for hour in range(3):
        land_signups(lake, range(hour, hour + 1))
        lake.append("raw.signups", [signup(2 + hour, 0)])
        lake.session("signup_fact")
    before = iceberg.load(lake.catalog, "core.signup_fact").metadata

    told = maintainer(lake).maintain("signup_fact", dry_run=True)
    assert iceberg.load(lake.catalog, "core.signup_fact").metadata == before
    assert (told.partitions_compacted, told.snapshots_expired, told.after) == (1, 2, told.before)

    done = maintainer(lake).maintain("signup_fact")
    assert (done.before.files, done.after.files, done.partitions_compacted) == (5, 3, 1)
    # The compaction, and perhaps its manifests, and the session that carries the state on to it, are new.
    assert (done.before.snapshots, done.snapshots_expired) == (3, 3)
    assert done.after.snapshots == (3 if done.manifests_rewritten else 2)
    assert done.after.manifests <= 2
    assert set(done.seconds) == {"rewrite", "expire", "orphans"}
    lake.assert_true("signup_fact")

    again = maintainer(lake).maintain("signup_fact")
    assert (again.partitions_compacted, again.manifests_rewritten, again.after.snapshots) == (0, False, 1)
    assert maintainer(lake).maintain("signup_fact").after == again.after


def test_expiry_takes_only_what_it_names_and_its_files_and_leaves_no_gap(lake: Lake) -> None:
    land_signups(lake, range(4))
    # Iceberg's own limit of age would expire all but the head.
    lake.set_property("raw.signups", "history.expire.max-snapshot-age-ms", "1")
    assert maintainer(lake, Policy()).maintain("raw.signups").after.snapshots == 4
    lake.session("signup_fact")
    land_signups(lake, range(4, 6))
    lists = len(list(folder(lake, "raw.signups").rglob("snap-*.avro")))

    done = maintainer(lake, Policy(retain=timedelta(0), newest=1)).maintain("raw.signups")

    assert (done.snapshots_expired, done.after.snapshots, done.after.files) == (3, 3, 6)
    assert_planned_by_history(lake)
    assert len(list(folder(lake, "raw.signups").rglob("snap-*.avro"))) == lists - 3


def test_orphans_go_when_they_are_old_and_the_memory_of_processes_stays(lake: Lake) -> None:
    for hour in range(4):
        land_signups(lake, range(hour, hour + 1))
        lake.session("signup_fact")
    for _ in range(10):  # the log expires its own snapshots from so many on
        lake.engine.carry(lake.target("signup_fact"), why="test")
    state = lake.state("signup_fact")
    for name in engine_tables({}):
        age(folder(lake, name), days=4)
    left_over = folder(lake, "etl.session") / "data" / "left-over.parquet"
    left_over.write_bytes(b"")

    removed = {name: maintainer(lake).maintain(name).orphans_removed for name in engine_tables({})}

    assert removed["etl.session"] > 0  # of the store's own expiry, which removes no file
    assert left_over.exists()
    age(left_over.parent, days=4)
    assert maintainer(lake).maintain("etl.session").orphans_removed >= 1
    assert not left_over.exists()
    assert lake.state("signup_fact") == state
    assert len(lake.history("signup_fact")) == 14
    land_signups(lake, range(4, 5))
    lake.session("signup_fact")
    lake.assert_true("signup_fact")


def test_an_unknown_table_is_refused(lake: Lake) -> None:
    with pytest.raises(UsageError, match="no table 'nothing'"):
        maintainer(lake).maintain("nothing")


def test_orphans_of_a_former_table_stay_and_the_report_names_its_metadata(catalog: Catalog) -> None:
    Engine(catalog, CLICKS, clock=utc_now).create_tables()
    land_clicks(catalog, [0], landing=0)
    former = iceberg.load(catalog, "raw.clicks").metadata_location
    catalog.drop_table("raw.clicks")
    Engine(catalog, CLICKS, clock=utc_now).create_tables()

    def no_spark() -> SparkSession:
        raise AssertionError("Spark removes orphans")

    done = Maintainer(Engine(catalog, CLICKS, clock=utc_now, spark=no_spark)).maintain("raw.clicks")
    assert done.orphans_removed == 0
    assert bare_path(former).rpartition("/")[0] in done.notes[0]
    assert "another table's metadata" in done.notes[0]
