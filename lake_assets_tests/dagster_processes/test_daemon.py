"""Dagster's loops under the daemon of `lake up`: they go on when files are written, long before their usual time."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteInstigatorOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, SensorInstigatorData
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster._daemon import controller, sensor
from dagster._daemon.daemon import MonitoringDaemon, SensorDaemon, SpanMarker
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon
from pydantic import SecretStr

from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.dagster import Moved, use_early_ticks
from lake_assets.dagster_processes import waking_daemons
from lake_assets.dagster_processes.waking_daemons import (
    EARLY_SECONDS,
    FileChanges,
    Pace,
    WakingQueueDaemon,
    WakingSensorDaemon,
    WakingStop,
    waking,
)
from lake_assets.services.servers import dagster_home
from lake_assets.settings import Settings

PATIENCE_SECONDS = 120
LONG_SECONDS = 3600
CONFIGURATION = "telemetry: {enabled: false}\nrun_coordinator: {module: dagster, class: QueuedRunCoordinator}\n"


@pytest.fixture(autouse=True)
def dagsters_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give Dagster its function back that a daemon of `lake up` has replaced."""
    monkeypatch.setattr(sensor, "is_under_min_interval", sensor.is_under_min_interval)


@pytest.fixture
def chosen(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


@pytest.fixture
def instance(chosen: Settings) -> Iterator[dg.DagsterInstance]:
    folder = dagster_home(chosen)
    folder.mkdir()
    (folder / "dagster.yaml").write_text(CONFIGURATION)
    with dg.DagsterInstance.from_config(str(folder)) as found:
        yield found


def rounds_until_second(daemon: Any, instance: dg.DagsterInstance, write: Callable[[], object]) -> int:
    """Run the loop of a daemon. Write after its first round; return how many rounds begin within the patience.

    One means that the loop was still waiting.
    """
    began: list[object] = []
    second = threading.Event()
    end = threading.Event()

    def loop(process: WorkspaceProcessContext) -> None:
        for step in daemon.core_loop(process, end):
            if step is SpanMarker.START_SPAN:
                began.append(step)
            if step is SpanMarker.END_SPAN:
                write()
            if len(began) == 2 or end.is_set():
                second.set()
                return

    with WorkspaceProcessContext(instance, EmptyWorkspaceTarget()) as process, daemon:
        thread = threading.Thread(target=loop, args=(process,), daemon=True)
        thread.start()
        second.wait(PATIENCE_SECONDS)
        end.set()
        thread.join(PATIENCE_SECONDS)
    return len(began)


def test_g21_a_commit_wakes_the_sensors(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensor, "MIN_INTERVAL_LOOP_TIME", LONG_SECONDS)
    catalog = tmp_path / "catalog.db"
    daemon = WakingSensorDaemon({}, partial(FileChanges, [catalog]), partial(FileChanges, []))
    assert rounds_until_second(daemon, instance, partial(catalog.write_text, "commit")) == 2


def test_a_commit_to_a_catalog_on_a_server_wakes_the_sensors(
    chosen: Settings, instance: dg.DagsterInstance, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensor, "MIN_INTERVAL_LOOP_TIME", LONG_SECONDS)
    elsewhere = chosen.model_copy(update={"catalog_uri": database})
    catalog = open_catalog(elsewhere)
    catalog.create_namespace("raw")
    daemon = waking(SensorDaemon({}), instance, elsewhere)
    commit = partial(catalog.create_table_if_not_exists, "raw.signups", pa.schema({"id": pa.int64()}))
    assert rounds_until_second(daemon, instance, commit) == 2


@dataclass(frozen=True)
class Interval:
    """What the daemon asks a sensor for."""

    min_interval_seconds: int


def is_left_out(interval: int, *, seconds_since_tick: float) -> bool:
    began = time.time() - seconds_since_tick
    origin: Any = RemoteInstigatorOrigin(
        RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("here"), "__repository__"), "sessions_sensor"
    )
    data = SensorInstigatorData(min_interval=interval, last_tick_start_timestamp=began)
    state = InstigatorState(origin, InstigatorType.SENSOR, InstigatorStatus.RUNNING, data)
    return bool(vars(sensor)["is_under_min_interval"](state, Interval(interval)))


