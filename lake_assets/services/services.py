"""`lake up`, `lake down`, `lake status`: the services of a home, started together, seen, and stopped without a rest.

Which services there are is said in `stack.py`. Nothing here keeps a process: honcho does, in `keeper.py`.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lake_assets.connections import addresses
from lake_assets.connections.addresses import spark_remote
from lake_assets.errors import ServiceError
from lake_assets.services import stack, supervisor
from lake_assets.services.service import POLL_SECONDS, STOP_SECONDS, Service, free_port

if TYPE_CHECKING:
    import psutil

    from lake_assets.settings import Settings

__all__ = ["ServiceStatus", "down", "spark_remote", "status", "ui_address", "up"]

Report = Callable[[str], None]
ALIVE_SECONDS = 5
"""Silence is broken after this many seconds, so that nobody takes a slow start for a stuck one."""
SWEEPS = 5
"""Processes of a home are looked for and ended this many times at most before those left are told."""


@dataclass(frozen=True)
class ServiceStatus:
    """memory_mb: resident, of the process and all it started. detail: for people; how it ended, if it did."""

    name: str
    state: Literal["ready", "starting", "stopped"]
    pid: int | None = None
    port: int | None = None
    log: str = ""
    memory_mb: int = 0
    detail: str = ""


def up(settings: Settings, *, report: Report) -> None:
    """Starts all services and returns when all are ready. `ServiceError` if one is not; then nothing is left running.

    Called when they run, it changes nothing.
    """
    with _alone(settings.home):
        if _all_ready(settings):
            report("Already up.")
        else:
            _sweep(settings.home, report)
            _start(settings, report)
    report(f"Dagster's UI: {ui_address(settings)}")


def down(settings: Settings, *, report: Report) -> None:
    """Stops all that was started for this home, also what a killed keeper left behind; returns when it is gone."""
    if not _sweep(settings.home, report):
        report("Nothing runs.")


def status(settings: Settings) -> list[ServiceStatus]:
    """Every service, whether it runs or not."""
    recorded = {record.name: record for record in addresses.read_records(settings.home)}
    services = stack.services_of(settings, {name: _port(recorded.get(name)) for name in stack.LISTENING})
    return [_status(service) if service.name in recorded else _stopped(service) for service in services]


def ui_address(settings: Settings) -> str | None:
    """Where Dagster's UI was started; None if it was not."""
    ports = [record.port for record in addresses.read_records(settings.home) if record.name == "webserver"]
    return f"http://127.0.0.1:{ports[0]}" if ports else None


def _start(settings: Settings, report: Report) -> None:
    ports = {name: free_port() for name in stack.LISTENING}
    ports["webserver"] = free_port(settings.webserver_port)
    if ports["webserver"] != settings.webserver_port:
        report(f"Port {settings.webserver_port} is in use: the UI takes {ports['webserver']}.")
    services = stack.services_of(settings, ports)
    stack.write_dagster_files(settings, ports["code"])
    try:
        addresses.write_records(settings.home, [addresses.ServiceRecord(s.name, s.port) for s in services])
        kept = supervisor.start(services, settings.home)
        _wait(kept, services, settings.home, report)
    except BaseException:  # Ctrl-C too: whoever stops a start wants nothing running
        _sweep(settings.home, lambda _: None)
        raise


def _wait(kept: subprocess.Popen[bytes], services: list[Service], home: Path, report: Report) -> None:
    report(f"Starting {', '.join(service.name for service in services)} ...")
    begun = spoken = time.monotonic()
    waiting = list(services)
    while waiting:
        now = time.monotonic()
        if kept.poll() is not None or supervisor.first_to_end(home):
            raise supervisor.died(services, home)
        for service in [s for s in waiting if s.ready()]:
            waiting.remove(service)
            spoken = now
            port = f", port {service.port}" if service.port else ""
            report(f"  {service.name:<10} ready after {now - begun:4.1f} s{port}")
        if stuck := [s for s in waiting if now - begun > s.patience]:
            raise stuck[0].stuck()
        if waiting and now - spoken > ALIVE_SECONDS:
            spoken = now
            report(f"  {now - begun:4.0f} s: still waiting for {', '.join(s.name for s in waiting)}")
        time.sleep(POLL_SECONDS)


def _sweep(home: Path, report: Report) -> bool:
    """Stops every process of the home: the keeper first, since it stops its services, then whatever is left."""
    found = addresses.processes_of(home)
    if found:
        report(f"Stopping {len(found)} processes ...")
        _end([p for p in found if p == addresses.process_of(home, supervisor.NAME)])
        _end_all(home)
    for file in (*addresses.run_folder(home).glob("*.pid"), addresses.run_folder(home) / "services.json"):
        file.unlink(missing_ok=True)
    if left := addresses.processes_of(home):
        raise ServiceError(
            f"These processes of {home} do not end: {', '.join(str(p.pid) for p in left)}.",
            remedy="Stop them by hand: kill -9 PID.",
        )
    if found:
        report("All stopped.")
    return bool(found)


def _end_all(home: Path) -> None:
    """Looks again after each round: a process that starts another while it is asked to end leaves one unlisted."""
    for _ in range(SWEEPS):
        if not (left := addresses.processes_of(home)):
            break
        _end(left)


def _end(processes: list[psutil.Process]) -> None:
    """Asks, waits, and kills what is still there; psutil sees to it that a pid used again is nobody else's."""
    import psutil

    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(processes, timeout=STOP_SECONDS)[1]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=STOP_SECONDS)


def _all_ready(settings: Settings) -> bool:
    return addresses.process_of(settings.home, supervisor.NAME) is not None and all(
        s.state == "ready" for s in status(settings)
    )


def _status(service: Service) -> ServiceStatus:
    process = addresses.process_of(service.home, service.name)
    if process is None:
        return _stopped(service)
    ready: Literal["ready", "starting"] = "ready" if service.ready() else "starting"
    return ServiceStatus(service.name, ready, process.pid, service.port, str(service.log), _memory_mb(process))


def _stopped(service: Service) -> ServiceStatus:
    ended = supervisor.first_to_end(service.home)
    detail = f"ended with code {ended[1]}; that stopped the others" if ended and ended[0] == service.name else ""
    return ServiceStatus(service.name, "stopped", log=str(service.log), detail=detail)


def _memory_mb(process: psutil.Process) -> int:
    import psutil

    total = 0
    with suppress(psutil.Error):
        for part in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                total += part.memory_info().rss
    return total >> 20


def _port(record: addresses.ServiceRecord | None) -> int:
    return record.port or 0 if record else 0


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """One `lake up` of a home at a time; the lock goes with the process that holds it."""
    addresses.run_folder(home).mkdir(parents=True, exist_ok=True)
    with (addresses.run_folder(home) / "up.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ServiceError(
                f"Another `lake up` is starting the services of {home}.", remedy="Wait for it."
            ) from None
        os.set_inheritable(lock.fileno(), False)
        yield
