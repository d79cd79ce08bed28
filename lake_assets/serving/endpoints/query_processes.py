"""The server's side of the processes that run queries (`query_worker.py`): it starts them, asks them, and kills them.

A worker answers one question and is killed at the end of its block, whatever it does then.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock

import pyarrow as pa

from lake_assets.serving.endpoints.query_worker import HEADER, Question

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""For the process that forks: no library may start a thread when it is imported."""


class FrameTooLarge(Exception):
    """A worker announced more bytes than are allowed; none of them was read."""


class Worker:
    """A process for one question. Its methods raise `EOFError` or `ConnectionError` if it has died."""

    def __init__(self, connection: socket.socket, pipe: int) -> None:
        self._connection, self._pipe = connection, pipe

    def ask(self, question: Question, *, seconds_left: Callable[[], float]) -> None:
        """Send the question. Raises `TimeoutError`."""
        self._limit_time(seconds_left())
        self._connection.sendall(json.dumps(question).encode() + b"\n")

    def frame(self, *, most: int, seconds_left: Callable[[], float]) -> tuple[bytes, pa.Buffer]:
        """Return the kind and the content of the next frame.

        Raises:
            FrameTooLarge: It has more than `most` bytes.
            TimeoutError: It did not arrive in time.
        """
        kind, size = HEADER.unpack(self._received(HEADER.size, seconds_left))
        if size > most:
            raise FrameTooLarge
        return kind, self._received(size, seconds_left)

    def _received(self, size: int, seconds_left: Callable[[], float]) -> pa.Buffer:
        buffer = pa.allocate_buffer(size)
        free = memoryview(buffer).cast("B")
        while free:
            self._limit_time(seconds_left())
            count = self._connection.recv_into(free)
            if not count:
                raise EOFError
            free = free[count:]
        return buffer

    def _limit_time(self, seconds: float) -> None:
        if seconds <= 0:
            raise TimeoutError
        self._connection.settimeout(seconds)

    def kill(self) -> None:
        """End the process, and close this side."""
        self._connection.close()
        os.close(self._pipe)


class Forker:
    """A process that forks workers: it has imported what they need, and has no thread."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                (sys.executable, "-m", "lake_assets.serving.endpoints.query_worker"),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={**_without_settings(os.environ), **ONE_THREAD},
                start_new_session=True,  # Ctrl-C ends the server, and so all of them
            )

    def worker(self) -> Worker:
        """Return a new worker. Raises `ConnectionError` if this process has died."""
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        worker = Worker(ours, write)
        try:
            socket.send_fds(self._connection, [b"."], [theirs.fileno(), read])
        except ConnectionError:
            worker.kill()
            raise
        finally:
            theirs.close()
            os.close(read)
        return worker

    def close(self) -> None:
        """End the process; it kills its workers first."""
        self._connection.close()
        self._process.wait()


class Workers:
    """Starts workers. The process that forks them is started for the first one, and again if it has died."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._forker: Forker | None = None

    @contextmanager
    def one(self) -> Iterator[Worker]:
        """Yield a worker for the block."""
        worker = self._new()
        try:
            yield worker
        finally:
            worker.kill()

    def _new(self) -> Worker:
        with self._lock:
            self._forker = self._forker or Forker()
            try:
                return self._forker.worker()
            except ConnectionError:
                self._forker.close()
                self._forker = Forker()
                return self._forker.worker()


def _without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """A worker needs no settings, and some are secret."""
    return {name: value for name, value in environment.items() if not name.startswith("LAKE_")}


WORKERS = Workers()
"""The workers of this process."""
