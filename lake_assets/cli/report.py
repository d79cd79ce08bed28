"""`lake report` and `lake demo`: the whole platform, as a page and as a demonstration."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lake_assets.cli.common import AsJson, OutputFile, Port, Serve, open_engine
from lake_assets.errors.texts import ErrorText
from lake_assets.pages.terminal.render import print_json, progress
from lake_assets.settings import settings

if TYPE_CHECKING:
    from lake_assets.base.findings import Finding
    from lake_assets.incremental.operations.overview import Overview
    from lake_assets.pages.data_path.stages import DataPath
    from lake_assets.pages.verdict import Verdict


@dataclass(frozen=True)
class _Report:
    """What the page shows. findings: of `lake doctor`."""

    findings: Sequence[Finding]
    overview: Overview
    path: DataPath
    verdict: Verdict

    def page(self) -> str:
        from lake_assets.pages import report

        return report.page(self.overview, self.path, self.verdict)


def report(
    out: OutputFile = None,
    as_json: AsJson = False,
    serve: Serve = False,
    port: Port = 0,
) -> None:
    """Write one HTML page: whether all is well, the data path from Kafka to served tables, late rows, and costs.

    Starts no Spark and changes nothing. For a stage that does not run, the page says why. The exit code is 1 if a
    target has a problem, as in `lake doctor`.
    """
    from lake_assets.pages.page import write

    if serve:
        _serve(port)
        return
    found = _read()
    if as_json:
        print_json({**vars(found.overview), "data_path": found.path, "verdict": found.verdict})
    if out or not as_json:
        file = write(found.page(), out or settings().home / "report.html")
        typer.echo(f"The report is in {file}", err=as_json)
    _show_target_problems(found.findings)


def _show_target_problems(findings: Sequence[Finding]) -> None:
    """Print what is wrong with targets, and exit with 1 if anything is."""
    problems = [ErrorText(found.text, found.remedy) for found in findings if _is_target_problem(found)]
    for problem in problems:
        typer.echo(f"Error: {problem}", err=True)
    if problems:
        raise typer.Exit(1)


def _read() -> _Report:
    from lake_assets.cli.checks.doctor import diagnose
    from lake_assets.connections.sql_catalog import one_look
    from lake_assets.incremental.operations.overview import overview
    from lake_assets.pages.data_path.collect import data_path
    from lake_assets.pages.verdict import verdict

    engine = open_engine()
    with one_look(engine.catalog):
        found = overview(engine.catalog, engine.pipeline, now=engine.clock(), progress=progress("reading"))
        path = data_path(settings(), engine, found)
    findings = diagnose()
    return _Report(findings, found, path, verdict(findings, path))


def _serve(port: int) -> None:
    """Serve the page until the process is interrupted or terminated."""
    from lake_assets.cli.page_server import serve_page
    from lake_assets.connections.addresses import recorded_report

    serve_page(
        lambda: _read().page(),
        port,
        name="The report",
        command="lake report --serve",
        recorded=partial(recorded_report, settings().home),
    )


def _is_target_problem(found: Finding) -> bool:
    from lake_assets.incremental.operations.doctor import TARGETS

    return found.check == TARGETS and found.level == "error"


def demo(
    of: Annotated[
        Literal["membership", "engagement", "landing", "serving"],
        typer.Argument(
            metavar="DEMO",
            help="What to demonstrate: the whole platform (membership), an engagement lake (engagement), the two zones "
            "of landed files (landing), or a push and its rollback (serving).",
        ),
    ] = "membership",
    keep_up: Annotated[
        bool | None,
        typer.Option(help="Keep Dagster's UI running after the demo, if it has one. Default: only in a terminal."),
    ] = None,
) -> None:
    """Run a demonstration: simulated data arrives late, and the tables are corrected. Takes a few minutes."""
    keeps_running = sys.stdout.isatty() if keep_up is None else keep_up
    if of == "engagement":
        from lake_assets.demo.engagement_lake import scenes

        passed = scenes.run(keep_up=keeps_running)
    elif of == "landing":
        from lake_assets.demo import landing

        passed = landing.run()
    elif of == "serving":
        from lake_assets.demo import serving

        passed = serving.run()
    else:
        from lake_assets.demo import membership

        passed = membership.run(keep_up=keeps_running)
    if not passed:
        sys.exit(1)
