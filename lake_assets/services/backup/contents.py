"""What a backup contains: the list of its files with checksums, as JSON. Which files of a data directory belong in it.

Pure: nothing here reads or writes a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from lake_assets.connections.addresses import PORTS_FILE, RESTORING_FOLDER, run_folder
from lake_assets.errors import BackupDamaged, StoredByNewerVersion, UsageError

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
        BackupDamaged: The text cannot be read.
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
        raise BackupDamaged(folder, CONTENTS_FILE, "cannot be read") from error


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
