"""Commands of services: set up, start, stop, show, back up and restore a data directory."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lake_assets.cli.common import AsJson, create_tables, open_engine, print_problems, show_problems
from lake_assets.cli.doctor import check_lakes
from lake_assets.cli.landing import show_landing_problems
from lake_assets.cli.render import Column, TableView, progress_bar, render
from lake_assets.cli.serving import failed_pushes
from lake_assets.cli.tables import analyse_changed_queries
from lake_assets.settings import home_directory, settings

if TYPE_CHECKING:
    from lake_assets.services.backup import Contents
    from lake_assets.services.lifecycle import ServiceStatus

NewFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the backup. It must not exist.")]
Backup = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that `lake backup` has made.")]


def backup(folder: NewFolder) -> None:
    """Copy the data directory into FOLDER, with checksums. The services must be stopped: `lake down`.

    Lists what belongs to the lake and is not in the data directory, such as a bucket or a database server.
    """
    from lake_assets.services.backup import back_up

    with progress_bar("Copying") as progress:
        made = back_up(settings(), folder, now=datetime.now(UTC), progress=progress)
    typer.echo(f"{folder}: {_size(made)} of {made.home}.")
    for line in made.elsewhere:
        typer.echo(f"Not in it: {line}")


def restore(folder: Backup) -> None:
    """Restore the data directory from the backup FOLDER. The data directory must be empty.

    All files are compared with their checksums before one of them is put in its place. If the command is interrupted,
    run it again.
    """
    from lake_assets.services.backup import restore

    with progress_bar("Copying") as progress:
        restored = restore(home_directory(), folder, progress=progress)
    typer.echo(f"{restored.home}: {_size(restored)} as of {restored.made_at}, by version {restored.made_by}.")
    for line in restored.elsewhere:
        typer.echo(f"Not restored: {line}")
    typer.echo("Check it by `lake doctor`, then run `lake up`.")


def _size(found: Contents) -> str:
    return f"{len(found.files):,} files, {found.bytes:,} bytes"


_SERVICES: TableView[ServiceStatus] = TableView(
    (
        "service=name",
        "state",
        Column("pid", lambda service: service.pid and str(service.pid), right=True),
        Column("port", lambda service: service.port and str(service.port), right=True),
        Column("MB", lambda service: service.memory_mb or None),
        Column("log", lambda service: service.log, whole=True),
        "detail",
    )
)


def up() -> None:
    """Create missing tables and start the local services that they need: Spark, Dagster, Kafka, ZooKeeper."""
    from lake_assets.services import lifecycle

    for broken in analyse_changed_queries().broken:
        typer.echo(f"Error: {broken.error}", err=True)
    create_tables()
    lifecycle.up(settings(), report=typer.echo)


def down() -> None:
    """Stop the local services, including processes that a failed start left behind."""
    from lake_assets.services import lifecycle

    lifecycle.down(settings(), report=typer.echo)


def restart(
    name: Annotated[str, typer.Argument(metavar="SERVICE", help="Its name, as `lake status` shows it.")],
) -> None:
    """Have one local service end and start again, and wait until it is ready. The others go on."""
    from lake_assets.services import lifecycle

    lifecycle.restart(settings(), name, report=typer.echo)


def setup(
    extras: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="NAME", help="Further jars: s3 or postgresql. May be repeated."),
    ] = None,
) -> None:
    """Download the jars that Spark needs, and those of Kafka if landing is installed. Done once.

    Then a Spark starts and keeps its classes as Java can read them fast, beside the jars: some 250 MB.
    """
    from lake_assets.services.setup import keep_classes, set_up

    for folder in set_up(settings(), extras or (), say=typer.echo):
        typer.echo(f"The jars are in {folder}")
    keep_classes(settings(), say=typer.echo)


def status(as_json: AsJson = False) -> None:
    """Show each local service: its state, process, port, memory and log file; and what is wrong with targets.

    The exit code is 1 if a service fails again and again, if a declaration cannot be used, if something is wrong with
    landing, if a stream of an engagement lake cannot go on, or if a target has a problem, as in `lake doctor`.
    """
    from lake_assets.services import lifecycle

    found = lifecycle.status(settings())
    render(found, _SERVICES, as_json=as_json)
    failing = [service for service in found if service.state == "failing"]
    for service in failing:
        typer.echo(f"Error: The service {service.name} fails at every start. Read {service.log}.", err=True)
    landing_fails = show_landing_problems()
    stopped = [each for each in check_lakes(settings()) if each.level == "error"]
    for each in stopped:
        typer.echo(f"Error: {each.text}\n  → {each.remedy}", err=True)
    push_failed = print_problems(failed_pushes())
    show_problems(open_engine())
    if failing or landing_fails or stopped or push_failed:
        raise typer.Exit(1)
