"""Dagster's loops under the daemon of `lake up`: they go on when files are written, long before their usual time."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster._daemon import controller, sensor
from dagster._daemon.daemon import MonitoringDaemon, SensorDaemon, SpanMarker
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon

from lake_assets.dagster_processes.dagster import waking_daemons
from lake_assets.dagster_processes.dagster.waking_daemons import WakingQueueDaemon, WakingSensorDaemon, waking
from lake_assets.services.dagster_services import dagster_home
from lake_assets.settings import Settings

PATIENCE_SECONDS = 120
LONG_SECONDS = 3600
CONFIGURATION = "telemetry: {enabled: false}\nrun_coordinator: {module: dagster, class: QueuedRunCoordinator}\n"


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


def rounds_until_second(daemon: Any, instance: dg.DagsterInstance, written: Path) -> int:
    """Run the loop of a daemon. Write a file after its first round; return how many rounds begin within the patience.

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
                written.write_text(f"commit {len(began)}")
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
    daemon = WakingSensorDaemon({}, [catalog], [])
    assert rounds_until_second(daemon, instance, catalog) == 2


def test_a_run_wakes_the_queue(tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking_daemons, "QUEUE_SECONDS", LONG_SECONDS)
    runs = tmp_path / "runs.db"
    assert rounds_until_second(WakingQueueDaemon([runs]), instance, runs) == 2


def test_the_sensors_and_the_queue_are_replaced(chosen: Settings, instance: dg.DagsterInstance) -> None:
    own = controller.create_daemons_from_instance(instance)
    chosen_daemons = [waking(daemon, instance, chosen) for daemon in own]
    assert {type(daemon) for daemon in own} >= {SensorDaemon, QueuedRunCoordinatorDaemon}
    replaced = {type(daemon): type(found) for daemon, found in zip(own, chosen_daemons, strict=True)}
    assert replaced[SensorDaemon] is WakingSensorDaemon
    assert replaced[QueuedRunCoordinatorDaemon] is WakingQueueDaemon
    kept = [found is daemon for daemon, found in zip(own, chosen_daemons, strict=True)]
    assert kept.count(False) == 2


def test_what_is_in_no_file_here_is_looked_at_as_dagster_does(
    chosen: Settings, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    sensors = SensorDaemon({})
    remote = chosen.model_copy(update={"catalog_uri": "http://127.0.0.1:1"})
    assert waking(sensors, instance, remote) is sensors
    queue = QueuedRunCoordinatorDaemon(interval_seconds=1)
    elsewhere = chosen.model_copy(update={"home": tmp_path / "without-runs"})
    assert waking(queue, instance, elsewhere) is queue
    monitoring = MonitoringDaemon(interval_seconds=10)
    assert waking(monitoring, instance, chosen) is monitoring


REPORT = """
from dagster._daemon import cli, controller
{statements}
from lake_assets.dagster_processes.dagster.daemon import use_waking_daemons
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
            "this version of Dagster is not known: cannot import name 'SensorDaemon'",
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
