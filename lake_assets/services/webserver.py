"""Dagster's web server as `lake up` starts it: on loopback, behind `webserver_guard.py`, with the definitions of now.

    python -m lake_assets.services.webserver --port 3000 --workspace workspace.yaml

It does what `python -m dagster_webserver` does with these options. That command creates its application itself and
takes no middleware, so this module repeats its few steps.

A thread follows edits of the files that declare tables. If one has changed, it calls `lake init`, which analyses
changed queries and creates new tables, and then ends the code server between two runs. The supervisor starts it again,
with the definitions of now, and the other processes of Dagster notice that. A run that the server begins later has
these.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import uvicorn
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter
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
from lake_assets.connections.dagster import (
    WorkspaceFileTarget,
    WorkspaceProcessContext,
    WorkspaceRequestContext,
    use_time_zones,
)
from lake_assets.incremental.declaration import IDENTIFIER
from lake_assets.services.servers import LOCATION
from lake_assets.services.webserver_guard import Names, RequestGuard, parse_names
from lake_assets.settings import YAML, is_path, pipeline_names, settings

LOOK_SECONDS = 2
"""Time between two looks at the files. They are read when two looks find them alike: editors write in several steps."""

IDLE_SECONDS = 60
"""The longest wait for a moment without a run. Then the code server gets the signal to end; it ends after its runs."""

OWN = "lake_assets"
"""The package itself, which nobody edits while it runs."""

COLUMNS = ".columns.json"
SUFFIXES = (*YAML, ".sql", COLUMNS)

LOAD = "from lake_assets.incremental.from_settings import *; open_pipeline(__import__('lake_assets').Settings())"
"""A program of Python that fails if nothing can be used of the declarations."""

log = logging.getLogger("dagster-webserver")


def declaring_files(pipelines: str) -> Iterator[Path]:
    """Yield the files that declare tables: of folders those of YAML and SQL, of modules all files of their package."""
    from lake_assets.incremental.sql.files import files_in

    for name in pipeline_names(pipelines):
        if is_path(name):
            path = Path(name)
            files = [path, *path.parent.glob("*")] if path.is_file() else files_in(path)
            yield from (file for file in files if file.name.endswith(SUFFIXES))
        else:
            yield from _files_of_module(name.partition(":")[0])


def _files_of_module(module: str) -> Iterator[Path]:
    if module.endswith(".py"):
        yield from Path(module).parent.glob("*.py")
        return
    top = module.partition(".")[0]
    for folder in map(Path, sys.path if top != OWN else ()):
        if (folder / top).is_dir():
            yield from (folder / top).rglob("*.py")
        elif (folder / f"{top}.py").is_file():
            yield from folder.glob("*.py")


State = dict[Path, tuple[int, int]]
"""File → when it was changed, and its size."""


def state_of(pipelines: str) -> State:
    """Return the present state of the files that declare tables."""
    found: State = {}
    for file in declaring_files(pipelines):
        try:
            status = file.stat()
        except OSError:  # it was removed just now
            continue
        found[file] = (status.st_mtime_ns, status.st_size)
    return found


def follow(pipelines: str, load_anew: Callable[[], None], *, loaded_at: float) -> None:
    """Have the definitions loaded anew whenever a file that declares tables has changed. Never returns.

    Args:
        pipelines: What declares tables, as LAKE_PIPELINES names it.
        load_anew: Does it.
        loaded_at: When the definitions were loaded, in seconds since 1970-01-01 UTC.
    """
    before = state_of(pipelines)
    loaded = before if all(changed <= loaded_at * 1e9 for changed, _ in before.values()) else {}
    while True:
        time.sleep(LOOK_SECONDS)
        now = state_of(pipelines)
        if now == loaded or now != before:
            before = now
            continue
        changed = sorted(file for file in {*now, *loaded} if now.get(file) != loaded.get(file))
        log.info("Declarations have changed, such as %s. They are loaded anew.", changed[0])
        try:
            if _prepare():
                load_anew()
        except Exception:  # of Dagster or of the disk: the next change tries again
            log.exception("The definitions could not be loaded anew.")
        # What was edited meanwhile is a change, but not what was stored beside the declarations.
        stored = {file: state for file, state in state_of(pipelines).items() if file.name.endswith(COLUMNS)}
        loaded = before = {file: state for file, state in now.items() if not file.name.endswith(COLUMNS)} | stored


def _prepare() -> bool:
    """Analyse changed queries, and create the tables that are new.

    Returns:
        Whether the definitions can be loaded. If nothing can be used of the declarations, those of before stay.
    """
    done = _run("-m", "lake_assets.cli.main", "init")
    for line in (done.stdout + done.stderr).splitlines():
        log.info("lake init: %s", line)
    return done.returncode == 0 or _run("-c", LOAD).returncode == 0


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


def end_between_runs(is_idle: Callable[[], bool], end: Callable[[], None]) -> None:
    """End the code server when no run is at work, or after `IDLE_SECONDS`: it then lets its runs end."""
    deadline = time.monotonic() + IDLE_SECONDS
    while not is_idle() and time.monotonic() < deadline:
        time.sleep(0.2)
    end()


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
    with DagsterInstance.get() as instance:
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
    logging.basicConfig(format="%(asctime)s - %(name)s - %(levelname)s - %(message)s", level=logging.INFO)
    use_time_zones()  # of a backfill, this process finds the partitions downstream
    names = parse_names(arguments.port, settings().webserver_hosts)
    serve(arguments.port, arguments.workspace, names)


if __name__ == "__main__":
    main()
