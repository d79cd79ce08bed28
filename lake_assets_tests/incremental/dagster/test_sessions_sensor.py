"""The sensor of all targets: it requests what an evaluation of every target requests, and evaluates few."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteInstigatorOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus

from lake_assets.base.hours import hour_key
from lake_assets.incremental.dagster import sensors
from lake_assets.incremental.dagster.asset_specs import partitions_of
from lake_assets.incremental.dagster.checks import PENDING_HOURS
from lake_assets.incremental.dagster.sensors import SensedTarget, SensorTiming, sessions_sensor
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.iceberg import HIGH_WATERMARK
from lake_assets.incremental.engine.model import Committed, SessionPlan, Waiting
from lake_assets.incremental.engine.planner import Planner, declare_complete
from lake_assets.incremental.engine.session_log import SessionLog
from lake_assets_tests.incremental.clicks import CLICKS, START, click_fact, click_state, land_clicks, publish_clicks
from lake_assets_tests.incremental.committing import commit
from lake_assets_tests.incremental.dagster.conftest import Hands
from lake_assets_tests.incremental.in_process_daemon import InProcessDaemon, in_process_daemon
from lake_assets_tests.matrices import one_now

if TYPE_CHECKING:
    from dagster._core.definitions.sensor_definition import SensorExecutionData
    from pyiceberg.catalog import Catalog

SENSOR = "sessions_sensor"
END = hour_key(START + 20)
TIMING = SensorTiming(settle_seconds=60)
TWIN = replace(click_fact, table="core.click_twin")
THREE = replace(CLICKS, targets=(*CLICKS.targets, TWIN))
STEPS = 20


@pytest.fixture
def daemon(catalog: Catalog, clock: Hands) -> Iterator[InProcessDaemon]:
    Engine(catalog, THREE, clock=clock).create_tables()
    with in_process_daemon(THREE, catalog, clock, end=END, timing=TIMING) as daemon:
        yield daemon


def every_target(daemon: InProcessDaemon, clock: Hands) -> SensorExecutionData:
    """The same tick by a sensor that remembers nothing, so it evaluates every target."""
    sensed = [SensedTarget(each, partitions_of(each.grain, THREE.start, END, clock())) for each in THREE.targets]
    context = dg.build_sensor_context(
        daemon.instance,
        daemon.cursors.get(SENSOR),
        repository_def=daemon.repository,
        sensor_name=SENSOR,
        resources=daemon.resources,
    )
    return sessions_sensor(THREE, sensed, TIMING, clock).evaluate_tick(context)


def start_run(daemon: InProcessDaemon, table: str, tags: dict[str, str]) -> dg.DagsterRun:
    key = dg.AssetKey(table.split("."))
    return daemon.instance.create_run_for_job(
        daemon.repository.get_job("__ASSET_JOB").get_subset(asset_selection={key}),
        asset_selection=frozenset({key}),
        tags=tags,
        status=dg.DagsterRunStatus.STARTED,
    )


def commit_if_due(catalog: Catalog, clock: Hands, table: str) -> None:
    """Commit a target's next session, if it has one, as a run would."""
    engine = Engine(catalog, THREE, clock=clock)
    target = THREE.target(table)
    if isinstance(engine.decide(target), SessionPlan):
        commit(engine, target)


