"""All names of Dagster's that are not part of its API. No other module imports one.

Each function checks that the names are as they were in 1.13. If they are not, it raises `Moved`, and the caller lets
Dagster do what it does by itself. What each is worth, in processor time or waiting, is in decision 050.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    from dagster._core.definitions.asset_checks.asset_check_evaluation import (
        AssetCheckEvaluationTargetMaterializationData as AssetCheckEvaluationTargetMaterializationData,
    )
    from dagster._core.errors import DagsterUserCodeUnreachableError as DagsterUserCodeUnreachableError
    from dagster._core.launcher.base import CheckRunHealthResult as CheckRunHealthResult
    from dagster._core.launcher.base import WorkerStatus as WorkerStatus
    from dagster._core.workspace.context import WorkspaceProcessContext as WorkspaceProcessContext
    from dagster._core.workspace.context import WorkspaceRequestContext as WorkspaceRequestContext
    from dagster._core.workspace.load_target import WorkspaceFileTarget as WorkspaceFileTarget
    from dagster._daemon.daemon import DaemonIterator as DaemonIterator
    from dagster._daemon.daemon import SensorDaemon as SensorDaemon
    from dagster._daemon.daemon import SpanMarker as SpanMarker
    from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import (
        QueuedRunCoordinatorDaemon as QueuedRunCoordinatorDaemon,
    )
    from dagster._daemon.utils import DaemonErrorCapture as DaemonErrorCapture
    from dagster._grpc.types import CanCancelExecutionRequest as CanCancelExecutionRequest
    from dagster._grpc.types import CanCancelExecutionResult as CanCancelExecutionResult

CLASSES = {
    "AssetCheckEvaluationTargetMaterializationData": "dagster._core.definitions.asset_checks.asset_check_evaluation",
    "CanCancelExecutionRequest": "dagster._grpc.types",
    "CanCancelExecutionResult": "dagster._grpc.types",
    "CheckRunHealthResult": "dagster._core.launcher.base",
    "DaemonErrorCapture": "dagster._daemon.utils",
    "DaemonIterator": "dagster._daemon.daemon",
    "DagsterUserCodeUnreachableError": "dagster._core.errors",
    "QueuedRunCoordinatorDaemon": "dagster._daemon.run_coordinator.queued_run_coordinator_daemon",
    "SensorDaemon": "dagster._daemon.daemon",
    "SpanMarker": "dagster._daemon.daemon",
    "WorkerStatus": "dagster._core.launcher.base",
    "WorkspaceFileTarget": "dagster._core.workspace.load_target",
    "WorkspaceProcessContext": "dagster._core.workspace.context",
    "WorkspaceRequestContext": "dagster._core.workspace.context",
}
"""Class that others import from here → its module."""

log = logging.getLogger("lake_assets.code_server")


class Moved(Exception):
    """This version of Dagster does not have a name, or has it for something else. It says which."""


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return one of `CLASSES`. Raises `Moved`."""
        if name not in CLASSES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return _name(CLASSES[name], name)


def unknown_version(error: ImportError | Moved) -> str:
    """Return why something cannot be changed, for the log."""
    return f"this version of Dagster is not known: {error}"


def import_definitions(module: str, folder: str | None) -> Any:
    """Import a module as the code server does.

    Args:
        module: Its name.
        folder: The working directory of the code server.
    """
    return _name("dagster._core.code_pointer", "load_python_module")(module, folder)


def lazy_definitions() -> Any:
    """Return the class of what `@dagster.definitions` makes of a function.

    Raises:
        Moved: It is not where it was.
    """
    return _name("dagster.components.definitions", "LazyDefinitions")


def use_context(context: BaseContext) -> None:
    """Make code servers of this process start runs by a context of `multiprocessing`.

    Raises:
        Moved: The code server does not keep its context where it did.
    """
    server = _module("dagster._grpc.server")
    known: Any = _name(server.__name__, "DagsterApiServer")
    if "_mp_ctx" not in known.__init__.__code__.co_names:
        raise Moved("dagster._grpc.server.DagsterApiServer._mp_ctx")
    if not hasattr(known, "_check_for_orphaned_runs"):
        raise Moved("dagster._grpc.server.DagsterApiServer._check_for_orphaned_runs")

    class ForkingApiServer(known):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self._mp_ctx = context

        def _check_for_orphaned_runs(self) -> None:
            # Dagster's thread ends with an error, for example while the disk is full, and runs that died then would
            # count as started for ever.
            try:
                super()._check_for_orphaned_runs()
            except Exception:
                log.exception("Runs that died could not be reported. It is tried again.")

    server.DagsterApiServer = ForkingApiServer


