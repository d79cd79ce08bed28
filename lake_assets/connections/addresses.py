"""What runs for a home, as its `run/` folder has it: `services.json` and pid files. No starting, no stopping.

A record is believed only while its process lives: pids are used again, after a reboot at the latest.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lake_assets.errors import ServiceError

if TYPE_CHECKING:
    import psutil

    from lake_assets.settings import Settings

OWNER_VARIABLE = "LAKE_KEPT_FOR"
"""In the environment of every process that `lake up` starts, and of what these start: the home that it serves."""


@dataclass(frozen=True)
class Record:
    """One started service. port: on loopback; None if it listens to none."""

    name: str
    port: int | None


def run_folder(home: Path) -> Path:
    return home / "run"


def read(home: Path) -> list[Record]:
    """The services that were started last, whether or not they still run."""
    try:
        rows = json.loads((run_folder(home) / "services.json").read_text())
        return [Record(**row) for row in rows["services"]]
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return []


def write(home: Path, records: list[Record]) -> None:
    """Replaces the file in one step: a reader sees the old one or the new one."""
    file = run_folder(home) / "services.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps({"services": [asdict(r) for r in records]}, indent=1))
    partial.replace(file)


def process_of(home: Path, name: str) -> psutil.Process | None:
    """The living process of a service of this home; None when it is gone, or its pid is another's now."""
    import psutil

    try:
        process = psutil.Process(int((run_folder(home) / f"{name}.pid").read_text()))
        return process if process.environ().get(OWNER_VARIABLE) == str(home) and _lives(process) else None
    except (FileNotFoundError, ValueError, psutil.Error):
        return None


def processes_of(home: Path) -> list[psutil.Process]:
    """Every living process that was started for this home, kept or orphaned: services, their workers and the keeper."""
    import psutil

    found = []
    mine = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    psutil.process_iter.cache_clear()  # or a pid that is used again stands for the process that had it before
    for process in psutil.process_iter():
        try:
            if process.pid not in mine and process.environ().get(OWNER_VARIABLE) == str(home) and _lives(process):
                found.append(process)
        except (psutil.Error, OSError):  # another user's, or gone since
            continue
    return found


def spark_remote(settings: Settings) -> str | None:
    """The address of a Spark Connect server: the setting, else the one that runs for this home, else None."""
    return settings.spark_remote or _address(settings.home, "spark", scheme="sc://")


def kafka_address(settings: Settings) -> str | None:
    """The bootstrap servers of a Kafka: the setting, else the broker that runs for this home, else None."""
    return settings.kafka or _address(settings.home, "kafka")


def zookeeper_address(settings: Settings) -> str | None:
    """The hosts of a ZooKeeper ensemble: the setting, else the server that runs for this home, else None."""
    return settings.zookeeper or _address(settings.home, "zookeeper")


def required(address: str | None, what: str) -> str:
    """The address of a service that is needed; what: its name, `Kafka`. `ServiceError` if there is none."""
    if address is None:
        raise ServiceError(
            f"No {what} runs for this home, and none is named.", remedy=f"Run `lake up`, or set LAKE_{what.upper()}."
        )
    return address


def _address(home: Path, name: str, scheme: str = "") -> str | None:
    for record in read(home):
        if record.name == name and process_of(home, name):
            return f"{scheme}127.0.0.1:{record.port}"
    return None


def _lives(process: psutil.Process) -> bool:
    import psutil

    return process.status() != psutil.STATUS_ZOMBIE