class Walk:
    """Random changes of a lake, of its runs and of the time."""

    def __init__(self, daemon: InProcessDaemon, catalog: Catalog, clock: Hands, seed: int) -> None:
        self.daemon, self.catalog, self.clock = daemon, catalog, clock
        self.random = random.Random(seed)
        self.hour = 0
        self.active: list[dg.DagsterRun] = []
        self.tags: dict[str, dict[str, str]] = {}

    def step(self) -> None:
        changes: list[Callable[[], object]] = [
            self.land,
            self.publish,
            self.complete,
            self.commit,
            self.start,
            self.end,
            self.later,
            lambda: None,
        ]
        self.random.choice(changes)()

    def note(self, requests: list[dg.RunRequest]) -> None:
        for request in requests:
            (key,) = request.asset_selection or ()
            self.tags[".".join(key.path)] = dict(request.tags)

    def land(self) -> None:
        land_clicks(self.catalog, [self.random.randint(0, self.hour)], landing=self.hour)
        self.hour += 1

    def publish(self) -> None:
        publish_clicks(self.catalog, [self.random.randint(0, 5)], complete_through=self.hour)

    def complete(self) -> None:
        self.hour += 1
        declare_complete(self.catalog, THREE, "raw.clicks", START + self.hour)

    def commit(self) -> None:
        commit_if_due(self.catalog, self.clock, self.random.choice(THREE.targets).table)

    def start(self) -> None:
        table = self.random.choice(THREE.targets).table
        self.active.append(start_run(self.daemon, table, self.tags.get(table, {})))

    def end(self) -> None:
        if self.active:
            self.daemon.instance.report_run_failed(self.active.pop())

    def later(self) -> None:
        self.clock.now += timedelta(seconds=self.random.choice([5, 40, 90, 700]))


@pytest.mark.parametrize("seed", one_now([1, 2]))
def test_it_does_what_an_evaluation_of_every_target_does(
    daemon: InProcessDaemon, catalog: Catalog, clock: Hands, seed: int
) -> None:
    walk = Walk(daemon, catalog, clock, seed)
    requested = 0
    for number in range(STEPS):
        walk.step()
        expected = every_target(daemon, clock)
        found = daemon.tick(SENSOR)
        keys = {request.run_key for request in found.run_requests or ()}
        assert keys == {request.run_key for request in expected.run_requests or ()}, f"step {number}"
        assert sorted(map(repr, found.asset_events)) == sorted(map(repr, expected.asset_events)), f"step {number}"
        assert found.cursor == expected.cursor, f"step {number}"
        walk.note(list(found.run_requests or ()))
        requested += len(keys)
    assert requested > 2


