"""Keeps other users of the machine out of the data directory."""

from __future__ import annotations

import os
import shlex
import stat
from contextlib import suppress
from pathlib import Path

from lake_assets.errors.texts import ErrorText

MARKS = ("catalog.db", "tables.json", "run", "spark.token")
"""A folder that has one of these is a data directory, and not one that LAKE_HOME names by mistake, such as /tmp."""

GROUP = stat.S_IRWXG
OTHERS = stat.S_IRWXO


def close_to_others(home: Path) -> ErrorText | None:
    """Let only the owner enter a data directory that a version before has left open to others.

    The permissions of a group stay if the set-group-id bit says that the group shares the folder.

    Returns:
        What was done, for a person; None if nothing was.
    """
    try:
        status = home.stat()
    except OSError:
        return None
    open_to = OTHERS if status.st_mode & stat.S_ISGID else GROUP | OTHERS
    is_ours = status.st_uid == os.geteuid() and any((home / mark).exists() for mark in MARKS)
    if not is_ours or not status.st_mode & open_to or home == Path.home():
        return None
    with suppress(OSError):  # a file system without permissions
        home.chmod(stat.S_IMODE(status.st_mode) & ~open_to)
        return ErrorText(
            f"Other users could enter {home}; now only its owner can.",
            f"To share it with a group, run `chmod g+rwxs {shlex.quote(str(home))}`.",
        )
    return None
