"""The lock of a zone: one process at a time tails it.

It is an advisory lock of the operating system (flock) on a file beside the zone's folder, so it ends with its process,
however that ends. A second tailer would do no harm: it makes files of the same names and bytes, which the manifest
already has. But it would read and write everything once more, so it is refused.

Assumption: all tailers of a zone run on one machine, or their file system knows locks. If not, the second one does
needless work.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lake_assets.errors import UsageError


@contextmanager
def locked_zone(folder: Path, zone: str) -> Iterator[None]:
    """Hold the lock of a zone until the block ends.

    Args:
        folder: Folder of landed files, with one folder for each zone.
        zone: Name of the zone.

    Raises:
        UsageError: Another process tails the zone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{zone}.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _is_tailed(zone, Path(lock.name).read_text()) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def is_locked(folder: Path, zone: str) -> bool:
    """Return whether a process tails a zone."""
    file = folder / f"{zone}.lock"
    if not file.exists():
        return False
    with file.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _is_tailed(zone: str, pid: str) -> UsageError:
    return UsageError(
        f"Zone {zone} is landed by another process, with pid {pid}.",
        remedy="Let it land, or end it first: `lake status` shows whether it is a service of `lake up`, "
        "which `lake down` stops; otherwise it is a `lake landing run`.",
    )
