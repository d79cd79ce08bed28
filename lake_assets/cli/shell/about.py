"""`lake --version` and `lake completion`."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

PROGRAM = "lake"
COMPLETE_VARIABLE = "_LAKE_COMPLETE"
"""Set by the script of `lake completion` when it asks for completions."""

Shell = Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="The shell: bash, zsh or fish.")]


def completion(shell: Shell) -> None:
    """Print the script that completes `lake` in a shell, such as: source <(lake completion bash)."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    typer.echo(get_completion_script(prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE, shell=shell))


def is_completing() -> bool:
    """Return whether a shell asks for completions."""
    return COMPLETE_VARIABLE in os.environ


def prepare_completion() -> None:
    """Let typer answer a shell that asks for completions; without one, do nothing."""
    if not is_completing():
        return
    from typer.completion import completion_init  # type: ignore[attr-defined]

    completion_init()


def print_version(wanted: bool) -> None:
    """Print the version and end the command, if it is wanted."""
    if not wanted:
        return
    from lake_assets.base.version import __version__

    typer.echo(f"lake-assets {__version__}")
    raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=print_version, help="Print the version and exit.")
]


def options(_version: Version = False) -> None:
    """Fact and dimension tables that stay correct when data arrives late."""
