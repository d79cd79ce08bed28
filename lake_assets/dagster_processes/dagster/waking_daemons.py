"""Two of Dagster's daemons whose loops go on when files were written: the one of sensors, and the one of the run queue.

The base classes are private to Dagster. `daemon.py` runs Dagster's own daemons if they cannot be imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

from dagster import DagsterInstance
from dagster._daemon.daemon import DaemonIterator, SensorDaemon, SpanMarker
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon
from dagster._daemon.utils import DaemonErrorCapture

from lake_assets.connections.addresses import dagster_folder
from lake_assets.connections.catalog import watched_files
from lake_assets.dagster_processes.file_changes import FileChanges, FollowingChanges, Pace, WakingStop
from lake_assets.settings import Settings

QUEUE_SECONDS = 5.0
"""Time between two looks at the queue while no run changes."""

RUN_SECONDS = 120.0
"""For this long after a commit, a change of a run also wakes the sensors: another session may have waited for that run.

Later, changes of runs do not wake them. When no run is at work, only the daemon writes to that table, every 30 s.
"""

QUEUE_PACE = Pace(least_seconds=0.1, awake_seconds=0.5)
SENSOR_PACE = Pace()


class WakingSensorDaemon(SensorDaemon):
    """Looks at sensors at once when one of the files was written."""

    def __init__(self, sensor_settings: Any, catalog: Sequence[Path], runs: Sequence[Path]) -> None:
        super().__init__(sensor_settings)
        self._catalog = catalog
        self._runs = runs

    def core_loop(self, workspace_process_context: Any, shutdown_event: Event) -> DaemonIterator:
        """Run Dagster's loop. It waits for the event that ends it, for 5 s; this one returns earlier."""
        changes = FollowingChanges(FileChanges(self._catalog), FileChanges(self._runs), seconds=RUN_SECONDS)
        stop: Any = WakingStop(shutdown_event, changes, SENSOR_PACE)
        yield from super().core_loop(workspace_process_context, stop)


class WakingQueueDaemon(QueuedRunCoordinatorDaemon):
    """Launches queued runs at once when the table of runs was written."""

    def __init__(self, runs: Sequence[Path]) -> None:
        super().__init__(interval_seconds=QUEUE_SECONDS)
        self._runs = runs

    def core_loop(self, workspace_process_context: Any, shutdown_event: Event) -> DaemonIterator:
        """Launch what is queued again and again, as `IntervalDaemon.core_loop` does, but wait for a change."""
        stop = WakingStop(shutdown_event, FileChanges(self._runs), QUEUE_PACE)
        while True:
            yield SpanMarker.START_SPAN
            try:
                yield from self.run_iteration(workspace_process_context)
            except Exception:
                yield DaemonErrorCapture.process_exception(sys.exc_info(), self._logger, "Caught an error")
            yield SpanMarker.END_SPAN
            stop.wait(self.interval_seconds)
            yield None


def waking(daemon: Any, instance: DagsterInstance, chosen: Settings) -> Any:
    """Return the daemon to run in place of one of Dagster's.

    Args:
        daemon: One that Dagster would run.
        instance: Its instance.
        chosen: Name the catalog and the data directory.

    Returns:
        The same daemon if it is another one, or if what it looks at is not in files of this machine.
    """
    runs = run_files(chosen)
    catalog = watched_files(chosen)
    if not runs[0].exists():
        return daemon
    if type(daemon) is SensorDaemon and catalog is not None:
        return WakingSensorDaemon(instance.get_sensor_settings(), catalog, runs)
    if type(daemon) is QueuedRunCoordinatorDaemon:
        return WakingQueueDaemon(runs)
    return daemon


def run_files(chosen: Settings) -> list[Path]:
    """Return the files of Dagster's table of runs in the data directory. The second one has the newest commits."""
    file = dagster_folder(chosen.home) / "history" / "runs.db"
    return [file, file.with_name("runs.db-wal")]
