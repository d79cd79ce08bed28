"""Pushes to a disk that gets full, while readers query: `python -m ...full_disk HOSTS FOLDER DISK`, as `play` runs it.

Segments are on a file system of 256 kB, in memory. It is mounted in a namespace of the process's own, which the kernel
allows anybody, and removes with the process. Where that is forbidden all the same (some containers do), a file that
finds no room is written to /dev/full, which answers as a full disk does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from lake_assets.connections.storage import Folder
from lake_assets.errors import ServingError
from lake_assets.serving.push import Writer
from lake_assets.serving.store import Policy, SegmentFiles
from lake_assets_tests.serving.scenario import ROWS, SEGMENTS, World, fresh_name, now, world

SIZE = "256k"
ROOM = 64
"""Files of a segment that it takes: each takes a page of 4 kB."""

NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


class FullDevice(Folder):
    """Has room for so many files; what is written beyond finds a full disk."""

    def put(self, name: str, source: Path, *, moved: bool = False) -> None:
        if sum(len(files) for _, _, files in os.walk(self.path)) >= ROOM:
            Path("/dev/full").write_bytes(b"full")
        super().put(name, source, moved=moved)


def play(hosts: str, folder: Path) -> dict[str, Any]:
    """What became of it: see `main`."""
    folder.mkdir()
    allowed = subprocess.run([*NAMESPACE, *mount(folder)], capture_output=True).returncode == 0
    python = (sys.executable, "-m", "lake_assets_tests.serving.full_disk", hosts, str(folder))
    command = [*NAMESPACE, *python, "mounted"] if allowed else [*python, "pretended"]
    found: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60).stdout)
    return found


def main(hosts: str, name: str, disk: str) -> dict[str, Any]:
    """A push that fits, one that does not while readers query, and one that fits again; what was said and seen."""
    folder = Path(name)
    if disk == "mounted":
        subprocess.run(mount(folder), check=True)
    with world(hosts, folder, fresh_name()) as found:
        files = found.files if disk == "mounted" else SegmentFiles(FullDevice(folder))
        writer = Writer(found.registry, files, found.leases, clock=now, policy=Policy(segment_rows=ROWS // SEGMENTS))
        found = replace(found, files=files, writer=writer)
        found.push(1)
        said, seen = push_too_much(found)
        left = found.stored() + len(found.files.drafts(found.table))
        found.push(3)
        return {"table": found.table, "said": said, "seen": seen, "left": left, "seen then": found.seen()}


def mount(folder: Path) -> tuple[str, ...]:
    """The command that puts the small disk there."""
    return ("mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder))


def push_too_much(found: World) -> tuple[list[str], list[int]]:
    """What the second push, with twice the segments that there is room for, says; what readers see meanwhile."""
    stop, seen = threading.Event(), set[int]()

    def read() -> None:
        seen.update(found.seen())
        while not stop.is_set():
            seen.update(found.seen())

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        try:
            found.push(2, rows=2 * ROOM * ROWS // SEGMENTS)
            said = []
        except ServingError as error:
            said = [error.problem, error.remedy]
        finally:
            stop.set()
        reading.result()
    return said, sorted(seen)


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
