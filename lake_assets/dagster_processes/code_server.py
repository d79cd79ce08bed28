"""Dagster's code server as `lake up` starts it: the process of a run is forked, with the definitions loaded.

    python -m lake_assets.dagster_processes.code_server --module-name lake_assets.definitions --port 4000

The options are those of `dagster api grpc`. That command starts a new interpreter for each run, which imports Dagster
and the definitions for 2 s or more. Each run has a process of its own here, too. If the definitions cannot be forked,
the log says why, and runs start as they do with that command.

The fork server is one for `multiprocessing` that starts as a fork of this process. That of the standard library starts
as a new interpreter, imports the modules that it is given, and ignores an ImportError. Protocol and exit codes are its
own. If the fork server is killed, the standard library starts a new one, which has imported nothing in advance.

The output of a step is captured in a file without processes of its own. By itself, Dagster starts four processes for
each step, two of them interpreters of Python, which copy what the step prints to the output of the code server while it
runs. Here it is copied when the step has ended. Dagster's UI shows the file while the step runs, as before.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import connection, forkserver, get_context, resource_tracker, util
from pathlib import Path
from typing import Any, NoReturn

import dagster as dg

from lake_assets.connections.dagster import (
    Moved,
    code_server_command,
    import_definitions,
    lazy_definitions,
    redirected,
    unknown_version,
    use_context,
    use_mirror,
    use_time_zones,
)
from lake_assets.dagster_processes.storages import read_migrations, use_sparing_storages

RUN_MODULES = (
    "dagster._grpc.impl",
    "dagster._grpc.server",
    "dagster._core.execution.api",
    "dagster._core.storage.sqlite_storage",
    "dagster._core.storage.local_compute_log_manager",
    "pyspark.sql.connect.session",
    "pyspark.sql.connect.dataframe",
    "pyspark.sql.connect.functions",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
    "sqlalchemy.dialects.sqlite",
    # What a session imports when it first needs it, so that nobody else has to load Spark:
    "dagster._core.executor.in_process",
    "fsspec.implementations.local",
    "lake_assets.connections.sql_catalog",
    "lake_assets.connections.query_plans",
    "lake_assets.connections.spark",
    "lake_assets.incremental.engine.audit_run",
    "lake_assets.incremental.engine.stage",
    "pyarrow.acero",
    "pyiceberg.avro.decoder_fast",
    "pyspark.sql.connect.window",
    "upath.implementations.local",
)
"""What a run imports beside the definitions; importing it takes a second. A name that is gone is left out."""

log = logging.getLogger("lake_assets.code_server")


def main(arguments: Sequence[str]) -> None:
    """Load the definitions, start the fork server, and serve until the process is stopped.

    Args:
        arguments: Options of `dagster api grpc`.
    """
    logging.basicConfig(format="%(asctime)s - %(name)s - %(message)s", level=logging.INFO)
    for reason in filter(None, (use_sparing_storages(), use_lean_capture())):
        log.warning("Sensors and runs take more processor time: %s.", reason)
    use_time_zones()
    if _preloads(arguments):
        reason = start_fork_server()
        if reason:
            log.warning("Each run starts a new interpreter, which takes 2 s or more: %s.", reason)
    code_server_command()(arguments)


def start_fork_server() -> str:
    """Start a fork server of this process, and make the code server use it.

    Returns:
        Why that cannot be done; empty if it is done.
    """
    if not fork_supported():
        return f"Python {sys.version.split()[0]} has another fork server"
    found = obstacles()
    if found:
        return f"importing the definitions leaves {', '.join(found)}, which a fork cannot share"
    try:
        use_context(get_context("forkserver"))
    except Moved as error:
        return unknown_version(error)
    pid = start_fork()
    log.info("Runs are forked from process %d, which has loaded the definitions.", pid)
    return ""


def preload(module: str, folder: str | None) -> None:
    """Import definitions and what a run needs beside them, and build the repository of the definitions.

    Args:
        module: Name of the module of definitions.
        folder: Folder to import it from, beside those of the Python path.
    """
    loaded = import_definitions(module, folder)
    for name in RUN_MODULES:
        with suppress(ImportError):
            import_module(name)
    with suppress(Moved):
        read_migrations()
    for value in list(vars(loaded).values()):
        with suppress(Moved):
            value = value() if isinstance(value, lazy_definitions()) and not value.has_context_arg else value
        if isinstance(value, dg.Definitions):
            value.get_repository_def().load_all_definitions()


def _preloads(arguments: Sequence[str]) -> bool:
    """Preload what the options name. Return whether that worked."""
    parser = ArgumentParser()
    parser.add_argument("--module-name")
    parser.add_argument("--working-directory")
    options, _ = parser.parse_known_args(arguments)
    if options.module_name is None:
        return False
    try:
        preload(options.module_name, options.working_directory)
    except (Exception, SystemExit):  # of the user's module: the command loads it again, and reports the error
        return False
    return True


PRIVATE_NAMES = ("_forkserver_address", "_forkserver_alive_fd", "_forkserver_pid")
"""Of `multiprocessing.forkserver.ForkServer`; set here as `ensure_running` sets them."""

LATER_NAMES = ("_forkserver_authkey",)
"""Of later versions of Python, whose fork server expects a key over one more pipe."""

SAFE_THREADS = frozenset({"jemalloc_bg_thd"})
"""Names of threads that prepare themselves for a fork: those of the allocator of pyarrow and deltalake."""

TASKS = Path("/proc/self/task")
DESCRIPTORS = Path("/proc/self/fd")
STANDARD_DESCRIPTORS = frozenset({"0", "1", "2"})


def obstacles() -> list[str]:
    """Return why this process should not be forked: what it runs or holds that a fork cannot have, too.

    A lock that another thread holds is never released in the fork, and a connection would be used by two processes.

    Returns:
        Threads and open sockets, in words; empty if there are none.
    """
    found = [f"the thread {thread.name}" for thread in threading.enumerate() if thread is not threading.main_thread()]
    if not found:
        found += [f"a thread named {name}" for name in _native_threads()]
    return found + [f"an open {target}" for target in _sockets()]


def fork_supported() -> bool:
    """Return whether this Python has the fork server that `start_fork` was written for."""
    server: Any = getattr(forkserver, "_forkserver", None)
    has_names = all(hasattr(server, name) for name in PRIVATE_NAMES)
    return has_names and not any(hasattr(server, name) for name in LATER_NAMES)


def start_fork() -> int:
    """Fork this process. The fork serves the processes of the context `forkserver` until this process has ended.

    Call it from the main thread, and only if `obstacles` finds none.

    Returns:
        The process id of the fork server.
    """
    server: Any = forkserver._forkserver
    os.register_at_fork(after_in_child=_reseed)
    gc.collect()
    gc.freeze()  # a collection would write to shared pages, and so copy them
    sys.stdout.flush()
    sys.stderr.flush()
    address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        if not util.is_abstract_socket_namespace(address):
            Path(address).chmod(0o600)
        listener.listen()
        alive_reader, alive_writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(alive_writer)
            _serve(listener.detach(), alive_reader)
        os.close(alive_reader)
    server._forkserver_address = address
    server._forkserver_alive_fd = alive_writer
    server._forkserver_pid = pid
    resource_tracker.ensure_running()  # an interpreter that the first run would wait for
    return pid


def _serve(listener: int, alive_reader: int) -> NoReturn:
    try:
        forkserver.main(listener, alive_reader, [])
    except SystemExit:
        os._exit(0)  # not `sys.exit`: what runs at the exit of this process is not for its fork
    except BaseException:
        sys.excepthook(*sys.exc_info())
    os._exit(1)


def _native_threads() -> list[str]:
    """Return the names of threads that Python does not know of."""
    _fork_once()
    try:
        names = [(task.name, (task / "comm").read_text().strip()) for task in TASKS.iterdir()]
    except OSError:  # a system without /proc
        return []
    return sorted(name for task, name in names if task != str(os.getpid()) and name not in SAFE_THREADS)


def _fork_once() -> None:
    """Fork a process that ends at once. Libraries that can be forked, as OpenBLAS, end their threads for it."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _sockets() -> list[str]:
    found = []
    try:
        descriptors = [entry for entry in DESCRIPTORS.iterdir() if entry.name not in STANDARD_DESCRIPTORS]
    except OSError:
        return []
    for entry in descriptors:
        try:
            target = str(entry.readlink())
        except OSError:  # the descriptor of the listing itself
            continue
        if target.startswith("socket:"):
            found.append(target)
    return sorted(found)


def _reseed() -> None:
    """Give a fork random numbers of its own. Python does so with `random`, and numpy does not."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


CHUNK_BYTES = 1 << 20


def use_lean_capture() -> str:
    """Make the runs of this process, and of its forks, capture output without further processes.

    Returns:
        Why that cannot be done; empty if it is done.
    """
    try:
        use_mirror(captured)
    except Moved as error:
        return unknown_version(error)
    return ""


@contextmanager
def captured(stream: Any, path: str) -> Iterator[tuple[None, None]]:
    """Redirect a stream to a file while the block runs, then copy what it got to the stream.

    Args:
        stream: `sys.stdout` or `sys.stderr`.
        path: The file. An earlier attempt of the step may have written to it.

    Yields:
        In place of the ids of the processes that Dagster starts.
    """
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    before = file.stat().st_size
    try:
        with redirected(stream, file):
            yield None, None
    finally:
        with suppress(OSError, ValueError):  # the stream may be closed; the file has all of it
            _copy(file, before, stream)


def _copy(file: Path, start: int, stream: Any) -> None:
    with file.open(encoding="utf-8", errors="replace") as written:
        written.seek(start)
        while text := written.read(CHUNK_BYTES):
            stream.write(text)
    stream.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
