"""Starts services under the supervisor of a data directory, and waits until all are ready."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lake_assets.connections import addresses
from lake_assets.services import supervisor
from lake_assets.services.service import POLL_SECONDS, Service

Report = Callable[[str], None]
"""Receives one line for the person who waits."""

PROGRESS_SECONDS = 5
"""A start that is silent for this long reports what it waits for."""


def start_services(services: list[Service], home: Path, *silent: Service, report: Report, patience: float = 1) -> None:
    """Start services under the supervisor of a data directory, and return when all are ready.

    Services that run are left as they are if this fails: the caller stops them by `down`.

    Args:
        services: The services that are waited for.
        home: The data directory.
        silent: Services that nobody waits for.
        report: Receives lines for the person who waits.
        patience: How many times longer than usual a service may take to become ready.

    Raises:
        ServiceError: A service did not become ready.
    """
    addresses.write_records(home, [addresses.ServiceRecord(service.name, service.port) for service in services])
    process = supervisor.start([*services, *silent], home)
    _Start(services, home, process, report, patience).wait()


@dataclass
class _Start:
    """A start in progress: waits until every service is ready, and reports progress."""

    services: list[Service]
    home: Path
    process: subprocess.Popen[bytes]
    report: Report
    patience: float
    began: float = field(default_factory=time.monotonic)
    reported: float = 0.0

    def wait(self) -> None:
        names = ", ".join(service.name for service in self.services)
        self._say(f"Starting {names} ...")
        waiting = list(self.services)
        while waiting:
            self._check_alive()
            waiting = [service for service in waiting if not self._is_ready(service)]
            self._check_patience(waiting)
            self._report_progress(waiting)
            time.sleep(POLL_SECONDS)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self.began

    def _say(self, line: str) -> None:
        self.reported = time.monotonic()
        self.report(line)

    def _check_alive(self) -> None:
        if self.process.poll() is not None or supervisor.first_to_end(self.home):
            raise supervisor.died(self.services, self.home)

    def _is_ready(self, service: Service) -> bool:
        if not service.ready():
            return False
        port = f", port {service.port}" if service.port else ""
        self._say(f"  {service.name:<10} ready after {self._seconds:4.1f} s{port}")
        return True

    def _check_patience(self, waiting: list[Service]) -> None:
        for service in waiting:
            if self._seconds > service.patience * self.patience:
                raise service.stuck()

    def _report_progress(self, waiting: list[Service]) -> None:
        if waiting and time.monotonic() - self.reported > PROGRESS_SECONDS:
            names = ", ".join(service.name for service in waiting)
            self._say(f"  {self._seconds:4.0f} s: still waiting for {names}")