def test_after_a_commit_a_sensor_does_not_wait_for_the_rest_of_its_second(
    tmp_path: Path, chosen: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a second, for an hour: so it does not count how long the test takes."""
    monkeypatch.setattr(waking_daemons, "LEAST_INTERVAL_SECONDS", LONG_SECONDS)
    found: Any = waking(SensorDaemon({}), instance, chosen)
    assert type(found) is WakingSensorDaemon
    assert is_left_out(1, seconds_since_tick=-600)  # its tick is of the future, as after a clock was set back
    assert is_left_out(LONG_SECONDS, seconds_since_tick=600)  # nothing has changed
    assert rounds_until_second(found, instance, partial((chosen.home / "catalog.db").write_text, "commit")) == 2
    assert not is_left_out(LONG_SECONDS, seconds_since_tick=600)
    assert is_left_out(LONG_SECONDS + 1, seconds_since_tick=600)  # a longer interval was asked for


@pytest.mark.parametrize("name", ["is_under_min_interval", "get_elapsed"])
def test_a_function_of_the_daemon_that_takes_something_else_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensor, name, lambda other: other)
    with pytest.raises(Moved, match=name):
        use_early_ticks(lambda interval, elapsed: True)


@pytest.mark.parametrize(
    ("interval", "elapsed", "since_change", "expected"),
    [
        (1, 0.9, 0.0, True),
        (1, EARLY_SECONDS, 0.0, True),
        (1, EARLY_SECONDS / 2, 0.0, False),
        (1, 0.9, 0.95, False),
        (1, 0.9, None, False),
        (2, 1.9, 0.0, False),
    ],
)
def test_only_a_change_since_its_last_tick_makes_a_sensor_early(
    interval: int, elapsed: float, since_change: float | None, expected: bool
) -> None:
    class Stopped(WakingStop):
        def since_change(self) -> float | None:
            return since_change

    daemon = WakingSensorDaemon({}, partial(FileChanges, []), partial(FileChanges, []))
    daemon._stop = Stopped(threading.Event(), FileChanges([]), Pace())
    assert daemon.is_early(interval, elapsed) == expected


def test_a_run_wakes_the_queue(tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking_daemons, "QUEUE_SECONDS", LONG_SECONDS)
    runs = tmp_path / "runs.db"
    daemon = WakingQueueDaemon(partial(FileChanges, [runs]))
    assert rounds_until_second(daemon, instance, partial(runs.write_text, "run")) == 2


def test_a_run_on_a_server_wakes_the_queue(
    chosen: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waking_daemons, "QUEUE_SECONDS", LONG_SECONDS)
    elsewhere = chosen.model_copy(update={"dagster_uri": SecretStr("postgresql://somewhere/dagster")})
    daemon = waking(QueuedRunCoordinatorDaemon(interval_seconds=1), instance, elsewhere)
    assert type(daemon) is WakingQueueDaemon

    @dg.job
    def empty() -> None:
        return

    assert rounds_until_second(daemon, instance, partial(instance.create_run_for_job, empty)) == 2


def test_the_sensors_and_the_queue_are_replaced(chosen: Settings, instance: dg.DagsterInstance) -> None:
    own = controller.create_daemons_from_instance(instance)
    chosen_daemons = [waking(daemon, instance, chosen) for daemon in own]
    assert {type(daemon) for daemon in own} >= {SensorDaemon, QueuedRunCoordinatorDaemon}
    replaced = {type(daemon): type(found) for daemon, found in zip(own, chosen_daemons, strict=True)}
    assert replaced[SensorDaemon] is WakingSensorDaemon
    assert replaced[QueuedRunCoordinatorDaemon] is WakingQueueDaemon
    kept = [found is daemon for daemon, found in zip(own, chosen_daemons, strict=True)]
    assert kept.count(False) == 2


def test_what_can_not_be_watched_is_looked_at_as_dagster_does(chosen: Settings, instance: dg.DagsterInstance) -> None:
    sensors = SensorDaemon({})
    remote = chosen.model_copy(update={"catalog_uri": "http://127.0.0.1:1"})
    assert waking(sensors, instance, remote) is sensors
    monitoring = MonitoringDaemon(interval_seconds=10)
    assert waking(monitoring, instance, chosen) is monitoring


REPORT = """
from dagster._daemon import cli, controller
{statements}
from lake_assets.dagster_processes.daemon import use_waking_daemons
print(use_waking_daemons())
print(cli.daemon_controller_from_instance is controller.daemon_controller_from_instance)
"""


@pytest.mark.parametrize(
    ("statements", "reason", "is_dagsters"),
    [
        pytest.param("", "", True, id="known"),
        pytest.param(
            "controller.daemon_controller_from_instance = lambda instance: None",
            "this version of Dagster is not known: "
            "dagster._daemon.controller.daemon_controller_from_instance(gen_daemons)",
            False,
            id="arguments",
        ),
        pytest.param(
            "cli.daemon_controller_from_instance = None",
            "this version of Dagster is not known: dagster._daemon.cli.daemon_controller_from_instance",
            False,
            id="command",
        ),
        pytest.param(
            "from dagster._daemon import daemon\ndel daemon.SensorDaemon",
            "this version of Dagster is not known: dagster._daemon.daemon.SensorDaemon",
            True,
            id="class",
        ),
    ],
)
def test_a_dagster_that_is_not_known_runs_its_own_daemons(statements: str, reason: str, is_dagsters: bool) -> None:
    program = REPORT.format(statements=statements)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found, is_unchanged = done.stdout.splitlines()
    assert found.startswith(reason) if reason else found == ""
    assert (is_unchanged == "True") == (is_dagsters and bool(reason))
