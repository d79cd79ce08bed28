"""`lake setup`, `lake up`, `lake down` and `lake status`: the local services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lake_assets.cli.checks.declarations import analyse_changed_queries
from lake_assets.cli.common import AsJson, create_tables, open_engine, show_problems
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
    """Create missing tables and start the local services: Spark, ZooKeeper, Kafka and Dagster."""
    from lake_assets.services import lifecycle

    analyse_changed_queries()
    create_tables()
    lifecycle.up(settings(), report=typer.echo)


def down() -> None:
    """Stop the local services, including processes that a failed start left behind."""
    from lake_assets.services import lifecycle

    lifecycle.down(settings(), report=typer.echo)


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
    """Show each local service: its state, process, port, memory and log file.

    The exit code is 1 if a service fails again and again, or if a target is not as its sessions left it: dropped,
    replaced, or rolled back.
    """
    from lake_assets.services import lifecycle

    found = lifecycle.status(settings())
    render(found, _SERVICES, as_json=as_json)
    failing = [service for service in found if service.state == "failing"]
    for service in failing:
        typer.echo(f"Error: The service {service.name} fails at every start. Read {service.log}.", err=True)
    show_problems(open_engine())
    if failing:
        raise typer.Exit(1)
