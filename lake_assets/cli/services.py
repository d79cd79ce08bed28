"""`lake setup`, `up`, `down`, `restart`, `status`: the local services. `lake service install`: started at boot."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import SecretStr

from lake_assets.cli.checks.declarations import analyse_changed_queries
from lake_assets.cli.checks.doctor import check_lakes
from lake_assets.cli.common import AsJson, create_tables, open_engine, show_problems
from lake_assets.cli.landing_files import show_landing_problems
from lake_assets.errors import ConfigurationError
from lake_assets.pages.terminal.render import Column, TableView, render
from lake_assets.settings import ENVIRONMENT_FILE, Settings, settings

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
    show_problems(open_engine())
    if failing or landing_fails or stopped:
        raise typer.Exit(1)


NAME = "lake-assets.service"
OTHER_VARIABLES = ("JAVA_HOME", "PATH", "PYTHONPATH")

service = typer.Typer(help="Let the machine start the services.", no_args_is_help=True)

Show = Annotated[bool, typer.Option("--print", help="Print the unit instead of writing it.")]


@service.callback()
def group() -> None:
    """Let the machine start the services."""


@service.command()
def install(show: Show = False) -> None:
    """Write a systemd unit of this user that starts the services at boot, and print how to enable it.

    The unit contains the variables LAKE_… that are set now. Secrets belong into lake.env in the data directory.
    """
    found = settings()
    text = unit(found, os.environ, Path(sys.executable).with_name("lake"))
    if show:
        typer.echo(text, nl=False)
        return
    configuration = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    file = configuration / "systemd" / "user" / NAME
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    typer.echo(f"{file} is written. These commands enable it, also while nobody is logged in:")
    typer.echo(f"  systemctl --user daemon-reload && systemctl --user enable --now {NAME}\n  loginctl enable-linger")


def unit(found: Settings, environment: Mapping[str, str], lake: Path) -> str:
    """Return the text of the unit.

    Args:
        found: The settings of the data directory.
        environment: The variables of this process.
        lake: Path of the program.

    Raises:
        ConfigurationError: A secret is set in the environment. Everybody on the machine may read a unit.
    """
    template = Path(__file__).parents[1] / "services" / "configuration" / "systemd.service"
    variables = {"LAKE_HOME": str(found.home)}
    for name, value in sorted(environment.items()):
        if name.startswith("LAKE_") and name not in variables:
            _check_no_secret(found, name)
            variables[name] = value
    for name in OTHER_VARIABLES:
        if environment.get(name):
            variables[name] = environment[name]
    lines = [f"Environment={_quoted(f'{name}={value}')}" for name, value in variables.items()]
    return Template(template.read_text(encoding="utf-8")).substitute(
        home=_escaped(str(found.home)), lake=_quoted(str(lake)), environment="\n".join(lines)
    )


def _check_no_secret(found: Settings, name: str) -> None:
    field = name.removeprefix("LAKE_").lower()
    if isinstance(getattr(found, field, None), SecretStr):
        raise ConfigurationError(
            f"{name} is set in the environment, and is a secret.",
            remedy=f"Move it to {shlex.quote(str(found.home / ENVIRONMENT_FILE))}.",
        )


def _escaped(value: str) -> str:
    """Return a value in which systemd sees no specifier such as %h."""
    return value.replace("%", "%%")


def _quoted(value: str) -> str:
    """Return a value as one word of a systemd unit."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{_escaped(escaped)}"'
