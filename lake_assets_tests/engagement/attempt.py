"""Turns of a stream in processes of their own, which a test lets die, stops, and looks at afterwards.

They are forked from a server that has imported everything, so that a turn begins at once; what a turn is, `child.py`
says.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import TYPE_CHECKING

import psutil

from lake_assets.incremental.failpoints import EXIT_CODE

if TYPE_CHECKING:
    from lake_assets.settings import Settings

PATIENCE_SECONDS = 120
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["lake_assets_tests.engagement.child", "pyiceberg.catalog.sql", "pyspark.sql.connect.session"]
)


@dataclass(frozen=True)
class Attempt:
    """A turn that was started."""

    process: ForkServerProcess
    said: Connection

    @property
    def running(self) -> psutil.Process:
        return psutil.Process(self.process.pid)

    def has_died(self) -> None:
        """Waits until it has died at its point."""
        self.process.join(PATIENCE_SECONDS)
        assert self.process.exitcode == EXIT_CODE, "the turn did not come to its point"

    def has_stopped(self) -> None:
        """Waits until it has stopped at its point."""
        end = time.monotonic() + PATIENCE_SECONDS
        while self.running.status() != psutil.STATUS_STOPPED:
            assert self.process.is_alive(), "the turn did not come to its point"
            assert time.monotonic() < end
            time.sleep(0.02)

    def kill(self) -> None:
        """`kill -9`."""
        self.process.kill()
        self.process.join(PATIENCE_SECONDS)

    def goes_on(self) -> str:
        """Lets one that has stopped go on (SIGCONT) to its end; what became of it."""
        self.running.send_signal(signal.SIGCONT)
        return self.ends()

    def ends(self) -> str:
        """Waits for its end; what became of it: `ended`, or the name of an error."""
        assert self.said.poll(PATIENCE_SECONDS)
        said = str(self.said.recv())
        self.process.join(PATIENCE_SECONDS)
        return said


def start(home: Settings, *turn: str) -> Attempt:
    """A turn, begun. home: its settings, with the point at which to die or stop. turn: as `child.main` takes it."""
    values = {name: getattr(home, name) for name in type(home).model_fields}
    variables = {f"LAKE_{name.upper()}": str(value) for name, value in values.items() if value is not None}
    hears, says = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=_run, args=(variables, turn, says))
    process.start()
    says.close()
    return Attempt(process, hears)


def _run(variables: dict[str, str], turn: tuple[str, ...], says: Connection) -> None:
    os.environ.update(variables)
    from lake_assets_tests.engagement.child import main

    try:
        main(*turn)
    except Exception as error:  # of ours, of Spark, of Delta: what stopped it is what is asked
        says.send(type(error).__name__)
    else:
        says.send("ended")
