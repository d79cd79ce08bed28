"""What groups of commands share: options, connections that commands open, and errors as people read them."""

from __future__ import annotations

import os
import shlex
import signal
import stat
import sys
import threading
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from dotenv import dotenv_values

from lake_assets.base.described import describe, has_details
from lake_assets.connections.addresses import RESTORING_FOLDER
from lake_assets.connections.catalog import check_home
from lake_assets.errors import ErrorText, StoredStateError, UsageError
from lake_assets.settings import (
    ENVIRONMENT_FILE,
    OF_TESTS,
    Settings,
    home_directory,
    is_passed,
    settings,
    variable_name,
)

if TYPE_CHECKING:
    from pydantic import ValidationError

    from lake_assets.incremental.engine.engine import Engine
    from lake_assets.incremental.operations.health import Problem

MAX_BYTES = 5 << 20
"""Size at which a log is replaced; the one before it is kept as `errors.log.1`."""

OWNER_ONLY = 0o600
"""Tracebacks may contain values of rows."""


def show_error(error: BaseException, home: Path) -> None:
    """Print an error. If the two lines may not be all there is to know, its traceback is logged."""
    typer.echo(f"Error: {describe(error)}", err=True)
    if has_details(error):
        show_log(log_error(error, home))


def log_error(error: BaseException, home: Path) -> Path | None:
    """Append the traceback of an error to the log. Return the path of the log; None if it cannot be written."""
    path = home / "logs" / "errors.log"
    command = " ".join(["lake", *sys.argv[1:2]])
    lines = traceback.format_exception(error)
    text = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC {command}\n{''.join(lines)}\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > MAX_BYTES:
            path.replace(path.with_suffix(".log.1"))
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, OWNER_ONLY)
        with os.fdopen(file, "a", encoding="utf-8") as opened:
            opened.write(text)
    except OSError:
        return None
    return path


def show_log(path: Path | None) -> None:
    """Print the path of the log, dimmed."""
    if path is not None:
        typer.secho(f"  Details: {path}", dim=True, err=True)


def show_failures(failures: Iterable[object]) -> None:
    """Print the failures of targets, two lines each, and a text that several targets have once."""
    for text in dict.fromkeys(map(str, failures)):
        typer.echo(f"Error: {text}", err=True)


def show_warning(text: ErrorText) -> None:
    """Print a warning."""
    typer.secho(f"Warning: {text}", fg="yellow", err=True)


@contextmanager
def own_warnings() -> Iterator[None]:
    """Print warnings of the project as commands do; others as Python does."""
    as_python_does = warnings.showwarning

    def show(message: Any, category: type[Warning], *rest: Any, **others: Any) -> None:
        if category.__module__.startswith("lake_assets."):
            typer.secho(f"Warning: {message}", fg="yellow", err=True)
        else:
            as_python_does(message, category, *rest, **others)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Hour = Annotated[str, typer.Argument(metavar="HOUR", help="An hour in UTC, such as 2026-01-01-05:00.")]
OutputFile = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="The file to write. Default: a file in LAKE_HOME.", dir_okay=False),
]
Partitions = Annotated[int, typer.Option(help="The number of partitions of each new topic.", min=1)]
Port = Annotated[int, typer.Option(help="The port of --serve. Default: a free one.", min=0, max=65535)]
Serve = Annotated[
    bool, typer.Option("--serve", help="Serve the page on loopback until interrupted, read anew at each request.")
]
TargetName = Annotated[str, typer.Argument(metavar="TARGET", help="A target, such as account_state_dim.")]


def open_engine() -> Engine:
    """Open the engine of the configured pipelines."""
    from lake_assets.incremental.from_settings import open_engine

    return open_engine(settings())


def create_tables() -> list[str]:
    """Create the missing tables, and record all tables in the data directory. Return the names of those created."""
    from lake_assets.cli.render import progress
    from lake_assets.connections.catalog import remember_tables, table_names

    engine = open_engine()
    created = engine.create_tables(progress("creating"))
    remember_tables(engine.catalog, table_names(engine.catalog), settings())
    return created


def show_problems(engine: Engine) -> None:
    """Print what is wrong with declarations and targets, and exit with 1 if anything is.

    What somebody may want so is printed alone.
    """
    from lake_assets.incremental.operations.health import problems

    broken = engine.pipeline.broken
    for declaration in broken:
        typer.echo(f"Error: {declaration.error}", err=True)
    if print_problems(problems(engine)) or broken:
        raise typer.Exit(1)


def print_problems(found: Sequence[Problem]) -> bool:
    """Print problems of any part; return whether any is an error."""
    for problem in found:
        typer.echo(f"{problem.level.capitalize()}: {ErrorText(problem.what, problem.remedy)}", err=True)
    return any(problem.level == "error" for problem in found)


def end_when_interrupted(told: str, stop: threading.Event | None = None) -> threading.Event:
    """Let SIGINT and SIGTERM set an event, which is returned, and say so. The second one ends the process at once."""
    found = stop or threading.Event()

    def end(number: int, _: object) -> None:
        if found.is_set():
            os._exit(128 + number)
        found.set()
        typer.echo(f"{told} To end at once, interrupt again.", err=True)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    return found


