"""`lake setup`: the jars that the Python packages do not bring along, each compared with its checksum in `jars.lock`,
and what the JVM keeps of their classes.

Ivy itself checks nothing but what the server of a jar says about it, and two processes that share its cache disturb
each other: one of them ends with "module not found" although all is there. So one process at a time uses it.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import shlex
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from lake_assets.base.extras import installed
from lake_assets.connections.addresses import create_spark_token, process_of, spark_address
from lake_assets.connections.spark import EXTRA_JARS, SILENT, extra_jars, kept_classes, open_spark, spark_home
from lake_assets.connections.storage import sha256_of
from lake_assets.errors import ServiceError, UsageError, first_line, suggestion, text_of
from lake_assets.services.servers import spark
from lake_assets.services.service import check_java, free_port, java_command, java_version, running
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


def keep_classes(settings: Settings, *, say: Say) -> None:
    """Have a Spark write what it makes of its classes into a file that later ones read (class data sharing of the JVM).

    A file of this Java, this Spark and these jars is left as it is. Without one all works, only slower; so an error is
    said and not raised.

    Args:
        settings: The folder of the jars.
        say: Gets a line before, and one for an error.
    """
    file, made_of = kept_classes(settings), kept_classes(settings).with_suffix(".txt")
    java = re.findall(r"\(build ([^,)]+)", java_version() or "")  # whatever options it was started with
    parts = "\n".join([*java, str(spark_home()), *sorted(jar.name for jar in settings.jars.glob("*.jar"))])
    if file.exists() and made_of.exists() and made_of.read_text() == parts:
        return
    say("Keeping the classes of Spark for later starts, which then need two thirds of their time (a minute or two)")
    made_of.unlink(missing_ok=True)
    file.unlink(missing_ok=True)
    partial = file.with_suffix(f".{os.getpid()}.partial")  # another process may do the same
    try:
        with TemporaryDirectory(prefix="lake-setup-") as home:
            _write_classes(settings.model_copy(update={"home": Path(home)}), partial)
        partial.replace(file)
        made_of.write_text(parts)
    except Exception as error:
        what = first_line(text_of(error))
        say(f"The classes of Spark were not kept: {what}. Spark works without, and starts slower.")
    finally:
        partial.unlink(missing_ok=True)


def _write_classes(settings: Settings, file: Path) -> None:
    """Play with both kinds of tables on a Spark server. As it ends, it writes the classes that it has loaded."""
    options = f"{settings.spark_java_options} {shlex.quote(f'-XX:ArchiveClassesAtExit={file}')} {SILENT}"
    create_spark_token(settings.home)
    port = free_port()
    with running(spark(settings.model_copy(update={"spark_java_options": options}), port)):
        session = open_spark(settings.model_copy(update={"spark_remote": spark_address(settings.home, port)}))
        for statement in FIRST_STATEMENTS:
            session.sql(statement.format(delta=settings.home / "delta")).collect()
        session.stop()
        if server := process_of(settings.home, "spark"):
            server.terminate()
            server.wait()


FIRST_STATEMENTS = (
    "CREATE NAMESPACE lake.first",
    "CREATE TABLE lake.first.rows (id BIGINT, at TIMESTAMP, price DECIMAL(10, 2), name STRING) USING iceberg"
    " PARTITIONED BY (hours(at))",
    "INSERT INTO lake.first.rows SELECT id, timestamp_seconds(3600 * (id % 5)), id / 7, concat('name ', id)"
    " FROM range(1000)",
    "SELECT at, count(*), sum(price), max(name) FROM lake.first.rows WHERE price > 1 GROUP BY at ORDER BY at",
    "SELECT id FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY at DESC) AS place FROM lake.first.rows)"
    " WHERE place = 1 AND id NOT IN (SELECT id FROM lake.first.rows WHERE id < 10)",
    "MERGE INTO lake.first.rows r USING (SELECT 5L AS id) s ON r.id = s.id WHEN MATCHED THEN DELETE",
    "CREATE TABLE delta.`{delta}` (id BIGINT, name STRING) USING delta",
    "INSERT INTO delta.`{delta}` SELECT id, name FROM lake.first.rows",
    "MERGE INTO delta.`{delta}` d USING lake.first.rows r ON d.id = r.id WHEN MATCHED AND r.id > 990 THEN DELETE"
    " WHEN MATCHED THEN UPDATE SET name = upper(r.name) WHEN NOT MATCHED THEN INSERT (id, name) VALUES (r.id, r.name)",
)
"""What a first session has to do, of each kind a little."""


def _has_all(folder: Path, ivy: Path) -> bool:
    """Whether a folder has the jars that an Ivy file names."""
    named = re.findall(r'<dependency .*?name="(.+?)" rev="(.+?)"', ivy.read_text())
    return all((folder / f"{name}-{revision}.jar").exists() for name, revision in named)


def _download(folder: Path, ivy: Path, say: Say) -> None:
    """Download the jars that an Ivy file names, and all that they need, into a folder: all or none."""
    partial = folder.with_suffix(".partial")
    resolver = next((spark_home() / "jars").glob("ivy-*.jar"))
    pattern = str(partial / "[artifact]-[revision](-[classifier]).[ext]")
    java = [java_command(), "-jar", str(resolver), "-ivy", str(ivy), "-types", "jar", "bundle", "-retrieve", pattern]
    last: deque[str] = deque(maxlen=SHOWN_LINES)
    with one_at_a_time(say):
        if _has_all(folder, ivy) and not changed_jars(folder):
            return  # another process has downloaded them meanwhile
        say(f"Downloading the jars of {ivy.name}")
        shutil.rmtree(partial, ignore_errors=True)
        with subprocess.Popen(java, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace") as process:
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
                remedy="Connect to the network, set a proxy in JAVA_TOOL_OPTIONS, or free disk space, as they say; then"
                " run the command again.",
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
