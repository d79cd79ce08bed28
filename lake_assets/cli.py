"""`lake`: the command line. Thin: it reads arguments, calls the engines and the stages, and prints what they return.

What is slow to import (pyspark, pyiceberg, Dagster) is imported inside the commands: `lake --help` is instant.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from lake_assets.errors import LakeError
from lake_assets.settings import settings

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__.split(":")[1].split(".")[0]
)
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


@app.command()
def up() -> None:
    """Start the services of this machine: Spark, and Dagster's webserver and daemon."""
    from lake_assets.local import services

    services.up(settings(), report=typer.echo)


@app.command()
def down() -> None:
    """Stop the services, and whatever is left of them."""
    from lake_assets.local import services

    services.down(settings(), report=typer.echo)


@app.command()
def status(as_json: AsJson = False) -> None:
    """Show each service: its state, process, port, memory and log."""
    from lake_assets.local import services

    found = services.status(settings())
    if as_json:
        typer.echo(json.dumps([asdict(s) for s in found], indent=1))
        return
    for s in found:
        memory = f"{s.memory_mb} MB" if s.memory_mb else ""
        typer.echo(
            f"{s.name:<10} {s.state:<9} pid {s.pid or '-':<8} port {s.port or '-':<6} {memory:>8}  {s.log}  {s.detail}".rstrip()
        )


def main() -> None:
    """The entry point: an error of our own tree is a message, not a traceback."""
    # A terminated command cleans up as an interrupted one does: `lake up` leaves nothing half started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        app(prog_name="lake")
    except LakeError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
