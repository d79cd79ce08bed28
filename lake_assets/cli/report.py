"""`lake report` and `lake demo`: the whole platform, as a page and as a demonstration."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lake_assets.cli.common import AsJson, OutputFile, open_engine
from lake_assets.errors import ServiceError
from lake_assets.errors.texts import ErrorText
from lake_assets.pages.terminal.failures import log
from lake_assets.pages.terminal.render import print_json
from lake_assets.settings import settings

if TYPE_CHECKING:
    from lake_assets.base.findings import Finding
    from lake_assets.incremental.monitoring.overview import Overview
    from lake_assets.pages.data_path.stages import DataPath
    from lake_assets.pages.verdict import Verdict


LOOPBACK = "127.0.0.1"


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
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the page on loopback until interrupted, read anew at each request.")
    ] = False,
    port: Annotated[int, typer.Option(help="The port of --serve. Default: a free one.", min=0, max=65535)] = 0,
) -> None:
    """Write one HTML page: whether all is well, the data path from Kafka to served tables, late rows, and costs.

    Starts no Spark and changes nothing. For a stage that does not run, the page says why. The exit code is 1 if a
    target is not as its sessions left it: dropped, replaced, rolled back, or changed by others.
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
    """Print the findings about targets that are not as their sessions left them, and exit with 1 if there are any."""
    problems = [ErrorText(found.text, found.remedy) for found in findings if _is_target_problem(found)]
    for problem in problems:
        typer.echo(f"Error: {problem}", err=True)
    if problems:
        raise typer.Exit(1)


def _read() -> _Report:
    from lake_assets.cli.checks.doctor import diagnose
    from lake_assets.incremental.monitoring.overview import overview
    from lake_assets.pages.data_path.collect import data_path
    from lake_assets.pages.verdict import verdict

    engine = open_engine()
    found = overview(engine.catalog, engine.pipeline, now=engine.clock())
    path = data_path(settings(), engine, found)
    findings = diagnose()
    return _Report(findings, found, path, verdict(findings, path))


def _serve(port: int) -> None:
    """Serve the page until the process is interrupted or terminated."""
    import time
    from dataclasses import replace

    import plotly  # noqa: F401 - says at the start that the extra is missing, and not at the first request
    import uvicorn

    from lake_assets.connections.addresses import recorded_report
    from lake_assets.pages.live import application
    from lake_assets.services.webserver_guard import RequestGuard, parse_names

    found = settings()
    app = application(lambda: _read().page(), clock=time.monotonic, log=lambda error: log(error, found.home))
    with listening(port) as (listener, bound):
        names = parse_names(bound, found.webserver_hosts)
        own = replace(names, server="The report", restart="start `lake report --serve` again")
        server = uvicorn.Server(uvicorn.Config(RequestGuard(app, own), log_level="warning"))
        with suppress(KeyboardInterrupt), recorded_report(found.home, bound):
            typer.echo(f"The report is served on http://{LOOPBACK}:{bound} until you press Ctrl-C.")
            server.run(sockets=[listener])


@contextmanager
def listening(port: int) -> Iterator[tuple[socket.socket, int]]:
    """Yield a socket that listens on a port of loopback, and the port; 0 takes a free one.

    Raises:
        ServiceError: Another program listens there.
    """
    with socket.socket() as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((LOOPBACK, port))
        except OSError as error:
            raise ServiceError(
                f"Port {port} of {LOOPBACK} cannot be used: {error.strerror}.",
                remedy="Name another one with --port, or leave --port out for a free one.",
            ) from None
        found.listen()
        yield found, found.getsockname()[1]


def _is_target_problem(found: Finding) -> bool:
    from lake_assets.incremental.diagnosis.session_check import TARGETS

    return found.check == TARGETS and found.level == "error"


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
