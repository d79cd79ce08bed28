"""Runs of the code server of `lake up`: forked with the definitions, and otherwise as Dagster starts them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest
from dagster._core.instance.ref import InstanceRef
from dagster._core.launcher.base import WorkerStatus
from dagster._core.remote_representation.handle import JobHandle
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import GrpcServerTarget
from dagster._grpc import server as grpc_server

from lake_assets.connections.dagster import use_context
from lake_assets.services.service import Service, accepts, free_port, python_module, running
from lake_assets.settings import PROJECT
from lake_assets_tests.processes import wait_until

DEFINITIONS = "lake_assets_tests.dagster_processes.served_definitions"
SERVER = "lake_assets.dagster_processes.code_server"
PATIENCE_SECONDS = 120
CONFIGURATION = """
telemetry: {enabled: false}
run_launcher: {module: lake_assets.resources, class: WatchedRunLauncher}
"""


@dataclass(frozen=True)
class Where:
    """Process ids: that loaded the definitions, of the run, and of its parent. number: a random one."""

    loaded_in: int
    run: int
    parent: int
    number: float


class Server:
    """A code server, and a client that launches runs on it as the daemon does."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        port = free_port()
        place = ("--host", "127.0.0.1", "--port", str(port), "--location-name", "served")
        module = ("--module-name", DEFINITIONS, "--working-directory", str(PROJECT))
        service = Service(
            name="code",
            command=python_module(SERVER, *place, *module),
            home=folder,
            port=port,
            environment={
                "DAGSTER_HOME": str(folder),
                "PYTHONPATH": str(PROJECT),
                "SERVED_DEFINITIONS_FOLDER": str(folder),
            },
            ready=accepts(port),
        )
        (folder / "dagster.yaml").write_text(CONFIGURATION)
        stack.enter_context(running(service))
        self.log = service.log
        self.instance = stack.enter_context(dg.DagsterInstance.from_config(str(folder)))
        target = GrpcServerTarget(host="127.0.0.1", port=port, socket=None, location_name="served")
        self.process = stack.enter_context(WorkspaceProcessContext(self.instance, workspace_load_target=target))

    def launch(self, job: str) -> str:
        """Launch a run; return its id."""
        workspace = self.process.create_request_context()
        location = workspace.get_code_location("served")
        repository = next(iter(location.get_repositories().values()))
        remote = repository.get_full_job(job)
        assert isinstance(remote.handle, JobHandle)
        plan = location.get_execution_plan(remote, {}, step_keys_to_execute=None, known_state=None)
        run = self.instance.create_run(
            job_name=job,
            run_id=None,
            run_config={},
            status=dg.DagsterRunStatus.NOT_STARTED,
            tags={},
            root_run_id=None,
            parent_run_id=None,
            step_keys_to_execute=None,
            execution_plan_snapshot=plan.execution_plan_snapshot,
            job_snapshot=remote.job_snapshot,
            parent_job_snapshot=None,
            asset_selection=None,
            asset_check_selection=None,
            resolved_op_selection=None,
            op_selection=None,
            remote_job_origin=remote.get_remote_origin(),
            job_code_origin=remote.get_python_origin(),
            asset_graph=repository.asset_graph,
        )
        self.instance.launch_run(run.run_id, workspace)
        return run.run_id

    def ended(self, run_id: str) -> dg.DagsterRunStatus:
        """Wait until the run has ended."""

        def is_finished() -> bool:
            return self.run(run_id).is_finished

        wait_until(is_finished, PATIENCE_SECONDS)
        return self.run(run_id).status

    def run(self, run_id: str) -> dg.DagsterRun:
        found = self.instance.get_run_by_id(run_id)
        assert found is not None
        return found

    def where(self, run_id: str) -> Where:
        """Wait until the run has reported where it is."""
        report = self.folder / run_id
        wait_until(lambda: report.exists() and len(report.read_text().split()) == 4, PATIENCE_SECONDS)
        loaded_in, run, parent, number = report.read_text().split()
        return Where(int(loaded_in), int(run), int(parent), float(number))

    def health(self, run_id: str) -> Any:
        return self.instance.run_launcher.check_run_worker_health(self.run(run_id))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with ExitStack() as stack:
        yield Server(tmp_path_factory.mktemp("served"), stack)


def test_runs_are_forks_of_what_the_code_server_has_loaded(server: Server) -> None:
    ids = [server.launch("short"), server.launch("short")]
    assert [server.ended(run) for run in ids] == [dg.DagsterRunStatus.SUCCESS] * 2
    first, second = (server.where(run) for run in ids)
    code = psutil.Process(first.loaded_in)
    assert SERVER in code.cmdline()
    assert len({code.pid, first.run, second.run, first.parent}) == 4  # each run has a process of its own
    assert first.parent == second.parent
    assert psutil.Process(first.parent).ppid() == code.pid
    assert first.number != second.number  # a fork has a copy of numpy's random state


