"""Processes that tests let die or stop. Each is forked from one that has imported all it needs: to import it anew takes
longer than what they do.

The process they are forked from (the fork server of `multiprocessing`) does nothing else, so they inherit no thread, no
connection and no lock. Each is a process of its own: `os._exit` or `kill -9` leaves of it what it has written.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

import psutil
from tenacity import retry, retry_if_result, stop_after_delay, wait_fixed

from lake_assets.settings import Settings, settings
from lake_assets_tests.forked import FORKED

LONGEST = 120
"""Seconds that a child may take to its end, or to the point where it stops."""


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition holds; fail after some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


class Child:
    """A function at work in a process of its own, with an environment of its own."""

    def __init__(self, work: Callable[[str], str], argument: str, environment: Mapping[str, str]) -> None:
        self._heard, saying = FORKED.Pipe(duplex=False)
        self._process: ForkServerProcess = FORKED.Process(
            target=_work, args=(saying, work, argument, dict(environment)), daemon=True
        )
        self._process.start()
        saying.close()

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self._process.pid)

    @property
    def runs(self) -> bool:
        return self._process.is_alive()

    def end(self) -> int | None:
        """Wait until the process is gone; its exit code, negative if it was killed."""
        self._process.join(LONGEST)
        assert not self.runs, f"still there after {LONGEST} s"
        return self._process.exitcode

    def said(self) -> str:
        """Wait until the process is gone; what its function returned, empty if it did not come to that."""
        self.end()
        try:
            return str(self._heard.recv())
        except EOFError:
            return ""

    def kill(self) -> None:
        """As `kill -9`; returns when the process is gone."""
        self._process.kill()
        self.end()

    @retry(retry=retry_if_result(lambda stopped: not stopped), wait=wait_fixed(0.02), stop=stop_after_delay(LONGEST))
    def stopped(self) -> bool:
        """Wait until the process has stopped itself (SIGSTOP)."""
        return self.process.status() == psutil.STATUS_STOPPED

    def go_on(self) -> None:
        """Let a stopped process continue."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)


def environment(home: Settings, failpoint: str = "") -> dict[str, str]:
    """What tells a process its home, its Spark, and the point at which to die."""
    remote = {"LAKE_SPARK_REMOTE": home.spark_remote} if home.spark_remote else {}
    return {"LAKE_HOME": str(home.home), "LAKE_FAILPOINT": failpoint, **remote}


def _work(saying: Connection, work: Callable[[str], str], argument: str, environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    settings.cache_clear()
    saying.send(work(argument))


def lives(process: psutil.Process) -> bool:
    """Return whether the process runs. One that has ended and was not waited for, or whose pid is reused, does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