def test_an_idle_tick_loads_no_table_and_a_landing_plans_its_readers_alone(
    daemon: InProcessDaemon, catalog: Catalog, clock: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[str] = []
    decide = Engine.decide

    def noted(engine: Engine, target: object) -> object:
        planned.append(target.name)  # type: ignore[attr-defined]
        return decide(engine, target)  # type: ignore[arg-type]

    daemon.tick(SENSOR)  # reports pending hours
    daemon.tick(SENSOR)
    monkeypatch.setattr(Engine, "decide", noted)
    found = daemon.tick(SENSOR)
    assert planned == []
    assert str(found.skip_message).splitlines()[0] == (
        "0 of 3 targets had to be looked at; none has a session to request."
    )
    assert "core.click_fact: no new snapshot of raw.clicks" in str(found.skip_message)
    publish_clicks(catalog, [0], complete_through=0)
    assert [r.run_key.split(":")[1] for r in daemon.tick(SENSOR).run_requests or () if r.run_key] == ["1"]
    assert set(planned) == {"click_fact", "click_state"}  # not the twin, which does not read it
    with catalog.load_table(HIGH_WATERMARK).transaction() as transaction:
        transaction.set_properties({"touched": "yes"})
    planned.clear()
    daemon.cursors[SENSOR] = None  # a person resets the cursor
    daemon.tick(SENSOR)
    assert {"click_fact", "click_state", "click_twin"} == set(planned)


def test_a_target_is_not_planned_while_a_run_of_it_is_active(
    daemon: InProcessDaemon, catalog: Catalog, clock: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    land_clicks(catalog, [0], landing=0)
    run = start_run(daemon, "core.click_fact", {})
    planned: list[str] = []
    next_session = Planner.next_session

    def noted(planner: Planner, *arguments: object, **named: object) -> object:
        planned.append(planner.target.name)
        return next_session(planner, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Planner, "next_session", noted)

    def requested() -> set[str]:
        requests = daemon.tick(SENSOR).run_requests or ()
        return {key.path[1] for each in requests for key in each.asset_selection or ()}

    for number in (1, 2):
        assert requested() == {"click_twin"}
        land_clicks(catalog, [0], landing=number)
    assert "click_fact" not in planned
    daemon.instance.report_run_failed(run)
    assert requested() == {"click_fact", "click_twin"}
    assert "click_fact" in planned


def test_sessions_that_dagster_shows_are_read_again_after_a_time_or_another_session(
    daemon: InProcessDaemon, catalog: Catalog, clock: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    history = SessionLog.history

    def noted(log: SessionLog, process: str, **named: object) -> object:
        asked.append(process)
        return history(log, process, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(SessionLog, "history", noted)

    def record() -> None:
        commit(Engine(catalog, THREE, clock=clock), click_fact)

    def materialized() -> list[str | None]:
        events = daemon.tick(SENSOR).asset_events
        return [event.partition for event in events if isinstance(event, dg.AssetMaterialization)]

    land_clicks(catalog, [0], landing=0)
    record()
    assert materialized() == [hour_key(START)]
    assert materialized() == []
    asked.clear()
    publish_clicks(catalog, [0], complete_through=0)  # something that the target's evaluation depends on
    land_clicks(catalog, [1], landing=1)
    record()
    assert materialized() == [hour_key(START + 1)]
    assert materialized() == []
    assert asked == [click_fact.table] * 2
    daemon.instance.wipe_assets([dg.AssetKey(["core", "click_fact"])])
    clock.now += timedelta(seconds=601)
    assert set(materialized()) == {hour_key(START), hour_key(START + 1)}


def test_a_target_that_cannot_be_planned_is_named_and_stops_no_other(
    daemon: InProcessDaemon, catalog: Catalog, clock: Hands
) -> None:
    for _ in range(2):
        daemon.tick(SENSOR)
    catalog.drop_table("core.click_fact")
    catalog.drop_table("core.click_state")
    told = str(daemon.tick(SENSOR).skip_message)
    assert "core.click_state: Table core.click_fact is not in the catalog." in told
    land_clicks(catalog, [0], landing=0)
    requests = daemon.tick(SENSOR).run_requests or ()
    assert {request.asset_selection[0].path[1] for request in requests if request.asset_selection} >= {"click_twin"}


def test_a_tick_is_bounded_and_the_next_goes_on(
    daemon: InProcessDaemon, catalog: Catalog, clock: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    land_clicks(catalog, [0], landing=0)
    publish_clicks(catalog, [0], complete_through=0)
    monkeypatch.setattr(sensors, "RUNS_PER_TICK", 1)
    requested = set()
    for _ in range(6):
        found = daemon.tick(SENSOR).run_requests or ()
        assert len(found) <= 1
        for request in found:
            (key,) = request.asset_selection or ()
            requested.add(key.path[1])
            if not [run for run in daemon.instance.get_runs() if key in (run.asset_selection or ())]:
                start_run(daemon, ".".join(key.path), dict(request.tags))
        clock.now += timedelta(seconds=61)
    assert requested == {"click_fact", "click_state", "click_twin"}

    monkeypatch.setattr(sensors, "LOOKS_PER_TICK", 2)
    daemon.cursors[SENSOR] = None
    assert "1 more are looked at by the next tick." in str(daemon.tick(SENSOR).skip_message)


def test_of_targets_that_a_tick_requests_those_with_the_longest_chain_behind_them_come_first(
    catalog: Catalog, clock: Hands
) -> None:
    pipeline = replace(CLICKS, targets=(TWIN, *CLICKS.targets))
    assert pipeline.targets_behind == {"core.click_twin": 0, "core.click_fact": 1, "core.click_state": 0}
    Engine(catalog, pipeline, clock=clock).create_tables()
    land_clicks(catalog, [0], landing=0)
    with in_process_daemon(pipeline, catalog, clock, end=END, timing=TIMING) as daemon:
        requests = daemon.tick(SENSOR).run_requests or ()
    assert [request.asset_selection[0].path[1] for request in requests if request.asset_selection] == [
        "click_fact",
        "click_twin",
    ]


def test_a_paused_target_requests_nothing_until_its_pool_has_a_limit(
    daemon: InProcessDaemon, catalog: Catalog, clock: Hands
) -> None:
    def requested() -> set[str]:
        clock.now += timedelta(seconds=31)  # whether it is still paused is looked at every 30 s
        requests = daemon.tick(SENSOR).run_requests or ()
        return {request.asset_selection[0].path[1] for request in requests if request.asset_selection}

    land_clicks(catalog, [0], landing=0)
    pools = daemon.instance.event_log_storage
    pools.set_concurrency_slots("core.click_fact", 0)
    assert requested() == {"click_twin"}
    told = daemon.tick("click_fact_sensor").skip_message
    assert told == "core.click_fact is paused: the limit of its pool is 0. Set it to 1 to go on."
    pools.set_concurrency_slots("core.click_fact", 1)
    assert requested() == {"click_fact", "click_twin"}

    # A person switched the sensor of one target off, in a home of the version before.
    repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("lake_assets"), "__repository__")
    origin = RemoteInstigatorOrigin(repository, "click_twin_sensor")
    daemon.instance.add_instigator_state(InstigatorState(origin, InstigatorType.SENSOR, InstigatorStatus.STOPPED))
    assert requested() == {"click_fact"}
    pools.set_concurrency_slots("core.click_twin", 1)
    assert requested() == {"click_fact", "click_twin"}
    assert click_state.name == "click_state"


def test_complete_hours_without_rows_count_as_built_and_complete_through_is_shown(
    daemon: InProcessDaemon, catalog: Catalog, clock: Hands
) -> None:
    fact = dg.AssetKey(["core", "click_fact"])

    def reported() -> list[tuple[str, object]]:
        events = [event for event in daemon.tick("click_fact_sensor").asset_events if event.asset_key == fact]
        marks = [event for event in events if isinstance(event, dg.AssetMaterialization)]
        if marks:  # Dagster shows no evaluation that came before the newest materialization
            after = events[events.index(marks[-1]) :]
            assert PENDING_HOURS in [each.check_name for each in after if isinstance(each, dg.AssetCheckEvaluation)]
        moved = [event for event in events if isinstance(event, dg.AssetObservation)]
        shown: list[tuple[str, object]] = []
        for mark in marks:
            rows = mark.metadata.get("dagster/partition_row_count")
            shown.append((str(mark.partition), rows.value if rows else None))
        return shown + [("observed", event.metadata["complete through"].value) for event in moved]

    def session(committed: Committed | None = None) -> None:
        commit(Engine(catalog, THREE, clock=clock), click_fact, committed)

    land_clicks(catalog, [1, 4], landing=4)
    held = Waiting("held", "audit unique_key: 1 repeated", code_version=click_fact.code_version)
    session(Committed(complete_through=START + 4, waiting={START + 2: held}))
    empty: list[tuple[str, object]] = [(hour_key(START + hour), 0) for hour in (0, 3)]
    assert {*empty} <= {*reported()}
    assert daemon.hours_of("core.click_fact") == [0, 1, 3, 4]  # hour 2 is held back
    assert reported() == []

    land_clicks(catalog, [7], landing=6)
    session()
    assert sorted(name for name, _ in reported()) == [hour_key(START + hour) for hour in (5, 6, 7)]
    declare_complete(catalog, THREE, "raw.clicks", START + 7)
    session()
    assert reported() == [("observed", hour_key(START + 7))]  # it moved alone
    assert reported() == []
    daemon.cursors["click_fact_sensor"] = None  # a new process looks at all of it, and finds nothing
    assert reported() == []