def code_server_command() -> Callable[[Sequence[str]], None]:
    """Return `dagster api grpc` as a function of its arguments."""
    from dagster._cli import api

    return lambda arguments: api.grpc_command.main(args=list(arguments), prog_name="dagster api grpc")


def daemon_command() -> Callable[[Sequence[str]], None]:
    """Return `dagster-daemon run` as a function of its arguments."""
    from dagster._daemon import cli

    return lambda arguments: cli.run_command.main(args=list(arguments), prog_name="dagster-daemon run")


Replace = Callable[[Any, Any], Any]
"""Takes a daemon and its instance, and returns the daemon to run in its place."""


def use_daemons(replace: Replace) -> None:
    """Make `dagster-daemon run` of this process run other daemons in place of Dagster's.

    Raises:
        Moved: The command does not create its daemons as it did.
    """
    cli = _module("dagster._daemon.cli")
    create_daemons_from_instance = _name("dagster._daemon.controller", "create_daemons_from_instance")
    daemon_controller_from_instance: Any = _name("dagster._daemon.controller", "daemon_controller_from_instance")
    if "gen_daemons" not in inspect.signature(daemon_controller_from_instance).parameters:
        raise Moved("dagster._daemon.controller.daemon_controller_from_instance(gen_daemons)")
    used: Any = getattr(cli, "daemon_controller_from_instance", None)
    if used is not daemon_controller_from_instance:
        raise Moved("dagster._daemon.cli.daemon_controller_from_instance")

    def replaced(instance: Any) -> Iterable[Any]:
        return [replace(daemon, instance) for daemon in create_daemons_from_instance(instance)]

    vars(cli)["daemon_controller_from_instance"] = partial(daemon_controller_from_instance, gen_daemons=replaced)


def use_early_ticks(is_early: Callable[[int, float], bool]) -> None:
    """Make the daemon of this process evaluate a sensor before its minimum interval has passed.

    Args:
        is_early: Takes the minimum interval of a sensor and the time since its last tick began, both in seconds, and
            returns whether it is evaluated although less than that has passed.

    Raises:
        Moved: The daemon does not ask for the interval as it did.
    """
    elapsed_seconds: Any = _name("dagster._daemon.sensor", "get_elapsed")

    def change(known: Any) -> Any:
        if list(inspect.signature(known).parameters)[:2] != ["state", "remote_sensor"]:
            raise Moved("dagster._daemon.sensor.is_under_min_interval(state, remote_sensor)")
        if list(inspect.signature(elapsed_seconds).parameters) != ["state"]:
            raise Moved("dagster._daemon.sensor.get_elapsed(state)")

        def is_under_min_interval(state: Any, remote_sensor: Any, *arguments: Any, **named: Any) -> bool:
            elapsed = elapsed_seconds(state)
            if elapsed is not None and is_early(remote_sensor.min_interval_seconds, elapsed):
                return False
            return bool(known(state, remote_sensor, *arguments, **named))

        return is_under_min_interval

    _change(_module("dagster._daemon.sensor"), "is_under_min_interval", change)


def use_time_zones() -> None:
    """Make partition mappings of time windows map between time zones: hours of UTC to the days of a place.

    Dagster refuses that. The windows are mapped as hours of the other zone, so each has to begin at a full hour there.
    Code server, daemon and web server all map. If this version of Dagster is not known, none of them does, and such a
    table depends on all partitions of its sources.
    """
    try:
        _use_time_zones()
    except Moved as error:
        log.warning("A backfill of hours asks for all days of other time zones: %s.", unknown_version(error))


