"""Backups of a data directory: what belongs to one, making it while services run, and restoring it.

What the data directory names but does not contain (a catalog, a warehouse, topics elsewhere) is listed, and left to
its owner.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from lake_assets.base.failpoints import BACKUP_POINTS, RESTORE_POINTS, reach
from lake_assets.connections.addresses import (
    OWNER_ONLY,
    PORTS_FILE,
    RESTORING_FOLDER,
    make_private,
    processes_of,
    run_folder,
)
from lake_assets.connections.catalog import safe_address
from lake_assets.connections.storage import sha256_of
from lake_assets.errors import StoredByNewerVersion, StoredStateError, UsageError, backup_damaged
from lake_assets.services.lifecycle import exclusive
from lake_assets.settings import __version__

if TYPE_CHECKING:
    from lake_assets.settings import Settings

FORMAT = 1
"""Of `contents.json`. A version reads all formats up to its own."""

CONTENTS_FILE = "contents.json"
FILES_FOLDER = "files"

LEFT_OUT = frozenset({"logs", run_folder(Path()).name, "key-index", "jars", "kafka-jars", RESTORING_FOLDER})
"""Entries of a data directory that are not backed up: they are derived, downloaded, or of the processes that run."""

KEPT = frozenset({str(run_folder(Path()) / PORTS_FILE)})
"""Files inside of these that are backed up all the same. Clients know the services by their ports."""

SQLITE_MAGIC = b"SQLite format 3\0"
SQLITE_COMPANIONS = ("-wal", "-shm", "-journal")
"""Endings of the files that belong to an open SQLite file. They are part of its copy."""


@dataclass(frozen=True)
class StoredFile:
    """A file of a backup.

    Attributes:
        path: Relative to the data directory, with slashes.
        bytes: Its size.
        sha256: Its checksum, in hexadecimal.
        mode: Its permissions.
        is_database: Whether it is an SQLite file. These are restored last.
    """

    path: str
    bytes: int
    sha256: str
    mode: int
    is_database: bool


@dataclass(frozen=True)
class Contents:
    """A whole backup.

    Attributes:
        home: The data directory that it was made of.
        made_at: When it was begun, in UTC.
        made_by: The version of the package.
        files: All files, in the order of their paths.
        elsewhere: What belongs to the lake and is not in the backup, one line each.
    """

    home: str
    made_at: str
    made_by: str
    files: tuple[StoredFile, ...]
    elsewhere: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)


def is_backed_up(path: str) -> bool:
    """Return whether a file of a data directory belongs in a backup. path: relative to it, with slashes."""
    return path in KEPT or PurePosixPath(path).parts[0] not in LEFT_OUT


def without_companions(paths: Iterable[str], databases: frozenset[str]) -> list[str]:
    """Return the paths without the journals of SQLite files. databases: the paths of the SQLite files."""
    companions = {database + ending for database in databases for ending in SQLITE_COMPANIONS}
    return sorted(set(paths) - companions)


def to_json(contents: Contents) -> str:
    """Return the text of `contents.json`."""
    return json.dumps({"format": FORMAT, **asdict(contents)}, indent=1)


def parse(text: str, folder: object) -> Contents:
    """Return the contents of a backup.

    Args:
        text: The text of `contents.json`.
        folder: The backup, for messages.

    Raises:
        StoredByNewerVersion: A newer version has made the backup.
        StoredStateError: The text cannot be read.
    """
    try:
        content: dict[str, Any] = json.loads(text)
        if int(content["format"]) > FORMAT:
            made_by = content.get("made_by")
            raise StoredByNewerVersion(
                f"The backup {folder}", found=content["format"], readable=FORMAT, written_by=made_by
            )
        files = tuple(StoredFile(**file) for file in content["files"])
        named = {name: str(content[name]) for name in ("home", "made_at", "made_by")}
        return Contents(files=files, elsewhere=tuple(content["elsewhere"]), **named)
    except (ValueError, TypeError, KeyError) as error:
        raise backup_damaged(folder, CONTENTS_FILE, "cannot be read") from error


def check_space(needed: int, free: int, folder: object) -> None:
    """Refuse a copy that does not fit.

    Args:
        needed: Bytes that are copied.
        free: Bytes that are free on the disk of the folder.
        folder: Where the copy goes, for the message.

    Raises:
        UsageError: It does not fit.
    """
    if needed > free:
        raise UsageError(
            f"The copy in {folder} needs {needed:,} bytes, and its disk has {free:,} bytes free.",
            remedy="Free some space, or use a folder on another disk.",
        )


def check_home(contents: Contents, home: object, folder: object) -> None:
    """Refuse a backup of another data directory: its tables name their files by whole paths.

    Raises:
        UsageError: The backup was made of another path.
    """
    if contents.home != str(home):
        raise UsageError(
            f"The backup {folder} is of {contents.home}, and LAKE_HOME is {home}.",
            remedy=f"Set LAKE_HOME={contents.home}: tables name their files by whole paths.",
        )


CHUNK_BYTES = 1 << 20
Fingerprint = tuple[int, int]
"""Size and time of the last change of a file: if neither differs, the file is the same."""


def files_of(home: Path) -> dict[str, Fingerprint]:
    """Return the files of a data directory that belong in a backup: relative path → fingerprint.

    Raises:
        UsageError: One of them is a symbolic link.
    """
    found: dict[str, Fingerprint] = {}
    for path in _walk(home):
        name = path.relative_to(home).as_posix()
        if not is_backed_up(name):
            continue
        if path.is_symlink():
            raise UsageError(
                f"{path} is a symbolic link, and a backup of {home} would not contain what it leads to.",
                remedy="Replace it by the setting of that folder (lake_assets/settings.py), or by the folder itself.",
            )
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            found[name] = (status.st_size, status.st_mtime_ns)
    return found


def is_database(file: Path) -> bool:
    """Return whether a file is an SQLite file."""
    with file.open("rb") as opened:
        return opened.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC


def copy_database(home: Path, path: str, files: Path) -> StoredFile:
    """Copy an SQLite file of a data directory.

    Args:
        home: The data directory.
        path: The file, relative to it.
        files: The folder that gets the file under the same path.

    Raises:
        StoredStateError: The file is damaged.
    """
    source, target = home / path, _with_folder(files / path)
    try:
        with closing(sqlite3.connect(source)) as reader, closing(sqlite3.connect(target)) as writer:
            reader.backup(writer)
            (verdict,) = writer.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        if "full" in str(error):
            raise
        verdict = str(error)
    if verdict != "ok":
        raise StoredStateError(
            f"{source} cannot be backed up, because it is damaged: {verdict.splitlines()[0]}.",
            remedy="Run `lake doctor`, or restore the file from an earlier backup.",
        )
    shutil.copymode(source, target)
    return _stored(target, path, sha256_of(target), is_database=True)


def copy_file(source: Path, path: str, files: Path, *, database: bool = False) -> StoredFile:
    """Copy a file as it is.

    Args:
        source: The folder that has the file.
        path: The file, relative to it.
        files: The folder that gets the file under the same path.
        database: What the result says about the file.

    Raises:
        UsageError: The file was removed meanwhile.
    """
    target = _with_folder(files / path)
    digest = hashlib.sha256()
    try:
        with (source / path).open("rb") as reader, target.open("wb") as writer:
            while chunk := reader.read(CHUNK_BYTES):
                digest.update(chunk)
                writer.write(chunk)
        shutil.copystat(source / path, target)
    except FileNotFoundError:
        raise UsageError(
            f"{source / path} was removed while it was copied.",
            remedy="Stop what works on the folder, such as cron jobs, then run the command again.",
        ) from None
    return _stored(target, path, digest.hexdigest(), is_database=database)


def _stored(file: Path, path: str, digest: str, *, is_database: bool) -> StoredFile:
    status = file.stat()
    return StoredFile(path, status.st_size, digest, stat.S_IMODE(status.st_mode), is_database)


def _with_folder(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def _walk(home: Path) -> Iterator[Path]:
    """Yield all files below a folder, and links to folders. Folders that are left out are not opened."""
    for folder, folders, names in os.walk(home):
        here = Path(folder)
        yield from (here / name for name in names)
        yield from (here / name for name in folders if (here / name).is_symlink())


def elsewhere(settings: Settings) -> tuple[str, ...]:
    """Return a line for each part of the lake that a backup of the data directory lacks, and how to back it up."""
    return tuple(_servers(settings)) + tuple(_places(settings))


def _servers(settings: Settings) -> Iterator[str]:
    if settings.dagster_uri:
        yield f"Dagster's runs and events: {safe_address(settings.dagster_uri.get_secret_value())} (pg_dump)"
    if settings.zookeeper:
        yield f"Lineage of served tables, turns of engagement lakes: ZooKeeper {settings.zookeeper} (its data folders)"
    if settings.kafka:
        yield f"Messages: Kafka {settings.kafka} (its retention must reach back to the backup)"
    if settings.erasure_key:
        yield "The key of erasures: LAKE_ERASURE_KEY (keep a copy; without it, erased ids are not recognised)"


def _places(settings: Settings) -> Iterator[str]:
    addresses = {
        "Catalog": settings.catalog_address,
        **{f"Manifest of landed files of zone {zone}": settings.landing_manifest_address(zone) for zone in "ab"},
        "Files of tables": settings.warehouse_address,
        "Landed files": str(settings.landing or settings.landing_folder),
        **{f"Landed files of zone {zone}": str(address) for zone, address in settings.landing_zones.items()},
        "Segments of served tables": str(settings.segments),
    }
    for what, address in addresses.items():
        if not _is_inside(address, settings.home):
            yield f"{what}: {safe_address(address)} ({_means(address)})"


def _is_inside(address: str, home: Path) -> bool:
    parts = urlsplit(address)
    if parts.scheme not in ("", "file") and not parts.scheme.startswith("sqlite"):
        return False
    path = unquote(parts.path)
    file = Path(path[1:] if parts.scheme.startswith("sqlite") else path)
    return file.absolute().is_relative_to(home)


def _means(address: str) -> str:
    scheme = urlsplit(address).scheme
    if scheme.startswith("postgres"):
        return "pg_dump"
    if scheme.startswith("http"):
        return "by the means of its server"
    return "copy it" if scheme in ("", "file") or scheme.startswith("sqlite") else "a copy or versions of the bucket"


PARTIAL = ".partial"
DATABASES_COPIED, FILES_COPIED, MADE = BACKUP_POINTS

Progress = Callable[[int, int], None]
"""Receives how many bytes of how many are done."""


def back_up(settings: Settings, folder: Path, *, now: datetime, progress: Progress) -> Contents:
    """Make a backup.

    Args:
        settings: Of the lake.
        folder: Gets the backup. It must not exist.
        now: The time, in UTC.
        progress: Receives how far the copy is.

    Raises:
        UsageError: The folder exists or lies in the data directory, the data directory is missing, something of it
            runs or changes, or the disk is too small.
        StoredStateError: An SQLite file is damaged.
    """
    home, target = settings.home, folder.absolute()
    _check_places(home, target)
    with exclusive(home):
        check_stopped(home)
        found = files_of(home)
        check_space(sum(size for size, _ in found.values()), _free(target), target)
        with _draft(target) as draft:
            files = _copy_all(home, draft / FILES_FOLDER, found, progress)
            made = Contents(str(home), now.isoformat(), __version__, files, elsewhere(settings))
            (draft / CONTENTS_FILE).write_text(to_json(made))
            reach(FILES_COPIED)
            os.sync()
            draft.rename(target)
    reach(MADE)
    return made


def check_stopped(home: Path) -> None:
    """Refuse to work on a data directory whose services run.

    Raises:
        UsageError: They run.
    """
    running = processes_of(home)
    if running:
        raise UsageError(f"{len(running)} processes of {home} run.", remedy="Run `lake down`, then the command again.")


def _check_places(home: Path, target: Path) -> None:
    if not home.is_dir():
        raise UsageError(f"There is no data directory {home}.", remedy="Correct LAKE_HOME.")
    if target.exists():
        raise UsageError(f"{target} exists.", remedy="Name a folder that does not exist: each backup has its own.")
    if target.is_relative_to(home):
        raise UsageError(f"{target} lies in the data directory {home}.", remedy="Name a folder outside of it.")


def _free(target: Path) -> int:
    target.parent.mkdir(parents=True, exist_ok=True)
    return shutil.disk_usage(target.parent).free


@contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside the target. What a killed backup has left there is removed, as on a failure."""
    draft = target.with_name(target.name + PARTIAL)
    if draft.exists() and not {entry.name for entry in draft.iterdir()} <= {CONTENTS_FILE, FILES_FOLDER}:
        raise UsageError(f"{draft} exists, and no backup has left it.", remedy="Name another folder.")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=OWNER_ONLY)
    try:
        yield draft
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _copy_all(home: Path, files: Path, found: Mapping[str, Fingerprint], progress: Progress) -> tuple[StoredFile, ...]:
    """Copy databases first: what they refer to is then among the files."""
    databases = frozenset(path for path in found if is_database(home / path))
    copied = [copy_database(home, path, files) for path in sorted(databases)]
    reach(DATABASES_COPIED)
    before = _plain_files(home, databases)
    of, done = sum(size for size, _ in before.values()), 0
    for path, (size, _) in before.items():
        copied.append(copy_file(home, path, files))
        done += size
        progress(done, of)
    _check_unchanged(home, before, _plain_files(home, databases))
    return tuple(sorted(copied, key=lambda file: file.path))


