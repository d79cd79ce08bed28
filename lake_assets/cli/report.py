"""`lake report` and `lake demo`: the whole platform, as a page and as a demonstration."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from lake_assets.cli.common import AsJson, OutputFile, open_engine, show_problems
from lake_assets.pages.terminal.render import print_json
from lake_assets.settings import settings


def report(out: OutputFile = None, as_json: AsJson = False) -> None:
    """Write one HTML page about the data path from Kafka to served tables, late rows, and the cost of sessions.

    Starts no Spark and changes nothing. For a stage that does not run, the page says why. The exit code is 1 if a
    target is not as its sessions left it: dropped, replaced, rolled back, or changed by others.
    """
    from lake_assets.incremental.monitoring.overview import overview
    from lake_assets.pages import report
    from lake_assets.pages.data_path.collect import data_path

    engine = open_engine()
    found = overview(engine.catalog, engine.pipeline, now=engine.clock())
    path = data_path(settings(), engine, found)
    if as_json:
        print_json({**vars(found), "data_path": path})
    if out or not as_json:
        file = report.write(found, out or settings().home / "report.html", path)
        typer.echo(f"The report is in {file}", err=as_json)
    show_problems(engine)


def demo(
    of: Annotated[
        Literal["membership", "engagement"],
        typer.Argument(
            metavar="DEMO",
            help="What to demonstrate: the whole platform (membership), or an engagement lake (engagement).",
        ),
    ] = "membership",
    keep_up: Annotated[
        bool | None,
        typer.Option(help="Keep Dagster's UI running after the membership demo. Default: only in a terminal."),
    ] = None,
) -> None:
    """Run a demonstration: simulated data arrives late, and the tables are corrected. Takes a few minutes."""
    if of == "engagement":
        from lake_assets.demo import engagement

        passed = engagement.run()
    else:
        from lake_assets.demo import membership

        keeps_running = sys.stdout.isatty() if keep_up is None else keep_up
        passed = membership.run(keep_up=keeps_running)
    if not passed:
        sys.exit(1)
