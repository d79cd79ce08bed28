"""Two of Dagster's daemons whose loops go on when something was written: that of sensors, and that of the run queue.

The base classes are private to Dagster. `daemon.py` runs Dagster's own daemons if they cannot be imported.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from dagster import DagsterInstance

from lake_assets.connections.addresses import dagster_folder
from lake_assets.connections.catalog import ask_catalog, watched_files
from lake_assets.connections.dagster import (
    DaemonErrorCapture,
    DaemonIterator,
    Moved,
    QueuedRunCoordinatorDaemon,
    SensorDaemon,
    SpanMarker,
    unknown_version,
    use_early_ticks,
)
from lake_assets.dagster_processes.file_changes import (
    Changes,
    FileChanges,
    FollowingChanges,
    Pace,
    PolledChanges,
    WakingStop,
)
from lake_assets.settings import Settings

log = logging.getLogger("lake_assets.daemon")

QUEUE_SECONDS = 5.0
"""Time between two looks at the queue while no run changes."""

RUN_SECONDS = 120.0
"""For this long after a commit, a change of a run also wakes the sensors: another session may have waited for that run.

Later, changes of runs do not wake them. When no run is at work, only the daemon writes to that table, every 30 s.
"""

LEAST_INTERVAL_SECONDS = 1
"""The least minimum interval that Dagster lets a sensor have. A sensor with it is evaluated earlier after a change."""

EARLY_SECONDS = 0.3
"""Least time between the beginnings of two ticks of such a sensor."""

SERVER_SECONDS = 0.5
"""Least time between two questions to a server whether something was written."""

QUEUE_PACE = Pace(least_seconds=0.1, awake_seconds=0.5)
SENSOR_PACE = Pace()

OpenChanges = Callable[[], Changes]
"""Called when a loop begins: only what is written after that wakes it."""


class WakingSensorDaemon(SensorDaemon):
    """Looks at sensors at once when the catalog was written."""

    def __init__(self, sensor_settings: Any, catalog: OpenChanges, runs: OpenChanges) -> None:
        super().__init__(sensor_settings)
        self._catalog = catalog
        self._runs = runs
        self._stop: WakingStop | None = None

    def core_loop(self, workspace_process_context: Any, shutdown_event: Event) -> DaemonIterator:
        """Run Dagster's loop. It waits for the event that ends it, for 5 s; this one returns earlier."""
        changes = FollowingChanges(self._catalog(), self._runs(), seconds=RUN_SECONDS)
        stop: Any = WakingStop(shutdown_event, changes, SENSOR_PACE)
        self._stop = stop
        yield from super().core_loop(workspace_process_context, stop)

    def is_early(self, min_interval_seconds: int, elapsed: float) -> bool:
        """Return whether a sensor is evaluated before its minimum interval has passed: something has changed meanwhile.

        Args:
            min_interval_seconds: The sensor's.
            elapsed: Seconds since its last tick began.
        """
        changed = None if self._stop is None else self._stop.since_change()
        can_be = min_interval_seconds <= LEAST_INTERVAL_SECONDS and elapsed >= EARLY_SECONDS
        return can_be and changed is not None and changed <= elapsed


class WakingQueueDaemon(QueuedRunCoordinatorDaemon):
    """Launches queued runs at once when the table of runs was written."""

    def __init__(self, runs: OpenChanges) -> None:
        super().__init__(interval_seconds=QUEUE_SECONDS)
        self._runs = runs

    def core_loop(self, workspace_process_context: Any, shutdown_event: Event) -> DaemonIterator:
        """Launch what is queued again and again, as `IntervalDaemon.core_loop` does, but wait for a change."""
        stop = WakingStop(shutdown_event, self._runs(), QUEUE_PACE)
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
        The same daemon if it is another one, or if what it looks at cannot be watched.
    """
    runs = run_changes(chosen, instance)
    catalog = catalog_changes(chosen)
    if type(daemon) is SensorDaemon and catalog is not None:
        sensors = WakingSensorDaemon(instance.get_sensor_settings(), catalog, runs)
        _use_early_ticks(sensors)
        return sensors
    if type(daemon) is QueuedRunCoordinatorDaemon:
        return WakingQueueDaemon(runs)
    return daemon


def _use_early_ticks(sensors: WakingSensorDaemon) -> None:
    try:
        use_early_ticks(sensors.is_early)
    except Moved as error:
        log.warning("Sensors are evaluated at most once a second: %s.", unknown_version(error))


def catalog_changes(chosen: Settings) -> OpenChanges | None:
    """Return how to watch the catalog; None if it is a REST server, which has no cheap answer for all tables."""
    files, ask = watched_files(chosen), ask_catalog(chosen)
    if files is not None:
        return partial(FileChanges, files)
    return None if ask is None else partial(PolledChanges, ask, seconds=SERVER_SECONDS)


def run_changes(chosen: Settings, instance: DagsterInstance) -> OpenChanges:
    """Return how to watch Dagster's runs: their files in the data directory, or what a server says."""
    files = run_files(chosen)
    if chosen.dagster_uri is None and files[0].exists():
        return partial(FileChanges, files)
    return partial(PolledChanges, partial(newest_change, instance), seconds=SERVER_SECONDS)


def newest_change(instance: DagsterInstance) -> Hashable:
    """Return the run that changed last, and when."""
    records = instance.get_run_records(limit=1, order_by="update_timestamp")
    return tuple((record.dagster_run.run_id, record.update_timestamp) for record in records)


def run_files(chosen: Settings) -> list[Path]:
    """Return the files of Dagster's table of runs in the data directory. The second one has the newest commits."""
    file = dagster_folder(chosen.home) / "history" / "runs.db"
    return [file, file.with_name("runs.db-wal")]