def _plain_files(home: Path, databases: frozenset[str]) -> dict[str, Fingerprint]:
    found = files_of(home)
    return {path: found[path] for path in without_companions(found, databases) if path not in databases}


def _check_unchanged(home: Path, before: Mapping[str, Fingerprint], after: Mapping[str, Fingerprint]) -> None:
    changed = sorted(path for path, _ in before.items() ^ after.items())
    if changed:
        raise UsageError(
            f"{home / changed[0]} was changed while the backup was made.",
            remedy="Stop what works on the data directory, such as cron jobs, then run the command again.",
        )


COPIED, HALF_MOVED, RESTORED = RESTORE_POINTS


def restore(home: Path, folder: Path, *, progress: Progress) -> Contents:
    """Restore a backup.

    Args:
        home: The data directory: missing, empty but for logs, or left by a restore of the same backup.
        folder: The backup.
        progress: Receives how far the copy is.

    Raises:
        UsageError: The data directory is not empty or another one than the backup was made of, something of it runs,
            or the disk is too small.
        StoredStateError: A file of the backup is missing or differs from its checksum. Nothing is restored.
        StoredStateError: The backup is of a newer version.
    """
    found = read(folder)
    check_home(found, home, folder)
    make_private(home)
    with exclusive(home):
        check_stopped(home)
        restoring = home / RESTORING_FOLDER
        if _copied(restoring) != found:
            _check_empty(home)
            check_space(found.bytes, shutil.disk_usage(home).free, home)
            _copy_back(found, folder, restoring, progress)
        reach(COPIED)
        _move(found, restoring, home)
    reach(RESTORED)
    return found


