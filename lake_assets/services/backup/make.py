"""Makes a backup of a data directory of which nothing runs.

The backup is made in `FOLDER.partial` and renamed when all of it is written, so a folder with its name is complete. The
state that it holds is of one moment: what changes while it is copied makes the command fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from lake_assets.base.failpoints import BACKUP_POINTS, reach
from lake_assets.connections.addresses import OWNER_ONLY, processes_of
from lake_assets.errors import UsageError
from lake_assets.services.backup import contents as stored
from lake_assets.services.backup.contents import CONTENTS_FILE, FILES_FOLDER, Contents, StoredFile
from lake_assets.services.backup.copying import Fingerprint, copy_database, copy_file, files_of, is_database
from lake_assets.services.backup.elsewhere import elsewhere
from lake_assets.services.lifecycle import exclusive
from lake_assets.settings import __version__

if TYPE_CHECKING:
    from lake_assets.settings import Settings

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
        stored.check_space(sum(size for size, _ in found.values()), _free(target), target)
        with _draft(target) as draft:
            files = _copy(home, draft / FILES_FOLDER, found, progress)
            made = Contents(str(home), now.isoformat(), __version__, files, elsewhere(settings))
            (draft / CONTENTS_FILE).write_text(stored.to_json(made))
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


def _copy(home: Path, files: Path, found: Mapping[str, Fingerprint], progress: Progress) -> tuple[StoredFile, ...]:
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
    return {path: found[path] for path in stored.without_companions(found, databases) if path not in databases}


def _check_unchanged(home: Path, before: Mapping[str, Fingerprint], after: Mapping[str, Fingerprint]) -> None:
    changed = sorted(path for path, _ in before.items() ^ after.items())
    if changed:
        raise UsageError(
            f"{home / changed[0]} was changed while the backup was made.",
            remedy="Stop what works on the data directory, such as cron jobs, then run the command again.",
        )