def _use_time_zones() -> None:
    definitions = _module("dagster")
    mapping: Any = _name("dagster", "TimeWindowPartitionMapping")
    windows: Any = _name("dagster._core.definitions.partitions.subset.time_window", "TimeWindowPartitionsSubset")

    def change_check(known: Any) -> Any:
        if list(inspect.signature(known).parameters)[1:] != ["upstream_partitions_def", "downstream_partitions_def"]:
            raise Moved("dagster.TimeWindowPartitionMapping.validate_partition_mapping")

        def validate(self: Any, upstream_partitions_def: Any, downstream_partitions_def: Any) -> None:
            known(self, upstream_partitions_def, upstream_partitions_def)
            known(self, downstream_partitions_def, downstream_partitions_def)

        return validate

    def change_map(known: Any) -> Any:
        named = ["from_partitions_def", "to_partitions_def", "from_partitions_subset"]
        if list(inspect.signature(known).parameters)[1:4] != named:
            raise Moved("dagster.TimeWindowPartitionMapping._map_partitions")

        def map_partitions(
            self: Any, from_partitions_def: Any, to_partitions_def: Any, from_partitions_subset: Any, **others: Any
        ) -> Any:
            zone = to_partitions_def.timezone
            if from_partitions_def.timezone != zone:
                start = from_partitions_def.start.astimezone(ZoneInfo(zone))
                from_partitions_def = definitions.HourlyPartitionsDefinition(start, timezone=zone)
                included = [each.to_public_time_window() for each in from_partitions_subset.included_time_windows]
                from_partitions_subset = windows(from_partitions_def, None, included)
            return known(self, from_partitions_def, to_partitions_def, from_partitions_subset, **others)

        return map_partitions

    _change(mapping, "_map_partitions", change_map)
    _change(mapping, "validate_partition_mapping", change_check)


STORAGE = "dagster._core.storage"

SQLITE_STORAGES = (
    f"{STORAGE}.event_log.sqlite.sqlite_event_log",
    f"{STORAGE}.runs.sqlite.sqlite_run_storage",
    f"{STORAGE}.schedules.sqlite.sqlite_schedule_storage",
)
"""Modules that create an engine of SQLAlchemy for each connection."""

Change = Callable[[Any], Any]
"""Takes what Dagster uses, and returns what it shall use in its place."""


def use_engines(change: Change) -> None:
    """Make Dagster's SQLite storages create engines by another function. `change` gets SQLAlchemy's.

    Raises:
        Moved: A storage does not create its engines as it did.
    """
    for name in SQLITE_STORAGES:
        _change(_module(name), "create_engine", change)


def use_scripts(change: Change) -> None:
    """Make Dagster and alembic find the scripts of migrations by another class. `change` gets `ScriptDirectory`.

    Raises:
        Moved: They do not find them as they did.
    """
    for name in (f"{STORAGE}.sql", "alembic.command"):
        _change(_module(name), "ScriptDirectory", change)


def migrations() -> tuple[Any, Any]:
    """Return the configuration of alembic that the storages use, and Dagster's class for the scripts.

    Raises:
        Moved: Dagster does not have them where it did.
    """
    read = _name(f"{STORAGE}.sql", "get_alembic_config")
    return read(_module(SQLITE_STORAGES[0]).__file__), _name(f"{STORAGE}.sql", "ScriptDirectory")


def use_mirror(mirror: Callable[[Any, str], Any]) -> None:
    """Make runs capture the output of a step by another context manager. It gets the stream and the path of a file.

    Raises:
        Moved: Dagster does not capture it as it did.
    """
    _change(_module(f"{STORAGE}.local_compute_log_manager"), "mirror_stream_to_file", lambda _: mirror)


@contextmanager
def redirected(stream: Any, path: Path) -> Iterator[None]:
    """Redirect a stream of this process, with the output of its children, to a file that is appended to."""
    from dagster._core.execution.compute_logs import redirect_to_file

    with redirect_to_file(stream, str(path)):
        yield


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise Moved(str(error)) from error


def _name(module: str, name: str) -> Any:
    found = getattr(_module(module), name, None)
    if found is None:
        raise Moved(f"{module}.{name}")
    return found


def _change(owner: Any, name: str, change: Change) -> None:
    """Replace an attribute of a module or a class by what `change` makes of it."""
    if owner is None or name not in vars(owner):
        raise Moved(f"{getattr(owner, '__name__', owner)}.{name}")
    setattr(owner, name, change(getattr(owner, name)))
