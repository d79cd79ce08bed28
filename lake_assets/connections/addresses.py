"""The services that run for a data directory, from its `run/` folder: `services.json` and pid files. Starts nothing.

A record counts only while its process lives, because pids are reused, after a reboot at the latest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lake_assets.connections.own_secrets import spark_address
from lake_assets.errors import ServiceError

if TYPE_CHECKING:
    import psutil

    from lake_assets.settings import Settings

OWNER_VARIABLE = "LAKE_KEPT_FOR"
"""In the environment of every process that `lake up` starts, and of their children: the data directory they serve."""

LOOPBACK = "127.0.0.1"
"""Where services and pages of one machine listen: no other machine reaches them."""

SERVICES_FILE = "services.json"
PORTS_FILE = "ports.json"

REPORT_PATH = "/lake-report"
"""Where Dagster's web server of `lake up` shows the report, so that a link without host and port leads there."""

REPORT_FILE = "report-server.json"
"""In the run folder while `lake report --serve` runs: its port, and the process that serves it."""

DASHBOARD_PATH = "/lake-dashboard"
"""Likewise, followed by `/` and the name of an engagement lake: its dashboard."""


@dataclass(frozen=True)
class ServiceRecord:
    """A started service. port: on loopback; None if it does not listen."""

    name: str
    port: int | None


def run_folder(home: Path) -> Path:
    """Return the folder of `services.json`, pid files and logs."""
    return home / "run"


def dagster_folder(home: Path) -> Path:
    """Return Dagster's folder in the data directory."""
    return home / "dagster"


def read_records(home: Path) -> list[ServiceRecord]:
    """Return the services that were started last, whether or not they still run."""
    try:
        content = json.loads((run_folder(home) / SERVICES_FILE).read_text())
        return [ServiceRecord(**row) for row in content["services"]]
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return []


def write_records(home: Path, records: list[ServiceRecord]) -> None:
    """Replace the records in one step: a reader sees the old ones or the new ones."""
    _replace(run_folder(home) / SERVICES_FILE, {"services": [asdict(record) for record in records]})


def remove_records(home: Path) -> None:
    """Remove the records: no service of the data directory is meant to run."""
    (run_folder(home) / SERVICES_FILE).unlink(missing_ok=True)


def read_ports(home: Path) -> dict[str, int]:
    """Return the ports that the services had last, by their names; empty if none are recorded."""
    try:
        ports = json.loads((run_folder(home) / PORTS_FILE).read_text())["ports"]
        return {str(name): int(port) for name, port in ports.items()}
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def write_ports(home: Path, ports: Mapping[str, int]) -> None:
    """Record the ports of the services. They outlive `lake down`."""
    _replace(run_folder(home) / PORTS_FILE, {"version": 1, "ports": dict(ports)})


def process_of(home: Path, name: str) -> psutil.Process | None:
    """Return the living process of a service of this data directory.

    Returns:
        None if it has ended, or if another process has its pid now.
    """
    import psutil

    try:
        pid = int((run_folder(home) / f"{name}.pid").read_text())
        process = psutil.Process(pid)
        return process if _belongs_to(home, process) else None
    except (FileNotFoundError, ValueError, psutil.Error):
        return None


def dashboard_file(lake: str) -> str:
    """Return what `REPORT_FILE` is for the dashboard of an engagement lake."""
    return f"dashboard-{lake}-server.json"


@contextmanager
def recorded_report(home: Path, port: int, *, name: str = REPORT_FILE) -> Iterator[None]:
    """Record that this process serves the report, or another page, on a port of loopback, until the block ends.

    Args:
        name: The file of the record in the run folder.
    """
    import psutil

    file = run_folder(home) / name
    content = {"port": port, "pid": os.getpid(), "started": psutil.Process().create_time()}
    _replace(file, content)
    try:
        yield
    finally:
        if _report_record(file) == content:  # not that of a later server
            file.unlink(missing_ok=True)


def report_port(home: Path, *, name: str = REPORT_FILE) -> int | None:
    """Return the port of the `lake report --serve` that was started last; None if it does not run any more.

    Args:
        name: As for `recorded_report`.
    """
    import psutil

    content = _report_record(run_folder(home) / name)
    try:
        process = psutil.Process(int(content["pid"]))
        return int(content["port"]) if process.create_time() == content["started"] else None
    except (KeyError, TypeError, ValueError, psutil.Error):
        return None


def _report_record(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def processes_of(home: Path) -> list[psutil.Process]:
    """Return every living process that was started for this data directory, also orphaned ones.

    These are the services, their workers and the supervisor; this process and its parents are left out.
    """
    import psutil

    own_pids = {os.getpid()}
    for parent in psutil.Process().parents():
        own_pids.add(parent.pid)
    psutil.process_iter.cache_clear()  # otherwise a reused pid would return the process that had it before
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid not in own_pids and _belongs_to(home, process):
                found.append(process)
        except (psutil.Error, OSError):  # another user's, or ended meanwhile
            continue
    return found


def spark_remote(settings: Settings) -> str | None:
    """Return the address of a Spark Connect server: the setting, else the running one, else None."""
    port = None if settings.spark_remote else _port(settings.home, "spark")
    return spark_address(settings.home, port) if port else settings.spark_remote


def kafka_address(settings: Settings) -> str | None:
    """Return the bootstrap servers of Kafka: the setting, else the running broker, else None."""
    return settings.kafka or _address(settings.home, "kafka")


def zookeeper_address(settings: Settings) -> str | None:
    """Return the hosts of a ZooKeeper ensemble: the setting, else the running server, else None."""
    return settings.zookeeper or _address(settings.home, "zookeeper")


def is_own_address(home: Path, name: str, address: str) -> bool:
    """Return whether an address is that of the service that `lake up` of a data directory starts, running or not."""
    port = read_ports(home).get(name)
    return port is not None and address == f"127.0.0.1:{port}"


def required(address: str | None, what: str) -> str:
    """Return the address of a service that is needed.

    Args:
        address: As one of the functions above returned it.
        what: The name of the service: `Kafka`.

    Raises:
        ServiceError: There is no address.
    """
    if address is None:
        raise ServiceError(
            f"No {what} runs for this home, and none is named.", remedy=f"Run `lake up`, or set LAKE_{what.upper()}."
        )
    return address


def _replace(file: Path, content: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(content, indent=1))
    partial.replace(file)


def _address(home: Path, name: str) -> str | None:
    port = _port(home, name)
    return f"127.0.0.1:{port}" if port else None


def _port(home: Path, name: str) -> int | None:
    """Return the port of a service that runs; None if it does not."""
    for record in read_records(home):
        if record.name == name and process_of(home, name):
            return record.port
    return None


def _belongs_to(home: Path, process: psutil.Process) -> bool:
    import psutil

    owner = process.environ().get(OWNER_VARIABLE)
    return owner == str(home) and process.status() != psutil.STATUS_ZOMBIE
