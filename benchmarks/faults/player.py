"""Plays faults on the services of a data directory, one after the other, and measures how they heal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil

from benchmarks.faults.traffic import READERS, Count, Traffic
from lake_assets.connections import addresses
from lake_assets.connections.catalog import open_catalog
from lake_assets.errors import ServiceError
from lake_assets.incremental.from_settings import open_engine
from lake_assets.services import lifecycle, supervisor
from lake_assets.settings import PROJECT, Settings

PATIENCE_SECONDS = 900
"""After this time a fault counts as not healed. On an idle machine of two cores, one or two minutes are enough."""

POLL_SECONDS = 0.5
WORK_SECONDS = 60
"""How long to wait for a run to be at work before a fault."""

PATIENCE_OF_START = 5
"""How many times longer than usual the services may take at first, for the machine may be busy."""

FULL_SECONDS = 30
UNIT_SECONDS = 10
"""`RestartSec` of the unit in docs/services.md."""

FILL_BYTES = 1 << 20


@dataclass(frozen=True)
class Healed:
    """How one fault went.

    Attributes:
        fault: Its name.
        seconds: From the fault until all services were ready and all tables had every row; None: not within
            `PATIENCE_SECONDS`.
        state: What was not right at the end, for people; empty if all was.
    """

    fault: str
    seconds: float | None
    state: str = ""


class Player:
    """Services that run, traffic, and faults.

    Args:
        settings: Of the data directory.
        report: Receives lines for the person who waits.
    """

    def __init__(self, settings: Settings, report: Callable[[str], None]) -> None:
        self.settings = settings
        self.home = settings.home
        self.report = report
        self.traffic = Traffic(open_catalog(settings), "")

    @property
    def faults(self) -> Mapping[str, Callable[[], None]]:
        """Name → what does it, in the order of play."""
        found: dict[str, Callable[[], None]] = {}
        for service in lifecycle.status(self.settings):
            found[service.name] = lambda name=service.name: self.kill(name)  # type: ignore[misc]
        found["worker"] = self.kill_worker
        found["guard"] = lambda: self.kill("guard")
        found["supervisor"] = lambda: self.kill(supervisor.NAME)
        found["services"] = self.kill_services
        found["everything"] = self.kill_everything
        found["disk"] = self.fill_disk
        return found

    @contextmanager
    def started(self) -> Iterator[None]:
        """Run the services and landing until the block ends."""
        open_engine(self.settings).create_tables()
        lifecycle.up(self.settings, report=self.report, patience=PATIENCE_OF_START)
        try:
            self.traffic.servers = addresses.required(addresses.kafka_address(self.settings), "Kafka")
            self.traffic.prepare()
            with self._landing():
                yield
        finally:
            lifecycle.down(self.settings, report=self.report)

    def warm_up(self) -> Healed:
        """Let a first batch through, so that every service has done its work once."""
        self.traffic.send()
        return self._heal("none")

    def play(self, *faults: str) -> Healed:
        """Send rows, do the faults while they are at work, send more after each, and wait until all is well."""
        self.traffic.send()
        self._wait_for_worker()
        began = time.monotonic()
        for fault in faults:
            self.faults[fault]()
            self.traffic.send()
        return self._heal(", ".join(faults), began)

    def kill(self, name: str) -> None:
        """Kill the process of a service."""
        process = addresses.process_of(self.home, name)
        if process is None:
            raise SystemExit(f"The service {name} does not run.")
        process.kill()

    def kill_worker(self) -> None:
        """Kill the processes of runs."""
        for process in self.workers():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def kill_services(self) -> None:
        """Kill all services at once, with the runs. The supervisor and its guard stay."""
        kept = {addresses.process_of(self.home, name) for name in (supervisor.NAME, "guard")}
        _kill([process for process in addresses.processes_of(self.home) if process not in kept])

    def kill_everything(self) -> None:
        """Kill all processes at once, and do what systemd does then: it waits, and starts the unit until it starts."""
        _kill(addresses.processes_of(self.home))
        ends = time.monotonic() + PATIENCE_SECONDS
        is_up = False
        while not is_up and time.monotonic() < ends:
            time.sleep(UNIT_SECONDS)
            with suppress(ServiceError):
                lifecycle.up(self.settings, report=lambda _: None)
                is_up = True

    def fill_disk(self) -> None:
        """Leave no byte free on the disk of the data directory for a while."""
        filling = self.home.parent / "filling"
        ends = time.monotonic() + FULL_SECONDS
        with filling.open("wb", buffering=0) as file:
            while time.monotonic() < ends:
                if not _write(file.fileno(), FILL_BYTES):
                    time.sleep(0.05)
        filling.unlink()

    def workers(self) -> list[psutil.Process]:
        """Return the processes of runs that are at work."""
        code = addresses.process_of(self.home, "code")
        return run_processes(code) if code is not None else []

    def _wait_for_worker(self) -> None:
        ends = time.monotonic() + WORK_SECONDS
        while not self.workers() and time.monotonic() < ends:
            time.sleep(0.1)

    def _heal(self, fault: str, began: float | None = None) -> Healed:
        began = time.monotonic() if began is None else began
        state = self._state()
        while state and time.monotonic() - began < PATIENCE_SECONDS:
            time.sleep(POLL_SECONDS)
            state = self._state()
        seconds = time.monotonic() - began
        healed = Healed(fault, None if state else seconds, state)
        outcome = f"not healed: {state}" if state else f"healed after {seconds:.0f} s"
        counted = total(self.traffic.count())
        self.report(f"{fault}: {outcome}; rows lost: {counted.lost}, doubled: {counted.doubled}")
        return healed

    def _state(self) -> str:
        """Return what is not right; empty if all services are ready and all tables have every row."""
        found = [f"{each.name} is {each.state}" for each in lifecycle.status(self.settings) if each.state != "ready"]
        for name in (supervisor.NAME, "guard"):
            if addresses.process_of(self.home, name) is None:
                found.append(f"{name} does not run")
        try:
            counts = self.traffic.count()
        except Exception as error:  # the catalog cannot be read while the disk is full
            return f"{type(error).__name__}: {error}"
        for table, count in counts.items():
            if count.lost:
                found.append(f"{table} lacks {count.lost} rows")
        return ", ".join(found)

    @contextmanager
    def _landing(self) -> Iterator[None]:
        """Land messages by a command that is started again when it ends, as a unit with `Restart=always` would."""
        if any(service.name.startswith("land") for service in lifecycle.status(self.settings)):
            yield  # the services land by themselves
            return
        command = f"while :; do {sys.executable} -m lake_assets.cli.main landing run; sleep 1; done"
        environment = {
            **os.environ,
            "LAKE_HOME": str(self.home),
            "LAKE_PIPELINES": self.settings.pipelines,
            "LAKE_LANDING_AGE_SECONDS": str(self.settings.landing_age_seconds),
        }
        with (self.home.parent / "landing.log").open("wb") as log:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                cwd=PROJECT,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@dataclass
class Row:
    """A row of the table. seconds: of each try that healed. lost, doubled: rows of all tables after its tries."""

    fault: str
    tries: int = 0
    seconds: list[float] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0

    @property
    def is_harmless(self) -> bool:
        """Whether each try healed, and no row was lost or doubled."""
        return len(self.seconds) == self.tries and not self.lost and not self.doubled

    def add(self, healed: Healed, counted: Count) -> None:
        """Add a try, and the rows of all tables after it."""
        self.tries += 1
        if healed.seconds is not None:
            self.seconds.append(healed.seconds)
        self.lost, self.doubled = counted.lost, counted.doubled


def total(counts: Mapping[str, Count]) -> Count:
    """Return the rows lost and doubled in all tables."""
    assert counts.keys() == READERS.keys()
    return Count(
        lost=sum(count.lost for count in counts.values()), doubled=sum(count.doubled for count in counts.values())
    )


def run_processes(code: psutil.Process) -> list[psutil.Process]:
    """Return the processes of runs that a code server has started.

    They are the children of its fork server, which is a fork of the code server and has its command line, or an
    interpreter of its own if the first one was killed. Without a fork server they are children of the code server.
    """
    found = []
    with suppress(psutil.Error):
        for child in code.children():
            command = child.cmdline()
            if "spawn_main" in " ".join(command):
                found.append(child)
            elif command == code.cmdline() or "forkserver" in " ".join(command):
                found += child.children()
    return found


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _write(descriptor: int, size: int) -> bool:
    """Write zeros, fewer if not all fit; return whether any did."""
    while size:
        try:
            os.write(descriptor, bytes(size))
        except OSError:
            size //= 2
        else:
            return True
    return False
