"""A fork server for `multiprocessing` that starts as a fork of the present process, with all modules already imported.

The fork server of the standard library starts as a new interpreter. It imports the modules that it is given and ignores
an ImportError. Protocol and exit codes are those of the standard library. If the fork server is killed, the standard
library starts a new one, which has imported nothing in advance.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
from multiprocessing import connection, forkserver, resource_tracker, util
from pathlib import Path
from typing import Any, NoReturn

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


def supported() -> bool:
    """Return whether this Python has the fork server that `start` was written for."""
    server: Any = getattr(forkserver, "_forkserver", None)
    has_names = all(hasattr(server, name) for name in PRIVATE_NAMES)
    return has_names and not any(hasattr(server, name) for name in LATER_NAMES)


def start() -> int:
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
