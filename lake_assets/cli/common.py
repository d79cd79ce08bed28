"""Options that several groups of commands share, and the connections that commands open."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lake_assets.errors import UsageError
from lake_assets.errors.texts import ErrorText
from lake_assets.settings import settings

if TYPE_CHECKING:
    from lake_assets.incremental.engine.engine import Engine
    from lake_assets.incremental.operations.health import Problem

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
    from lake_assets.connections.catalog import remember_tables, table_names
    from lake_assets.pages.terminal.render import progress

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


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on standard error until the block ends. Yields a function that takes how much of how much is done."""
    with typer.progressbar(length=0, label=label, file=sys.stderr) as bar:

        def update(done: int, of: int) -> None:
            bar.length = of
            bar.update(done - bar.pos)

        yield update
