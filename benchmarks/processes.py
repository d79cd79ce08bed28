"""Processor time of processes. It depends less on what else a machine does than wall time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from lake_assets.connections.addresses import processes_of, run_folder

OTHERS = "supervisor and others"
SPARK = "Spark"

SERVICES: dict[str, Callable[[str], bool]] = {
    "code server": lambda command: "api grpc" in command or "dagster.code_server" in command,
    "daemon": lambda command: "dagster._daemon" in command or "dagster.daemon" in command,
    "web server": lambda command: "services.webserver" in command,
    SPARK: lambda command: "spark" in command.lower() and "java" in command,
    "Kafka and ZooKeeper": lambda command: "java" in command,
}
"""Service → whether a command line is of it, in the order in which they are tried. Runs have that of the code server.

The code server and the daemon have Dagster's own command lines in revisions before decision 043.
"""


def spark_server(home: Path) -> psutil.Process:
    """Return the Spark server of a data directory."""
    return psutil.Process(int((run_folder(home) / "spark.pid").read_text()))


def cpu_seconds(process: psutil.Process) -> float:
    """Return the seconds of user and system of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def cpu_seconds_of_home(home: Path) -> dict[str, float]:
    """Return service → the processor time of its processes and of their ended children so far, in seconds."""
    return cpu_seconds_by_service(processes_of(home))


def cpu_seconds_by_service(processes: Iterable[psutil.Process]) -> dict[str, float]:
    """Return service → the processor time of its processes and of their ended children so far, in seconds.

    A process that ends meanwhile is left out.
    """
    found: dict[str, float] = {}
    for process in processes:
        try:
            name = service_of(" ".join(process.cmdline()))
            times = process.cpu_times()
        except psutil.Error:
            continue
        found[name] = found.get(name, 0.0) + sum(times[:4])
    return found


def service_of(command: str) -> str:
    """Return the service that a command line belongs to."""
    for name, matches in SERVICES.items():
        if matches(command):
            return name
    return OTHERS
