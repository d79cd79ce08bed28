"""`lake`: all commands in the order of `lake --help`, and the entry point.

The module of a command is imported when the command runs, or when all are listed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, Literal

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from lake_assets.base.extras import missing_extra
from lake_assets.cli.common import (
    close_to_others,
    malformed_settings,
    own_warnings,
    refuse_unusable_home,
    show_error,
    show_warning,
    unknown_settings,
)
from lake_assets.settings import (
    Settings,
    __version__,
    home_directory,
)

PROGRAM = "lake"
COMPLETE_VARIABLE = "_LAKE_COMPLETE"
"""Set by the script of `lake completion` when it asks for completions."""

TERMINATED = 128 + signal.SIGTERM
INTERRUPTED = 128 + signal.SIGINT
"""Exit codes of a command that a signal ended, as shells count them."""

PANELS: Mapping[str, Mapping[str, str]] = {
    "Services": {
        "setup": "services:setup",
        "up": "services:up",
        "down": "services:down",
        "restart": "services:restart",
        "status": "services:status",
        "doctor": "doctor:doctor",
        "backup": "services:backup",
        "restore": "services:restore",
        "demo": "report:demo",
    },
    "Tables": {
        "init": "tables:init",
        "check": "tables:check",
        "migrate": "tables:migrate",
        "new": "tables:new",
        "land": "tables:land",
        "complete": "tables:complete",
        "inspect": "tables:inspect",
        "maintain": "tables:maintain",
        "report": "report:report",
    },
    "Sessions": {
        "plan": "targets:plan",
        "catch-up": "targets:catch_up",
        "rebuild": "targets:rebuild",
        "repair": "targets:repair",
        "verify": "targets:verify",
        "audit": "targets:audit",
        "signal": "targets:signal",
        "sessions": "targets:sessions",
        "why": "targets:why",
        "session": "targets:session",
    },
    "Erasure": {
        "erase": "erasure:erase",
        "erasure": "erasure:erasure",
    },
    "Stages": {
        "landing": "landing:landing",
        "engagement": "engagement:engagement",
        "serving": "serving:serving",
    },
}
"""Panel of the help → command → module of this folder, and the function or the group of commands in it."""


class _Commands(Mapping[str, Any]):
    """Commands by name. The module of one is imported when it is asked for."""

    def __init__(self, own: Mapping[str, Any]) -> None:
        self._loaded = dict(own)
        self._panels = {name: panel for panel, commands in PANELS.items() for name in commands}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            panel = self._panels[name]
            module, _, attribute = PANELS[panel][name].partition(":")
            found = getattr(import_module(f"lake_assets.cli.{module}"), attribute)
            one = typer.Typer()
            if isinstance(found, typer.Typer):
                one.add_typer(found, name=name, rich_help_panel=panel)
            else:
                one.command(name, rich_help_panel=panel)(found)
            self._loaded[name] = typer.main.get_group(one).commands[name]
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys((*self._panels, *self._loaded))

    def __len__(self) -> int:
        return len(self._panels.keys() | self._loaded)


class _Lake(TyperGroup):
    def __init__(self, *, commands: Mapping[str, Any], **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands(commands)  # type: ignore[assignment]


app = typer.Typer(
    cls=_Lake,
    help="Fact and dimension tables that stay correct when data arrives late.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def print_version(wanted: bool) -> None:
    """Print the version and end the command, if it is wanted."""
    if wanted:
        typer.echo(f"lake-assets {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=print_version, help="Print the version and exit.")
]


@app.callback()
def options(_version: Version = False) -> None:
    """Fact and dimension tables that stay correct when data arrives late."""


Shell = Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="The shell: bash, zsh or fish.")]


@app.command(rich_help_panel="Shell")
def completion(shell: Shell) -> None:
    """Print the script that completes `lake` in a shell, such as: source <(lake completion bash)."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    typer.echo(get_completion_script(prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE, shell=shell))


def main() -> None:
    """Run a command. An error is printed as two lines; a traceback goes to the log in the data directory."""
    # A terminated command cleans up as an interrupted one does: `lake up` leaves no half-started service behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    is_completing = COMPLETE_VARIABLE in os.environ  # a shell asks for completions
    if is_completing:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    try:
        with own_warnings():
            if not is_completing and sys.argv[1:2] != ["doctor"]:  # the doctor reports them itself
                _look_before_start()
            app(prog_name=PROGRAM)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:  # of any library that a command uses
        _end_as_interrupted(error)
        _show(error)
        sys.exit(1)


def _end_as_interrupted(error: BaseException | None) -> None:
    """End as an interrupt or SIGTERM does, if an error came in its place.

    C reports one that came while it created an object as a SystemError. And py4j closes the connections to Java on an
    interrupt, which the next calls notice, such as those of a `finally`.
    """
    while error and (isinstance(error, SystemError) or type(error).__module__.partition(".")[0] == "py4j"):
        error = error.__cause__ or error.__context__
    if isinstance(error, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    if isinstance(error, SystemExit):
        sys.exit(error.code)


def _look_before_start() -> None:
    for unknown in unknown_settings():
        show_warning(unknown)
    closed = close_to_others(home_directory())
    if closed is not None:
        show_warning(closed)
    refuse_unusable_home(home_directory(), sys.argv[1:2])


def _show(error: Exception) -> None:
    missing = missing_extra(error) if isinstance(error, ImportError) else None
    if missing is not None:
        typer.echo(f"Error: {missing}", err=True)
    elif isinstance(error, ValidationError) and error.title == Settings.__name__:
        for text in malformed_settings(error):
            typer.echo(f"Error: {text}", err=True)
    else:
        show_error(error, home_directory())


if __name__ == "__main__":
    main()