def past_hour(text: str, where: str) -> int:
    """Return the hour of a key that a person has written.

    Args:
        text: The key, such as 2026-01-01-05:00.
        where: The argument, for messages.

    Raises:
        InvalidHourKey: It is no key.
        UsageError: The hour has not begun: no row of it can be complete or rebuilt.
    """
    from lake_assets.base.hours import parse_hour

    hour = parse_hour(text, where=where)
    require_begun(hour, where, now=datetime.now(UTC))
    return hour


def require_begun(hour: int, where: str, *, now: datetime) -> None:
    """Check that an hour that a person has named is not in the future.

    Args:
        where: The argument, for messages.

    Raises:
        UsageError: The hour has not begun.
    """
    from lake_assets.base.hours import hour_key, hour_of

    newest = hour_of(now)
    if hour > newest:
        raise UsageError(
            f"{where} is {hour_key(hour)}, which is in the future.",
            remedy=f"Name an hour that has begun; the newest one is {hour_key(newest)} UTC.",
        )


def kafka_servers() -> str:
    """Return the bootstrap servers of Kafka. Raises `ServiceError` if none are known."""
    from lake_assets.connections.addresses import kafka_address, required

    return required(kafka_address(settings()), "Kafka")


def zookeeper_hosts() -> str:
    """Return the hosts of the ZooKeeper ensemble. Raises `ServiceError` if none are known."""
    from lake_assets.connections.addresses import required, zookeeper_address

    return required(zookeeper_address(settings()), "ZooKeeper")


SET_BY_COMMANDS = {"LAKE_HOME", "LAKE_KEPT_FOR"}  # No fields: the data directory, and the mark of its processes.

SIMILAR = 0.7  # How similar a setting must be to an unknown variable, from 0 to 1, to be the one that is meant.

MARKS = ("catalog.db", "tables.json", "run", "spark.token")
"""A folder that has one of these is a data directory, and not one that LAKE_HOME names by mistake, such as /tmp."""

GROUP = stat.S_IRWXG
OTHERS = stat.S_IRWXO


def unknown_settings() -> list[ErrorText]:
    """Return the variables `LAKE_…` of the environment and of `lake.env` that name no setting, sorted by name."""
    file = home_directory() / ENVIRONMENT_FILE
    try:
        in_file = list(dotenv_values(file))
    except OSError:  # reported when the settings are read
        in_file = []
    places = {**dict.fromkeys(in_file, str(file)), **dict.fromkeys(os.environ, "the environment")}
    settable = [variable_name(field) for field in Settings.model_fields]
    found = []
    for name, place in sorted(places.items()):
        variable = name.upper()
        if not variable.startswith("LAKE_") or variable.startswith(OF_TESTS) or is_passed(variable):
            continue
        if variable not in SET_BY_COMMANDS.union(settable):
            nearest = get_close_matches(variable, settable, n=1, cutoff=SIMILAR)
            remedy = f"Did you mean {nearest[0]}?" if nearest else "Unset it; lake_assets/settings.py has all settings."
            found.append(ErrorText(f"{name}, set in {place}, is no setting and has no effect.", remedy))
    return found


def malformed_settings(error: ValidationError) -> Iterator[ErrorText]:
    """Yield each malformed setting with its value; that of a secret is not shown."""
    for problem in error.errors():
        field = str(problem["loc"][0])
        is_secret = "SecretStr" in str(Settings.model_fields[field].annotation)
        shown = "malformed" if is_secret else repr(problem["input"])
        remedy = "Correct or unset it in the environment or in lake.env; lake_assets/settings.py says what it may be."
        yield ErrorText(f"{variable_name(field)} is {shown}: {problem['msg']}.", remedy)


def close_to_others(home: Path) -> ErrorText | None:
    """Let only the owner enter a data directory that a version before has left open to others.

    The permissions of a group stay if the set-group-id bit says that the group shares the folder.

    Returns:
        What was done, for a person; None if nothing was.
    """
    try:
        status = home.stat()
    except OSError:
        return None
    open_to = OTHERS if status.st_mode & stat.S_ISGID else GROUP | OTHERS
    is_ours = status.st_uid == os.geteuid() and any((home / mark).exists() for mark in MARKS)
    if not is_ours or not status.st_mode & open_to or home == Path.home():
        return None
    with suppress(OSError):  # a file system without permissions
        home.chmod(stat.S_IMODE(status.st_mode) & ~open_to)
        return ErrorText(
            f"Other users could enter {home}; now only its owner can.",
            f"To share it with a group, run `chmod g+rwxs {shlex.quote(str(home))}`.",
        )
    return None


def refuse_unusable_home(home: Path, command: Sequence[str]) -> None:
    """Let no command work on a data directory that is half restored, of a later version, or moved.

    A restore continues what was interrupted, services can always be stopped, and jars are no part of it.

    Args:
        home: The data directory.
        command: The name of the command, if there is one.

    Raises:
        StoredStateError: A restore was interrupted, or the directory was moved.
        StoredByNewerVersion: A later version has written it.
    """
    if command == ["setup"]:
        return
    if command != ["restore"] and (home / RESTORING_FOLDER).exists():
        raise StoredStateError(
            f"The restore of {home} was interrupted, so {home} is not complete.",
            remedy="Run the same `lake restore` again: it continues.",
        )
    if command != ["down"]:
        check_home(home)
