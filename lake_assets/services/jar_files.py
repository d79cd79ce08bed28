"""Downloaded jars: they are compared with `jars.lock`, and one process at a time uses Ivy's cache.

Ivy itself checks nothing but what the server of a jar says about it, and two processes that share its cache disturb
each other: one of them ends with "module not found" although all is there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lake_assets.errors import ServiceError

LOCK_FILE = "jars.lock"
COMMENT = "#"


def locked_checksums(lock: Path) -> dict[str, set[str]]:
    """Return the name of each jar's file → its SHA-256; several, if organisations have jars of one name."""
    found: dict[str, set[str]] = {}
    for line in lock.read_text().splitlines():
        if line.startswith(COMMENT):
            continue
        coordinates, checksum = line.split()
        _, *parts = coordinates.split(":")
        found.setdefault("-".join(parts) + ".jar", set()).add(checksum)
    return found


def check_jars(folder: Path, lock: Path) -> None:
    """Compare all jars of a folder with their checksums.

    Raises:
        ServiceError: A jar differs, or is not locked.
    """
    locked = locked_checksums(lock)
    for jar in sorted(folder.glob("*.jar")):
        if jar.name not in locked:
            raise ServiceError(
                f"{lock} has no checksum of {jar.name}.",
                remedy="Compare it with its project's, then add the line `organisation:name:revision SHA-256`.",
            )
        if sha256_of(jar) not in locked[jar.name]:
            raise ServiceError(
                f"The jar {jar.name} is not the one that was locked.",
                remedy=f"Remove Ivy's copy, a file called {jar.name} below {ivy_folder()}, then run the command again.",
            )


def changed_jars(folder: Path, lock: Path) -> list[str]:
    """Return the jars of a folder that differ from their checksums. Jars that are not locked are somebody's own."""
    locked = locked_checksums(lock)
    jars = sorted(folder.glob("*.jar"))
    return [jar.name for jar in jars if jar.name in locked and sha256_of(jar) not in locked[jar.name]]


def ivy_folder() -> Path:
    """Return the folder of Ivy's cache. Java takes the home folder from the system's users, not from HOME."""
    return Path(pwd.getpwuid(os.getuid()).pw_dir) / ".ivy2"


@contextmanager
def one_at_a_time(say: Callable[[str], None], folder: Path | None = None) -> Iterator[None]:
    """Hold the lock of Ivy's cache for the block. The system frees it if the process dies.

    Args:
        say: Gets a line if another process has the lock.
        folder: Of the cache.
    """
    folder = folder or ivy_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lake-assets.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Waiting for another process that downloads jars")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
