"""Late rows that wait by a policy, on real tables: what is published when, across restarts, deletions and crashes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING

import pytest

from lake_assets.base.failpoints import SESSION_POINTS
from lake_assets.base.hours import from_milliseconds
from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.spark import open_spark
from lake_assets.incremental.declaration import Defer
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.engine import Engine, utc_now
from lake_assets.incremental.engine.model import NoSession, SessionPlan, SessionReport
from lake_assets.incremental.operations.maintain import Maintainer, Policy
from lake_assets.membership import PIPELINE
from lake_assets.settings import settings
from lake_assets_tests.incremental.crash_matrix import die
from lake_assets_tests.incremental.scenario import START, Lake, signup, with_target

if TYPE_CHECKING:
    from datetime import datetime

    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.incremental.declaration import Pipeline
    from lake_assets.settings import Settings

FACT = "signup_fact"
FORGETFUL = Policy(retain=timedelta(0), newest=1, compact_files=2, many_manifests=2)
LONGEST = timedelta(hours=4)
WITH_LANE = replace(PIPELINE.target(FACT), late=Defer(older_than="1 hour", at_most=LONGEST))


@dataclass
class LaneLake(Lake):
    """A lake whose sign-ups have a policy, and whose clock a test moves on."""

    offset: timedelta = timedelta(0)

    def engine_of(self, pipeline: Pipeline) -> Engine:
        return Engine(self.catalog, pipeline, clock=lambda: utc_now() + self.offset, spark=lambda: self.spark)

    def commit_time(self) -> datetime:
        """When the newest raw rows were committed."""
        newest = iceberg.load(self.catalog, "raw.signups").current_snapshot()
        assert newest is not None
        return from_milliseconds(newest.timestamp_ms)

    def deferred(self) -> dict[int, datetime]:
        """The hours that wait, each since when, as an engine decides that was just started."""
        decision = self.engine_of(self.pipeline).decide(self.target(FACT))
        assert isinstance(decision, NoSession), decision
        waiting = {each.hour - START: each.since for each in decision.deferred}
        if waiting:
            assert decision.look_again_at == min(waiting.values()) + LONGEST
        return waiting

    def ids(self) -> set[str]:
        return {row["signup_id"] for row in self.rows(WITH_LANE.table)[WITH_LANE.table]}


@pytest.fixture
def lake(catalog: Catalog, spark: SparkSession) -> LaneLake:
    found = LaneLake(catalog, spark, with_target(PIPELINE, WITH_LANE))
    found.append("raw.signups", [signup(1, hour) for hour in range(6)])
    found.complete("raw.signups", START + 5)
    found.session(FACT)
    return found


def test_new_hours_and_deletions_are_published_at_once_and_late_rows_in_time(lake: LaneLake) -> None:
    bad = [signup(4, 6, plan="gold"), signup(5, 6, event_ts=None)]
    lake.append("raw.signups", [signup(2, 6), signup(3, 2), *bad])
    first_seen = lake.commit_time()
    lake.complete("raw.signups", START + 6)
    fresh = lake.session(FACT)
    assert (fresh.plan.load, fresh.hours_built, fresh.rows_quarantined) == ("append", (START + 6,), 2)
    assert [audit.name for audit in fresh.audits if audit.blocking and not audit.passed] == []
    assert lake.deferred() == {2: first_seen}

    lake.append("raw.signups", [signup(6, 3)])
    assert isinstance(lake.run(FACT), NoSession)
    second_seen = lake.commit_time()
    assert lake.deferred() == {2: first_seen, 3: second_seen}

    lake.spark.sql("DELETE FROM lake.raw.signups WHERE signup_id = 's01-1'")
    assert lake.session(FACT).hours_built == (START + 1,)
    assert lake.deferred() == {2: first_seen, 3: second_seen}
    assert lake.ids() == {"s02-6", *(f"s01-{hour}" for hour in (0, 2, 3, 4, 5))}
    pending = lake.engine.pending(lake.target(FACT))
    assert pending.hours == (START + 2, START + 3)
    assert "late rows are deferred since" in pending.why

    lake.offset = LONGEST
    due = lake.session(FACT)
    assert (due.plan.load, due.hours_built) == ("append", (START + 2, START + 3))
    assert (len(due.plan.late_rows), due.rows_written) == (2, 2), "only the rows that waited are written"
    assert lake.deferred() == {}
    lake.assert_true(FACT)
    assert len(lake.quarantined(WITH_LANE.table)) == 2

    lake.offset = timedelta(0)
    lake.append("raw.signups", [signup(7, 2)])
    assert lake.deferred() == {2: lake.commit_time()}
    at_once = lake.engine.run(lake.target(FACT), deferred=True)
    assert isinstance(at_once, SessionReport)
    assert (at_once.plan.load, at_once.hours_built) == ("append", (START + 2,))
    lake.assert_true(FACT)


@pytest.mark.journey
def test_rows_that_wait_are_kept_by_maintenance_and_overwritten_if_others_expire_them(lake: LaneLake) -> None:
    for number, load in enumerate(["append", "overwrite"]):
        lake.offset = timedelta(0)
        for hour in (6 + 2 * number, 7 + 2 * number):
            lake.append("raw.signups", [signup(hour, hour), signup(10 + hour, hour % 2)])
            lake.complete("raw.signups", START + hour)
            lake.session(FACT)
        assert lake.deferred().keys() == {0, 1}
        if load == "overwrite":
            lake.expire("raw.signups")
        else:
            now = Engine(lake.catalog, lake.pipeline, clock=utc_now, spark=lambda: lake.spark)
            upkeep = Maintainer(now, FORGETFUL)
            upkeep.maintain("raw.signups")
        lake.offset = LONGEST
        due = lake.session(FACT)
        assert (due.plan.load, due.hours_built) == (load, (START, START + 1))
        lake.assert_true(FACT)


def run_in_lane(seconds: str) -> str:
    """One run of the sign-ups, for a process of its own whose clock is ahead."""
    home = settings()
    lane = with_target(PIPELINE, WITH_LANE)
    clock = partial(later, timedelta(seconds=float(seconds)))
    engine = Engine(open_catalog(home), lane, clock=clock, spark=cache(lambda: open_spark(home)))
    return type(engine.run(WITH_LANE)).__name__


def later(offset: timedelta) -> datetime:
    return utc_now() + offset


def test_what_waits_survives_a_session_that_dies(lake: LaneLake, home: Settings) -> None:
    def die_at(point: str) -> None:
        die(home, str(lake.offset.total_seconds()), point, work=run_in_lane)

    since: dict[int, datetime] = {}
    for number, point in enumerate(SESSION_POINTS):
        lake.append("raw.signups", [signup(2, 6 + number), signup(10 + number, 1), signup(10 + number, 2 + number % 2)])
        since = {1: lake.commit_time(), 2 + number % 2: lake.commit_time(), **since}
        lake.complete("raw.signups", START + 6 + number)
        die_at(point)
        lake.catch_up(FACT)
        assert lake.deferred() == since, point
    lake.offset = LONGEST
    for point in SESSION_POINTS[:2]:
        planned = lake.engine.decide(lake.target(FACT))
        assert isinstance(planned, SessionPlan)
        die_at(point)
    lake.catch_up(FACT)
    assert lake.deferred() == {}
    lake.assert_true(FACT)
    published = lake.published(WITH_LANE.table)
    assert len(published) == len(set(published)) == 1 + len(SESSION_POINTS) + 1