def read(folder: Path) -> Contents:
    """Return the contents of a backup.

    Raises:
        UsageError: The folder is no backup.
        StoredStateError: Its list of files cannot be read.
        StoredStateError: It is of a newer version.
    """
    try:
        text = (folder / CONTENTS_FILE).read_text()
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            f"{folder} is no backup: it has no {CONTENTS_FILE}.",
            remedy="Name a folder that `lake backup` has made. One that ends in .partial is not complete.",
        ) from None
    except UnicodeDecodeError as error:
        raise backup_damaged(folder, CONTENTS_FILE, "cannot be read") from error
    return parse(text, folder)


def _copied(restoring: Path) -> Contents | None:
    """Return the backup of which all files were copied and compared; None if the copy is not complete."""
    file = restoring / CONTENTS_FILE
    return parse(file.read_text(), restoring) if file.exists() else None


def _check_empty(home: Path) -> None:
    present = sorted(files_of(home))
    if present:
        raise UsageError(
            f"{home} is not empty: it has {present[0]}.",
            remedy="Move what is there away. A restore replaces nothing.",
        )


def _copy_back(found: Contents, folder: Path, restoring: Path, progress: Progress) -> None:
    """Copy all files and compare them. The list of files is written last: it says that the copy is complete."""
    shutil.rmtree(restoring, ignore_errors=True)
    restoring.mkdir()
    done = 0
    try:
        for file in found.files:
            if not (folder / FILES_FOLDER / file.path).is_file():
                raise backup_damaged(folder, file.path, "is missing")
            copied = copy_file(folder / FILES_FOLDER, file.path, restoring / FILES_FOLDER, database=file.is_database)
            if copied.sha256 != file.sha256:
                raise backup_damaged(folder, file.path, "does not have the checksum with which it was backed up")
            (restoring / FILES_FOLDER / file.path).chmod(file.mode)
            done += file.bytes
            progress(done, found.bytes)
    except BaseException:
        shutil.rmtree(restoring, ignore_errors=True)  # nothing was moved yet
        raise
    os.sync()
    draft = restoring / f"{CONTENTS_FILE}.new"
    draft.write_text(to_json(found))
    draft.rename(restoring / CONTENTS_FILE)


def _move(found: Contents, restoring: Path, home: Path) -> None:
    for number, file in enumerate(sorted(found.files, key=lambda each: each.is_database)):
        source, target = restoring / FILES_FOLDER / file.path, home / file.path
        if number == len(found.files) // 2:
            reach(HALF_MOVED)
        if source.exists():  # otherwise it was moved before the restore was interrupted
            target.parent.mkdir(parents=True, exist_ok=True)
            source.replace(target)
    os.sync()
    shutil.rmtree(restoring)
