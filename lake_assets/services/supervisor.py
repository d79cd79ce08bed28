"""The process that keeps the services: honcho's manager, detached from the terminal. One that ends takes all along.

It is started by `services.py` as `python -m lake_assets.services.supervisor`, with the services as JSON on its standard
input: `[{"name", "line", "environment", "folder"}]`. It prints what honcho does, one line an event, to its log.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from lake_assets.connections.addresses import OWNER_VARIABLE, run_folder
from lake_assets.errors import ServiceError
from lake_assets.services.service import Service, python_module

NAME = "keeper"
_STOPPED = re.compile(r"\| (\S+) stopped \(rc=(-?\d+)\)")


def log_of(home: Path) -> Path:
    return home / "logs" / f"{NAME}.log"


def start(services: list[Service], home: Path) -> subprocess.Popen[bytes]:
    """Starts the keeper in a session of its own: neither Ctrl-C nor a closed terminal reaches it."""
    for service in services:
        service.make_folders()
    with log_of(home).open("wb") as log:
        keeper = subprocess.Popen(
            python_module("lake_assets.services.supervisor"),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=home,
            env={**os.environ, OWNER_VARIABLE: str(home)},
            start_new_session=True,
        )
    (run_folder(home) / f"{NAME}.pid").write_text(str(keeper.pid))
    assert keeper.stdin is not None
    keeper.stdin.write(json.dumps([_spelled(service) for service in services]).encode())
    keeper.stdin.close()
    return keeper


def first_to_end(home: Path) -> tuple[str, int] | None:
    """The service that ended first by itself, and its exit code (negative: the signal); that stopped the others."""
    try:
        unasked = log_of(home).read_text(errors="replace").split(" received\n")[0]
    except FileNotFoundError:
        return None
    found = _STOPPED.search(unasked)
    return (found[1], int(found[2])) if found else None


def died(services: list[Service], home: Path) -> ServiceError:
    """The error of a start that failed: it names the first service that ended."""
    ended = first_to_end(home)
    for service in services:
        if ended and service.name == ended[0]:
            return service.died(ended[1])
    return ServiceError(
        f"The services were stopped while they started; see {log_of(home)}.", remedy="Run `lake up` again."
    )


def _spelled(service: Service) -> dict[str, Any]:
    folder = str(service.home)
    return {"name": service.name, "line": service.line, "environment": service.full_environment, "folder": folder}


def main() -> int:
    from honcho.manager import Manager

    manager = Manager()
    for row in json.load(sys.stdin):
        manager.add_process(row["name"], row["line"], env=row["environment"], cwd=row["folder"])
    manager.loop()
    return int(manager.returncode or 0)


if __name__ == "__main__":
    sys.exit(main())
