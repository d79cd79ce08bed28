"""`lake setup`: the jars that the Python packages do not bring along, each compared with its checksum in `jars.lock`.

Ivy itself checks nothing but what the server of a jar says about it, and two processes that share its cache disturb
each other: one of them ends with "module not found" although all is there. So one process at a time uses it.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lake_assets.base.extras import installed
from lake_assets.connections.spark import EXTRA_JARS, extra_jars, spark_home
from lake_assets.connections.storage import sha256_of
from lake_assets.errors import ServiceError, UsageError, suggestion
from lake_assets.services.service import check_java, java_command, java_version
from lake_assets.settings import Settings

CONFIGURATION = Path(__file__).with_name("configuration")
LOCK_FILE = CONFIGURATION / "jars.lock"
OF_TESTS = "pinot"
"""Apache Pinot's own code, which no service loads. A checkout downloads it for tests."""

SHOWN_LINES = 10

Say = Callable[[str], None]


def set_up(settings: Settings, extras: Iterable[str] = (), *, say: Say) -> list[Path]:
    """Download the jars of Spark, and those of Kafka's broker if the extra `landing` is installed.

    A folder that has the jars that its Ivy file names, none of them damaged, is left as it is.

    Args:
        settings: Name the folders.
        extras: Which of `EXTRA_JARS` are downloaded, too.
        say: Gets a line for each folder and each jar that is downloaded.

    Returns:
        The folders of the jars.

    Raises:
        ServiceError: There is no Java, or a download failed.
        UsageError: There are no such extra jars.
    """
    wanted = {settings.jars: CONFIGURATION / "ivy.xml"}
    if installed("landing"):
        wanted[settings.kafka_jars] = CONFIGURATION / "ivy-kafka.xml"
    for name in extras:
        if name not in (*EXTRA_JARS, OF_TESTS):
            raise UsageError(f"There are no jars for {name!r}.", remedy=suggestion(name, [*EXTRA_JARS]))
        wanted[extra_jars(settings, name)] = CONFIGURATION / f"ivy-{name}.xml"
    for folder, ivy in wanted.items():
        if not _has_all(folder, ivy) or changed_jars(folder):
            check_java(java_version())
            _download(folder, ivy, say)
    return list(wanted)


def _has_all(folder: Path, ivy: Path) -> bool:
    """Whether a folder has the jars that an Ivy file names."""
    named = re.findall(r'<dependency .*?name="(.+?)" rev="(.+?)"', ivy.read_text())
    return all((folder / f"{name}-{revision}.jar").exists() for name, revision in named)


def _download(folder: Path, ivy: Path, say: Say) -> None:
    """Download the jars that an Ivy file names, and all that they need, into a folder: all or none."""
    say(f"Downloading the jars of {ivy.name}")
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    resolver = next((spark_home() / "jars").glob("ivy-*.jar"))
    pattern = str(partial / "[artifact]-[revision](-[classifier]).[ext]")
    java = [java_command(), "-jar", str(resolver), "-ivy", str(ivy), "-types", "jar", "bundle", "-retrieve", pattern]
    last: deque[str] = deque(maxlen=SHOWN_LINES)
    with (
        one_at_a_time(say),
        subprocess.Popen(java, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace") as process,
    ):
        try:
            for line in process.stdout or ():
                last.append(f"    {line.rstrip()}")
                if found := re.search(r"\[SUCCESSFUL \] (\S+)", line):
                    say(f"  {found[1]}")
        except BaseException:
            process.kill()
            raise
    if process.returncode or not _has_all(partial, ivy):
        raise ServiceError(
            f"The jars of {ivy.name} could not be downloaded. Ivy's last lines:\n" + "\n".join(last),
            remedy="Connect to the network, set a proxy in JAVA_TOOL_OPTIONS, or free disk space, as they say; then run"
            " the command again.",
        )
    check_jars(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def check_jars(folder: Path, lock: Path = LOCK_FILE) -> None:
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
    for name in changed_jars(folder, lock):
        raise ServiceError(
            f"The jar {name} is not the one that was locked.",
            remedy=f"Remove Ivy's copy, a file called {name} below {_ivy_folder()}, then run the command again.",
        )


def changed_jars(folder: Path, lock: Path = LOCK_FILE) -> list[str]:
    """Return the jars of a folder that differ from their checksums. Jars that are not locked are somebody's own."""
    locked = locked_checksums(lock)
    jars = sorted(folder.glob("*.jar"))
    return [jar.name for jar in jars if jar.name in locked and sha256_of(jar) not in locked[jar.name]]


def locked_checksums(lock: Path) -> dict[str, set[str]]:
    """Return the name of each jar's file → its SHA-256; several, if organisations have jars of one name."""
    found: dict[str, set[str]] = {}
    for line in lock.read_text().splitlines():
        if not line.startswith("#"):
            coordinates, checksum = line.split()
            _, *parts = coordinates.split(":")
            found.setdefault("-".join(parts) + ".jar", set()).add(checksum)
    return found


def _ivy_folder() -> Path:
    """Return the folder of Ivy's cache. Java takes the home folder from the system's users, not from HOME."""
    return Path(pwd.getpwuid(os.getuid()).pw_dir) / ".ivy2"


@contextmanager
def one_at_a_time(say: Say, folder: Path | None = None) -> Iterator[None]:
    """Hold the lock of Ivy's cache for the block. The system frees it if the process dies.

    Args:
        say: Gets a line if another process has the lock.
        folder: Of the cache.
    """
    folder = folder or _ivy_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lake-assets.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Waiting for another process that downloads jars")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
