"""`lake report` and `lake demo`, and `--serve` of commands that write a page: on loopback, until the process is
interrupted.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lake_assets.cli.common import AsJson, OutputFile, Port, Serve, log_error, open_engine
from lake_assets.cli.render import print_json, progress
from lake_assets.connections.addresses import LOOPBACK
from lake_assets.errors import ErrorText, ServiceError
from lake_assets.settings import settings

if TYPE_CHECKING:
    from lake_assets.base.findings import Finding
    from lake_assets.incremental.operations.overview import Overview
    from lake_assets.pages.data_path import DataPath
    from lake_assets.pages.report import Verdict


def serve_page(
    build: Callable[[], str],
    port: int,
    *,
    name: str,
    command: str,
    recorded: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> None:
    """Serve a page until the process is interrupted or terminated.

    Args:
        build: Builds the page. It is called at a request, at most once in a few seconds.
        port: A port of loopback; 0 takes a free one.
        name: What is served, at the start of a sentence: The report.
        command: Serves it again.
        recorded: Is given the port, and entered while the page is served.

    Raises:
        ServiceError: Another program listens on the port.
    """
    import time
    from dataclasses import replace

    import plotly  # noqa: F401 - says at the start that the extra is missing, and not at the first request
    import uvicorn

    from lake_assets.pages.page import application
    from lake_assets.services.webserver_guard import RequestGuard, parse_names

    found = settings()
    app = application(build, name=command, clock=time.monotonic, log=lambda error: log_error(error, found.home))
    with listening(port) as (listener, bound):
        names = parse_names(bound, found.webserver_hosts)
        own = replace(names, server=name, restart=f"start `{command}` again")
        server = uvicorn.Server(uvicorn.Config(RequestGuard(app, own), log_level="warning"))
        with suppress(KeyboardInterrupt), recorded(bound):
            typer.echo(f"{name} is served on http://{LOOPBACK}:{bound} until you press Ctrl-C.")
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
    from lake_assets.incremental.operations.doctor import TARGETS
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
    wrong = [each for each in found.findings if each.check == TARGETS and each.level == "error"]
    for each in wrong:
        typer.echo(f"Error: {ErrorText(each.text, each.remedy)}", err=True)
    if wrong:
        raise typer.Exit(1)


def _read() -> _Report:
    from lake_assets.cli.doctor import diagnose
    from lake_assets.connections.sql_catalog import one_look
    from lake_assets.incremental.operations.overview import overview
    from lake_assets.pages.data_path import data_path
    from lake_assets.pages.report import verdict

    engine = open_engine()
    with one_look(engine.catalog):
        found = overview(engine.catalog, engine.pipeline, now=engine.clock(), progress=progress("reading"))
        path = data_path(settings(), engine, found)
    findings = diagnose()
    return _Report(findings, found, path, verdict(findings, path))


def _serve(port: int) -> None:
    """Serve the page until the process is interrupted or terminated."""
    from lake_assets.connections.addresses import recorded_report

    serve_page(
        lambda: _read().page(),
        port,
        name="The report",
        command="lake report --serve",
        recorded=partial(recorded_report, settings().home),
    )


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
    scenes = import_module(f"lake_assets.demo.{of}")
    if of in ("membership", "engagement"):
        scenes.run(keep_up=sys.stdout.isatty() if keep_up is None else keep_up)
    else:
        scenes.run()
