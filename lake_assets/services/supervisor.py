"""The process that runs the services: honcho's manager, detached from the terminal. If one service ends, all end.

`lifecycle.py` starts it as `python -m lake_assets.services.supervisor` and writes the services as JSON to its standard
input: `[{"name", "line", "environment", "folder"}]`. The supervisor logs one line for each event of a service.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lake_assets.connections.addresses import OWNER_VARIABLE, run_folder
from lake_assets.errors import ServiceError
from lake_assets.services.service import Service, python_module

NAME = "supervisor"
"""Name of its log and its pid file."""

STOP_RECEIVED = " received\n"
"""The manager logs `SIGTERM received` before it stops the services; what ended before that ended by itself."""

STOPPED = re.compile(r"\| (\S+) stopped \(rc=(-?\d+)\)")


@dataclass(frozen=True)
class Ended:
    """A service that ended. code: its exit code; negative for the signal that ended it."""

    name: str
    code: int


def log_of(home: Path) -> Path:
    """Return the path of the supervisor's log."""
    return home / "logs" / f"{NAME}.log"


def start(services: list[Service], home: Path) -> subprocess.Popen[bytes]:
    """Start the supervisor in its own session, so that neither Ctrl-C nor a closed terminal ends it."""
    for service in services:
        service.make_folders()
    with log_of(home).open("wb") as log:
        process = subprocess.Popen(
            python_module("lake_assets.services.supervisor"),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=home,
            env={**os.environ, OWNER_VARIABLE: str(home)},
            start_new_session=True,
        )
    (run_folder(home) / f"{NAME}.pid").write_text(str(process.pid))
    rows = [_as_json(service) for service in services]
    assert process.stdin is not None
    process.stdin.write(json.dumps(rows).encode())
    process.stdin.close()
    return process


def first_to_end(home: Path) -> Ended | None:
    """Return the service that ended first without a request to stop, which stopped the others; None if none did."""
    try:
        log = log_of(home).read_text(errors="replace")
    except FileNotFoundError:
        return None
    before_stop = log.split(STOP_RECEIVED)[0]
    found = STOPPED.search(before_stop)
    if found is None:
        return None
    return Ended(name=found[1], code=int(found[2]))


def died(services: list[Service], home: Path) -> ServiceError:
    """Return the error of a failed start. It names the service that ended first."""
    ended = first_to_end(home)
    for service in services:
        if ended is not None and service.name == ended.name:
            return service.died(ended.code)
    return ServiceError(
        f"The services were stopped while they started; see {log_of(home)}.",
        remedy="Run `lake up` again.",
    )


def _as_json(service: Service) -> dict[str, Any]:
    return {
        "name": service.name,
        "line": service.line,
        "environment": service.full_environment,
        "folder": str(service.home),
    }


def main() -> int:
    """Run the services of standard input until one ends; return its exit code."""
    from honcho.manager import Manager

    manager = Manager()
    for row in json.load(sys.stdin):
        manager.add_process(row["name"], row["line"], env=row["environment"], cwd=row["folder"])
    manager.loop()
    return int(manager.returncode or 0)


if __name__ == "__main__":
    sys.exit(main())
