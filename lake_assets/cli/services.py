"""`lake setup`, `up`, `down`, `restart` and `status`: the local services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lake_assets.cli.checks.declarations import analyse_changed_queries
from lake_assets.cli.checks.doctor import check_lakes
from lake_assets.cli.common import AsJson, create_tables, open_engine, print_problems, show_problems
from lake_assets.cli.landing_files import show_landing_problems
from lake_assets.cli.serving import failed_pushes
from lake_assets.pages.terminal.render import Column, TableView, render
from lake_assets.settings import settings

if TYPE_CHECKING:
    from lake_assets.services.lifecycle import ServiceStatus

_SERVICES: TableView[ServiceStatus] = TableView(
    (
        Column("service", lambda service: service.name),
        Column("state", lambda service: service.state),
        Column("pid", lambda service: service.pid, right=True),
        Column("port", lambda service: service.port, right=True),
        Column("MB", lambda service: service.memory_mb or None, right=True),
        Column("log", lambda service: service.log, whole=True),
        Column("detail", lambda service: service.detail),
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
    """Download the jars that Spark needs, and those of Kafka if landing is installed. Done once."""
    from lake_assets.services.setup import set_up

    for folder in set_up(settings(), extras or ()):
        typer.echo(f"The jars are in {folder}")


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