def test_what_a_run_prints_is_captured(server: Server) -> None:
    run = server.launch("short")
    assert server.ended(run) is dg.DagsterRunStatus.SUCCESS
    events = server.instance.all_logs(run, of_type=dg.DagsterEventType.LOGS_CAPTURED)
    step = events[0].get_dagster_event().logs_captured_data.file_key
    captured = server.instance.compute_log_manager.get_log_data([run, "compute_logs", step])
    assert captured.stdout is not None
    assert b"printed by the run" in captured.stdout


def test_a_run_can_be_terminated(server: Server) -> None:
    run = server.launch("endless")
    server.where(run)
    assert server.health(run).status is WorkerStatus.RUNNING
    assert server.instance.run_launcher.terminate(run)
    assert server.ended(run) is dg.DagsterRunStatus.CANCELED


def test_a_run_that_is_killed_has_failed(server: Server) -> None:
    run = server.launch("endless")
    psutil.Process(server.where(run).run).kill()
    assert server.ended(run) is dg.DagsterRunStatus.FAILURE
    messages = [event.message for entry in server.instance.all_logs(run) if (event := entry.dagster_event)]
    assert any(message and "was terminated by signal 9 (SIGKILL)" in message for message in messages), messages


def stored_in(folder: Path) -> InstanceRef:
    folder.mkdir()
    return InstanceRef.from_dir(str(folder), overrides={"telemetry": {"enabled": False}})


def test_a_run_that_died_while_the_disk_was_full_is_reported_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storage that cannot be opened, as on a full disk, ends no thread; the run is failed as soon as it can be."""
    context = get_context("spawn")
    monkeypatch.setattr(grpc_server, "DagsterApiServer", grpc_server.DagsterApiServer)  # restored at the end
    use_context(context)
    died = context.Process()
    died.start()
    died.kill()
    died.join()
    gone = stored_in(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    (tmp_path / "gone").touch()
    api: Any = grpc_server.DagsterApiServer.__new__(grpc_server.DagsterApiServer)
    api._execution_lock = threading.RLock()
    api._shutdown_once_executions_finish_event = threading.Event()
    stored = stored_in(tmp_path / "stored")
    with dg.DagsterInstance.from_ref(stored) as instance:
        run = instance.add_run(dg.DagsterRun(job_name="nothing", status=dg.DagsterRunStatus.STARTED))
        api._termination_events, api._termination_times = {run.run_id: None}, {}
        api._executions = {run.run_id: (died, gone)}
        api._check_for_orphaned_runs()
        assert list(api._executions) == [run.run_id]
        api._executions = {run.run_id: (died, stored)}
        api._check_for_orphaned_runs()
        assert api._executions == {}
        found = instance.get_run_by_id(run.run_id)
        assert found is not None
        assert found.status is dg.DagsterRunStatus.FAILURE


def test_runs_start_without_the_fork_server(server: Server) -> None:
    """Last: from now on the definitions are loaded in the processes of runs."""
    before = server.where(server.launch("short"))
    psutil.Process(before.parent).kill()
    run = server.launch("short")
    assert server.ended(run) is dg.DagsterRunStatus.SUCCESS
    after = server.where(run)
    assert after.parent != before.parent
    assert after.loaded_in == after.run


def start_in_new_process(statements: str) -> list[str]:
    """Run statements, then return the reason against a fork server, and how the code server would start runs."""
    code = f"""
from lake_assets.dagster_processes.code_server import start_fork_server
{statements}
from dagster._grpc import server
before = server.DagsterApiServer
print(start_fork_server())
print(server.DagsterApiServer is before)
"""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("statements", "obstacle"),
    [
        pytest.param(
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(600,), daemon=True, name='pinger').start()",
            "importing the definitions leaves the thread pinger, which a fork cannot share",
            id="thread",
        ),
        pytest.param(
            "import socket\nkept = socket.socket()",
            "importing the definitions leaves an open socket:",
            id="socket",
        ),
        pytest.param(
            "from dagster._grpc import server\n"
            "source = server.DagsterApiServer.__init__\n"
            "server.DagsterApiServer.__init__ = lambda self: None\n",
            "this version of Dagster is not known: dagster._grpc.server.DagsterApiServer._mp_ctx",
            id="dagster",
        ),
        pytest.param(
            "from multiprocessing.forkserver import _forkserver\n_forkserver._forkserver_authkey = b''",
            "has another fork server",
            id="python",
        ),
    ],
)
def test_what_cannot_be_forked_is_started_as_dagster_does(statements: str, obstacle: str) -> None:
    reason, is_unchanged = start_in_new_process(statements)
    assert obstacle in reason
    assert is_unchanged == "True"


def test_the_definitions_can_be_forked(tmp_path: Path) -> None:
    """Importing what a run needs opens no connection and starts no thread; the threads of numpy do not count."""
    module = "lake_assets.definitions"
    code = f"""
import sys
from lake_assets.dagster_processes.code_server import obstacles
from lake_assets.dagster_processes.code_server import RUN_MODULES, preload
preload({module!r}, None)
print(obstacles(), [name for name in RUN_MODULES if name not in sys.modules])
"""
    environment = {**os.environ, "LAKE_HOME": str(tmp_path), "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[] []\n"
