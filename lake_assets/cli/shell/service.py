"""`lake service install`: a systemd unit that starts the services at boot."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Annotated

import typer
from pydantic import SecretStr

from lake_assets.errors import ConfigurationError
from lake_assets.settings import ENVIRONMENT_FILE, Settings, settings

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
    template = Path(__file__).parents[2] / "services" / "configuration" / "systemd.service"
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
