"""Copies files with their checksums, and SQLite files by SQLite's own backup, which gives one committed state."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from lake_assets.errors import StoredStateError, UsageError
from lake_assets.services.backup.contents import SQLITE_MAGIC, StoredFile, is_backed_up
from lake_assets.services.jar_files import sha256_of

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
                remedy="Replace it by the setting of that folder (docs/settings.md), or by the folder itself.",
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
