"""Dagster's web server as `lake up` starts it: on loopback, behind the guard of `webserver_guard.py`.

    python -m lake_assets.services.webserver --port 3000 --workspace workspace.yaml

It does what `python -m dagster_webserver` does with these options. That command creates its application itself and
takes no middleware, so this module repeats its few steps.
"""

from __future__ import annotations

import logging
from argparse import ArgumentParser
from pathlib import Path

import uvicorn
from dagster._cli.utils import get_instance_for_cli
from dagster._core.workspace.context import WorkspaceProcessContext, WorkspaceRequestContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster._utils.log import configure_loggers
from dagster_webserver.cli import (
    DEFAULT_DB_STATEMENT_TIMEOUT,
    DEFAULT_POOL_MAX_OVERFLOW,
    DEFAULT_POOL_RECYCLE,
    _lifespan,
)
from dagster_webserver.version import __version__
from dagster_webserver.webserver import DagsterWebserver
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from lake_assets.connections.addresses import REPORT_PATH, report_port
from lake_assets.services.webserver_guard import Names, RequestGuard, parse_names
from lake_assets.settings import settings

LOOPBACK = "127.0.0.1"
POLL_MILLISECONDS = 2000
"""How often the UI asks for the state of assets; the default of Dagster's own command."""

REPORT_HEADERS = {"Content-Security-Policy": "sandbox allow-scripts", "Cache-Control": "no-store"}
"""Of the written report: it is shown under the origin of Dagster's UI, and must not act as the UI does."""

NO_REPORT = """There is no report of this data directory yet.
  → Run `lake report --serve` and reload this page, or `lake report`, whose page is then shown here.
"""


class GuardedWebserver(DagsterWebserver[WorkspaceProcessContext, WorkspaceRequestContext]):
    """Dagster's UI and GraphQL endpoint behind the guard."""

    def __init__(self, context: WorkspaceProcessContext, names: Names, home: Path) -> None:
        self._names = names
        self._home = home
        super().__init__(context, live_data_poll_rate=POLL_MILLISECONDS)

    def build_middleware(self) -> list[Middleware]:
        return [Middleware(RequestGuard, self._names), *super().build_middleware()]

    def build_routes(self) -> list[BaseRoute]:
        def report(request: Request) -> Response:
            return report_response(self._home, self._names, request.headers["host"])

        return [Route(REPORT_PATH, report), *super().build_routes()]  # type: ignore[no-untyped-call]

    def make_security_headers(self) -> dict[str, str]:
        """Forbid frames of other origins: a foreign page could lay itself over the UI and steer the clicks."""
        return {**super().make_security_headers(), "X-Frame-Options": "SAMEORIGIN"}


def report_response(home: Path, names: Names, host: str) -> Response:
    """Return the report of a data directory: the live one if it is served, else the written one, else what to do.

    Args:
        home: The data directory.
        names: The host names of the web server.
        host: The Host of the request. The live report is on loopback, so only a browser on this machine is sent there.
    """
    port = report_port(home)
    if port is not None and host.lower() in names.loopback:
        return RedirectResponse(f"http://{LOOPBACK}:{port}/", headers={"Cache-Control": "no-store"})
    written = home / "report.html"
    if written.is_file():
        return FileResponse(written, headers=REPORT_HEADERS)
    return PlainTextResponse(NO_REPORT, 404, {"Cache-Control": "no-store"})


def serve(port: int, workspace: Path, names: Names) -> None:
    """Serve Dagster's UI until the process is stopped.

    Args:
        port: Port on loopback.
        workspace: The YAML file with the address of the code server.
        names: The host names that the UI is served under.
    """
    with get_instance_for_cli() as instance:
        instance.optimize_for_webserver(DEFAULT_DB_STATEMENT_TIMEOUT, DEFAULT_POOL_RECYCLE, DEFAULT_POOL_MAX_OVERFLOW)
        target = WorkspaceFileTarget([str(workspace)])
        with WorkspaceProcessContext(instance, workspace_load_target=target, version=__version__) as context:
            app = GuardedWebserver(context, names, settings().home).create_asgi_app(lifespan=_lifespan)
            logging.getLogger("dagster-webserver").info("Serving Dagster's UI on http://%s:%d", LOOPBACK, port)
            uvicorn.run(app, host=LOOPBACK, port=port, log_level="warning")


def main() -> None:
    """Read the command line and serve."""
    parser = ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workspace", type=Path, required=True)
    arguments = parser.parse_args()
    configure_loggers(log_level="INFO")
    names = parse_names(arguments.port, settings().webserver_hosts)
    serve(arguments.port, arguments.workspace, names)


if __name__ == "__main__":
    main()
