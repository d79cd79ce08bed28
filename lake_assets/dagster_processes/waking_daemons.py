"""Two of Dagster's daemons whose loops go on when something was written: that of sensors, and that of the run queue.

The base classes are private to Dagster. `daemon.py` runs Dagster's own daemons if they cannot be imported.

A loop that looks every few seconds looks at once when a file was written or a server changed. A look at a file costs
one `stat`. It is taken ten times a second, which needs no library and works on every file system. A server is asked
less often.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Protocol

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
from lake_assets.settings import Settings

LOOK_SECONDS = 0.1
"""Time between two looks at the files."""


class Stop(Protocol):
    """What ends a loop, such as a `threading.Event`."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the loop shall end; return whether it shall."""
        ...

    def is_set(self) -> bool:
        """Return whether the loop shall end."""
        ...


@dataclass(frozen=True)
class Pace:
    """How often a loop goes on.

    Attributes:
        least_seconds: Least time between two rounds.
        awake_seconds: For this long after a change, the loop runs every `least_seconds`. The effects of a change can
            become due a little later, and changes often come in groups.
    """

    least_seconds: float = 0.25
    awake_seconds: float = 3.0

    def goes_on(self, *, waited: float, since_change: float | None) -> bool:
        """Return whether the loop goes on before its usual time.

        Args:
            waited: Seconds since the last round.
            since_change: Seconds since the last change; None if there was none.
        """
        if since_change is None or waited < self.least_seconds:
            return False
        return since_change <= self.awake_seconds or since_change <= waited


class Changes(Protocol):
    """Something that may have changed since the last question."""

    def seen(self) -> bool:
        """Return whether it changed since the last call."""
        ...


class FileChanges:
    """Whether any of some files was written since the last question.

    A file may be missing. An empty file counts as missing: SQLite creates and removes an empty log for each reader.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)
        self._seen = self._states()

    def seen(self) -> bool:
        """Return whether a file was written, created or removed since the last call."""
        before, self._seen = self._seen, self._states()
        return before != self._seen

    def _states(self) -> list[tuple[int, int, int] | None]:
        return [_state(file) for file in self._files]


class PolledChanges:
    """Whether the answer to a question has changed since the last one, such as what a database has.

    If there is no answer, nothing has changed: what depends on the server reports that it is gone.

    Args:
        ask: Returns the answer. It may raise any error.
        seconds: Least time between two questions. The first one is asked at once.
        clock: Returns seconds.
    """

    def __init__(
        self, ask: Callable[[], Hashable], *, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._seconds = seconds
        self._clock = clock
        self._asked_at = clock()
        self._answers: set[Hashable] = set()
        self._has_changed()

    def seen(self) -> bool:
        """Return whether the answer differs from the last one. The first answer does not count."""
        now = self._clock()
        if now - self._asked_at < self._seconds:
            return False
        self._asked_at = now
        return self._has_changed()

    def _has_changed(self) -> bool:
        try:
            answers = {self._ask()}
        except Exception:
            return False
        before, self._answers = self._answers, answers
        return bool(before) and before != answers


class FollowingChanges:
    """Changes of one kind, and those of another kind that follow them: others of that kind do not count.

    Args:
        first: Changes that count.
        second: Changes that count for some seconds after the newest of the first kind.
        seconds: How long that is.
        clock: Returns seconds.
    """

    def __init__(
        self, first: Changes, second: Changes, *, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._first = first
        self._second = second
        self._seconds = seconds
        self._clock = clock
        self._at: float | None = None

    def seen(self) -> bool:
        """Return whether there was a change that counts since the last call."""
        first, second = self._first.seen(), self._second.seen()
        now = self._clock()
        if first:
            self._at = now
        follows = self._at is not None and now - self._at <= self._seconds
        return first or (second and follows)


class WakingStop:
    """A stop whose `wait` also returns when something changes, so that the loop that waits for it goes on.

    It returns before its time only as often as the pace allows.
    """

    def __init__(
        self,
        stop: Stop,
        changes: Changes,
        pace: Pace,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stop = stop
        self._changes = changes
        self._pace = pace
        self._clock = clock
        self._changed_at: float | None = None

    def is_set(self) -> bool:
        """Return whether the loop shall end."""
        return self._stop.is_set()

    def since_change(self) -> float | None:
        """Return the seconds since a wait has seen the last change; None if none has seen one."""
        return None if self._changed_at is None else self._clock() - self._changed_at

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the loop shall end, it is time, or something has changed. Return whether the loop shall end."""
        began = self._clock()
        while not self._stop.is_set():
            now = self._clock()
            if self._changes.seen():
                self._changed_at = now
            is_time = timeout is not None and now - began >= timeout
            if is_time or self._pace.goes_on(waited=now - began, since_change=self.since_change()):
                return False
            self._stop.wait(LOOK_SECONDS)
        return True


def _state(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if found.st_size else None


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
