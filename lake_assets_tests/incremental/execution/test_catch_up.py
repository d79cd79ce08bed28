"""What is due is done, whatever else fails, and whatever was declared when it was planned. Metadata only: no Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import count
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from tenacity import Retrying, stop_after_delay, wait_fixed

from lake_assets.base.hours import hour_key
from lake_assets.connections.catalog import open_catalog
from lake_assets.errors import UsageError
from lake_assets.incremental.declaration import Source, Stateless
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.engine import Engine, Outcome, catch_up
from lake_assets.incremental.engine.model import Decision, NoSession, OpenedSession, SessionPlan
from lake_assets.incremental.engine.planner import Planner
from lake_assets_tests.incremental.clicks import CLICKS, START, at, click_fact, click_state, land_clicks, publish_clicks
from lake_assets_tests.incremental.scenario import with_target
from lake_assets_tests.processes import LONGEST, environment

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.incremental.declaration import Target
    from lake_assets.incremental.engine.state import State
    from lake_assets.settings import Settings

COMMITS = 500
"""Commits after which the writer stops by itself: far more than a call that ends needs."""


@pytest.fixture
def engine(catalog: Catalog) -> Engine:
    found = Engine(catalog, CLICKS, clock=lambda: at(8))
    found.create_tables()
    return found


def test_what_fails_in_one_target_does_not_stop_the_others(engine: Engine) -> None:
    with engine.catalog.load_table("raw.clicks").update_schema(allow_incompatible_changes=True) as schema:
        schema.delete_column("click_id")
    failed, other = catch_up(engine, CLICKS.targets)
    assert "raw.clicks should have the column click_id" in (failed.failure or "")
    assert (other.table, other.failure) == ("core.click_state", None)
    assert other.waiting


def test_an_error_of_any_kind_does_not_stop_the_others_unless_the_machine_has_it(engine: Engine) -> None:
    def fails_with(error: Exception) -> list[Outcome]:
        def run(target: Target, **_: object) -> NoSession:
            if target.name == "click_fact":
                raise error
            return NoSession("idle", "nothing new")

        engine.run = run  # type: ignore[method-assign]
        seen: list[Exception] = []
        outcomes = catch_up(engine, CLICKS.targets, on_error=seen.append)
        assert seen == [error]
        return outcomes

    failed, other = fails_with(KeyError("place"))
    assert (failed.failure or "").splitlines()[0] == "core.click_fact: KeyError: 'place'."
    assert (other.table, other.failure) == ("core.click_state", None)

    (failed,) = fails_with(OSError(28, "No space left on device"))
    assert (failed.failure or "").splitlines()[0] == "The disk is full."


def test_a_writer_that_commits_all_the_time_keeps_no_target_from_its_turn(engine: Engine, bare_home: Settings) -> None:
    done = Event()

    def write() -> None:
        catalog = open_catalog(bare_home)
        for hour in count():
            complete(catalog, hour)
            if done.is_set() or hour == COMMITS:
                return

    complete(engine.catalog, 0)
    writer = Thread(target=write)
    writer.start()
    try:
        outcomes = catch_up(engine, CLICKS.targets, report=lambda outcome: wait_for_commit(engine.catalog))
    finally:
        done.set()
        writer.join()
    assert [(o.table, o.report is not None, o.failure) for o in outcomes] == [
        ("core.click_fact", True, None),
        ("core.click_fact", False, None),
        ("core.click_state", True, None),
        ("core.click_state", False, None),
    ]


def test_a_call_that_is_overtaken_goes_on_and_notes_it(engine: Engine, catalog: Catalog) -> None:
    """Once is enough to plan anew; who is overtaken again and again says so, and waits."""
    complete(catalog, 3)
    engine.run(click_fact)
    complete(catalog, 4)
    other = Engine(catalog, CLICKS, clock=lambda: at(8))
    decide, races = engine.planner.next_session, [1, 2, 3]

    class Overtaken(Planner):
        def next_session(self, state: State, **kwargs: Any) -> Decision:
            decision = decide(self, state, **kwargs)
            if races and self.target.table == click_fact.table:
                races.pop()
                other.carry(click_fact, why="repair")
            return decision

    engine.planner = Overtaken
    found = catch_up(engine, CLICKS.targets)
    assert [(o.table, bool(o.overtaken), o.report is not None, o.failure) for o in found] == [
        ("core.click_fact", True, False, None),
        ("core.click_fact", True, False, None),
        ("core.click_fact", False, True, None),
        ("core.click_fact", False, False, None),
        ("core.click_state", False, True, None),
        ("core.click_state", False, False, None),
    ]
    assert "another process was faster: " in (found[0].overtaken or "")
    assert [each.revision for each in engine.history(click_fact)] == [1, 2, 3, 4, 5]


def test_a_session_that_another_process_has_run_is_not_run_again(engine: Engine, catalog: Catalog) -> None:
    complete(catalog, 3)
    other = Engine(catalog, CLICKS, clock=lambda: at(8))
    decide, races = engine.planner.next_session, [True]

    class Overtaken(Planner):
        def next_session(self, state: State, **kwargs: Any) -> Decision:
            decision = decide(self, state, **kwargs)
            if races:
                races.pop()
                other.run(click_fact)
            return decision

    engine.planner = Overtaken
    (found,) = catch_up(engine, [click_fact])
    assert (found.waiting is not None, found.overtaken, found.failure) == (True, None, None)
    assert [each.revision for each in engine.history(click_fact)] == [1]


def test_two_commands_at_once_end_well_and_with_the_same_rows(home: Settings, catalog: Catalog) -> None:
    Engine(catalog, CLICKS, clock=lambda: at(8)).create_tables()
    land_clicks(catalog, [0, 1, 2], landing=3)
    pipeline = {"LAKE_PIPELINES": "lake_assets_tests.incremental.clicks:CLICKS"}
    command = [sys.executable, "-m", "lake_assets.cli.main", "catch-up"]
    started = []
    for _ in range(2):
        started.append(
            subprocess.Popen(command, env={**os.environ, **environment(home), **pipeline}, stderr=subprocess.PIPE)
        )
    for process in started:
        _, errors = process.communicate(timeout=LONGEST)
        assert process.returncode == 0, errors.decode()
    for name in ("core.click_fact", "core.click_state"):
        rows = catalog.load_table(name).scan().to_arrow()
        assert sorted(rows["click_id"].to_pylist()) == ["c3-0", "c3-1", "c3-2"]


def complete(catalog: Catalog, hour: int) -> None:
    """Declare raw.clicks complete through an hour, which is due in a session that needs no Spark."""
    for attempt in iceberg.retrying():
        with attempt, catalog.load_table("raw.clicks").transaction() as transaction:
            transaction.set_properties({iceberg.COMPLETE_THROUGH: hour_key(START + hour)})


def wait_for_commit(catalog: Catalog) -> None:
    """Return as soon as the writer has committed once more."""
    before = complete_through(catalog)
    for attempt in Retrying(stop=stop_after_delay(30), wait=wait_fixed(0.01)):
        with attempt:
            assert complete_through(catalog) > before


def complete_through(catalog: Catalog) -> int:
    return iceberg.complete_through(catalog.load_table("raw.clicks"), "raw.clicks") or 0


@pytest.mark.parametrize(
    "changed",
    [
        replace(click_state, sources=(*click_state.sources, Source("raw.clicks", "event_ts", key="click_id"))),
        replace(click_state, sources=(Source("raw.clicks", "event_ts", key="click_id"),)),
        replace(click_state, mode=Stateless()),
    ],
)
def test_a_session_that_was_planned_for_other_sources_is_planned_anew(engine: Engine, changed: Target) -> None:
    land_clicks(engine.catalog, [0], landing=0)
    publish_clicks(engine.catalog, [0], complete_through=0)
    before = engine.open_session(click_state)
    engine.pipeline = with_target(CLICKS, changed)
    with pytest.raises(UsageError, match="has no open session"):
        engine.publish_session(changed)
    after = engine.open_session(changed)
    assert isinstance(before, OpenedSession)
    assert isinstance(after, OpenedSession)
    assert [source.source for source in after.plan.sources] == [source.table for source in changed.sources]
    assert engine.open_session(changed) == after


def test_more_than_a_day_beyond_the_newest_row_is_built_by_force_alone(engine: Engine) -> None:
    """A heartbeat of the future, or a slip of the pen, declares a source complete for years."""
    click_state_target = CLICKS.target("click_state")
    publish_clicks(engine.catalog, [0, 1], complete_through=25)
    assert isinstance(engine.decide(click_state_target), SessionPlan)
    publish_clicks(engine.catalog, [1], complete_through=17_520)
    decision = engine.decide(click_state_target)
    assert isinstance(decision, NoSession)
    assert decision.kind == "beyond"
    (refused,) = catch_up(engine, [click_state_target])
    assert "17,519 hours up to 2028-01-01-00:00 would be built beyond the newest row" in (refused.failure or "")
    assert "repeat the command with --force" in (refused.failure or "")
    (forced,) = catch_up(engine, [click_state_target], force=True)
    assert "beyond the newest row" not in (forced.failure or "")  # it lacks nothing but Spark
    state = engine.state(click_state_target)
    planned = engine.planner(engine.catalog, CLICKS, click_state_target).next_session(state, force=True)
    assert isinstance(planned, SessionPlan)
    assert planned.hour_numbers[-1] == START + 9_999
    assert max(planned.pending) == START + 17_520
