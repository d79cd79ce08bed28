"""Dagster's web server as `lake up` starts it: on loopback, behind the guard of `webserver_guard.py`.

    python -m lake_assets.services.webserver --port 3000 --workspace workspace.yaml

It does what `python -m dagster_webserver` does with these options. That command creates its application itself and
takes no middleware, so this module repeats its few steps.
"""

from __future__ import annotations

import logging
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import uvicorn
from dagster import DagsterRunStatus, RunsFilter
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

from lake_assets.connections.addresses import (
    DASHBOARD_PATH,
    LOOPBACK,
    REPORT_FILE,
    REPORT_PATH,
    dashboard_file,
    process_of,
    report_port,
)
from lake_assets.dagster_processes.dagster.private_names import use_time_zones
from lake_assets.incremental.declaration import IDENTIFIER
from lake_assets.services.dagster_services import LOCATION
from lake_assets.services.reloading import end_between_runs, follow
from lake_assets.services.webserver_guard import Names, RequestGuard, parse_names
from lake_assets.settings import settings

POLL_MILLISECONDS = 2000
"""How often the UI asks for the state of assets; the default of Dagster's own command."""

AT_WORK = (DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING)
"""Of runs that have a process."""

REPORT_HEADERS = {"Content-Security-Policy": "sandbox allow-scripts", "Cache-Control": "no-store"}
"""Of a written page: it is shown under the origin of Dagster's UI, and must not act as the UI does."""

NO_REPORT = """There is no report of this data directory yet.
  → Run `lake report --serve` and reload this page, or `lake report`, whose page is then shown here.
"""

NO_DASHBOARD = """There is no dashboard of {lake} in this data directory yet.
  → Run `lake engagement dashboard {lake} --serve` and reload this page, or `lake engagement dashboard {lake}`, whose
    page is then shown here.
"""


@dataclass(frozen=True)
class ServedPage:
    """A page that another process of the data directory writes or serves.

    Attributes:
        record: The file in the run folder that says where the page is served.
        written: The name of the written page in the data directory.
        missing: What to do if there is none.
    """

    record: str
    written: str
    missing: str


REPORT = ServedPage(REPORT_FILE, "report.html", NO_REPORT)


def dashboard_of(lake: str) -> ServedPage:
    """Return the dashboard of an engagement lake.

    Args:
        lake: Part of an address that a browser asked for. A name that no lake can have gets no page.
    """
    name = lake if IDENTIFIER.fullmatch(lake) else "LAKE"
    return ServedPage(dashboard_file(name), f"{name}.html", NO_DASHBOARD.format(lake=name))


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

        def dashboard(request: Request) -> Response:
            page = dashboard_of(request.path_params["lake"])
            return report_response(self._home, self._names, request.headers["host"], page)

        pages = [Route(REPORT_PATH, report), Route(f"{DASHBOARD_PATH}/{{lake}}", dashboard)]
        return [*pages, *super().build_routes()]  # type: ignore[no-untyped-call]

    def make_security_headers(self) -> dict[str, str]:
        """Forbid frames of other origins: a foreign page could lay itself over the UI and steer the clicks."""
        return {**super().make_security_headers(), "X-Frame-Options": "SAMEORIGIN"}


def report_response(home: Path, names: Names, host: str, page: ServedPage = REPORT) -> Response:
    """Return a page of a data directory: the live one if it is served, else the written one, else what to do.

    Args:
        home: The data directory.
        names: The host names of the web server.
        host: The Host of the request. The live page is on loopback, so only a browser on this machine is sent there.
    """
    port = report_port(home, name=page.record)
    if port is not None and host.lower() in names.loopback:
        return RedirectResponse(f"http://{LOOPBACK}:{port}/", headers={"Cache-Control": "no-store"})
    written = home / page.written
    if written.is_file():
        return FileResponse(written, headers=REPORT_HEADERS)
    return PlainTextResponse(page.missing, 404, {"Cache-Control": "no-store"})


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
            Thread(target=_follow_declarations, args=[context], daemon=True).start()
            logging.getLogger("dagster-webserver").info("Serving Dagster's UI on http://%s:%d", LOOPBACK, port)
            uvicorn.run(app, host=LOOPBACK, port=port, log_level="warning")


def _follow_declarations(context: WorkspaceProcessContext) -> None:
    """Have the code server of this data directory load the declarations anew whenever they are edited."""

    def is_idle() -> bool:
        return not context.instance.get_run_records(RunsFilter(statuses=list(AT_WORK)), limit=1)

    def load_anew() -> None:
        end_between_runs(is_idle, lambda: context.shutdown_code_location(LOCATION))

    process = process_of(settings().home, "code")
    if process is not None:  # otherwise the services do not run here
        follow(settings().pipelines, load_anew, loaded_at=process.create_time())


def main() -> None:
    """Read the command line and serve."""
    parser = ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workspace", type=Path, required=True)
    arguments = parser.parse_args()
    configure_loggers(log_level="INFO")
    use_time_zones()  # of a backfill, this process finds the partitions downstream
    names = parse_names(arguments.port, settings().webserver_hosts)
    serve(arguments.port, arguments.workspace, names)


if __name__ == "__main__":
    main()
