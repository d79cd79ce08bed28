"""Restores a backup into an empty data directory.

All files are copied into the folder `restoring` of the data directory and compared with their checksums. Only then are
they moved to their places, SQLite files last. A restore that is killed is continued by the same command; until then,
all other commands refuse the data directory.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from lake_assets.base.failpoints import RESTORE_POINTS, reach
from lake_assets.connections.addresses import RESTORING_FOLDER, make_private
from lake_assets.errors import BackupDamaged, UsageError
from lake_assets.services.backup import contents as stored
from lake_assets.services.backup.contents import CONTENTS_FILE, FILES_FOLDER, Contents
from lake_assets.services.backup.copying import copy_file, files_of
from lake_assets.services.backup.make import check_stopped
from lake_assets.services.lifecycle import exclusive

if TYPE_CHECKING:
    from lake_assets.services.backup.make import Progress

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
        BackupDamaged: A file of the backup is missing or differs from its checksum. Nothing is restored.
        StoredStateError: The backup is of a newer version.
    """
    found = read(folder)
    stored.check_home(found, home, folder)
    make_private(home)
    with exclusive(home):
        check_stopped(home)
        restoring = home / RESTORING_FOLDER
        if _copied(restoring) != found:
            _check_empty(home)
            stored.check_space(found.bytes, shutil.disk_usage(home).free, home)
            _copy(found, folder, restoring, progress)
        reach(COPIED)
        _move(found, restoring, home)
    reach(RESTORED)
    return found


def read(folder: Path) -> Contents:
    """Return the contents of a backup.

    Raises:
        UsageError: The folder is no backup.
        BackupDamaged: Its list of files cannot be read.
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
        raise BackupDamaged(folder, CONTENTS_FILE, "cannot be read") from error
    return stored.parse(text, folder)


def _copied(restoring: Path) -> Contents | None:
    """Return the backup of which all files were copied and compared; None if the copy is not complete."""
    file = restoring / CONTENTS_FILE
    return stored.parse(file.read_text(), restoring) if file.exists() else None


def _check_empty(home: Path) -> None:
    present = sorted(files_of(home))
    if present:
        raise UsageError(
            f"{home} is not empty: it has {present[0]}.",
            remedy="Move what is there away. A restore replaces nothing.",
        )


def _copy(found: Contents, folder: Path, restoring: Path, progress: Progress) -> None:
    """Copy all files and compare them. The list of files is written last: it says that the copy is complete."""
    shutil.rmtree(restoring, ignore_errors=True)
    restoring.mkdir()
    done = 0
    try:
        for file in found.files:
            if not (folder / FILES_FOLDER / file.path).is_file():
                raise BackupDamaged(folder, file.path, "is missing")
            copied = copy_file(folder / FILES_FOLDER, file.path, restoring / FILES_FOLDER, database=file.is_database)
            if copied.sha256 != file.sha256:
                raise BackupDamaged(folder, file.path, "does not have the checksum with which it was backed up")
            (restoring / FILES_FOLDER / file.path).chmod(file.mode)
            done += file.bytes
            progress(done, found.bytes)
    except BaseException:
        shutil.rmtree(restoring, ignore_errors=True)  # nothing was moved yet
        raise
    os.sync()
    draft = restoring / f"{CONTENTS_FILE}.new"
    draft.write_text(stored.to_json(found))
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
