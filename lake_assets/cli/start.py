"""What every command looks at before it starts: the variables of the settings, and the data directory.

A misspelled variable is named. A data directory that others may enter is closed to them; one that is half
restored, or that a later version has written, is not touched.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from dotenv import dotenv_values

from lake_assets.connections.addresses import RESTORING_FOLDER
from lake_assets.connections.catalog import check_version
from lake_assets.errors import StoredStateError
from lake_assets.errors.texts import ErrorText
from lake_assets.settings import ENVIRONMENT_FILE, OF_TESTS, Settings, home_directory, is_passed, variable_name

SET_BY_COMMANDS = {"LAKE_HOME", "LAKE_KEPT_FOR"}  # No fields: the data directory, and the mark of its processes.

SIMILAR = 0.7  # How similar a setting must be to an unknown variable, from 0 to 1, to be the one that is meant.

MARKS = ("catalog.db", "tables.json", "run", "spark.token")
"""A folder that has one of these is a data directory, and not one that LAKE_HOME names by mistake, such as /tmp."""

GROUP = stat.S_IRWXG
OTHERS = stat.S_IRWXO


@dataclass(frozen=True)
class UnknownVariable:
    """A variable `LAKE_…` that names no setting, where it is set, and the variable that is probably meant, if any."""

    name: str
    place: str
    nearest: str | None


def unknown_variables() -> list[UnknownVariable]:
    """Return the variables `LAKE_…` of the environment and of `lake.env` that name no setting, sorted by name."""
    file = home_directory() / ENVIRONMENT_FILE
    try:
        in_file = list(dotenv_values(file))
    except OSError:  # reported when the settings are read
        in_file = []
    places = {**dict.fromkeys(in_file, str(file)), **dict.fromkeys(os.environ, "the environment")}
    settable = [variable_name(field) for field in Settings.model_fields]
    found = []
    for name, place in sorted(places.items()):
        variable = name.upper()
        if not variable.startswith("LAKE_") or variable.startswith(OF_TESTS) or is_passed(variable):
            continue
        if variable not in SET_BY_COMMANDS.union(settable):
            nearest = get_close_matches(variable, settable, n=1, cutoff=SIMILAR)
            found.append(UnknownVariable(name, place, nearest[0] if nearest else None))
    return found


def shown_value(field: str, value: object) -> str:
    """Return a malformed value of a setting for a message; that of a secret is not shown."""
    is_secret = "SecretStr" in str(Settings.model_fields[field].annotation)
    return "malformed" if is_secret else repr(value)


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


def refuse_unusable_home(home: Path, command: Sequence[str]) -> None:
    """Let no command work on a half restored data directory, or on that of a later version.

    A restore continues what was interrupted, and services can always be stopped.

    Args:
        home: The data directory.
        command: The name of the command, if there is one.

    Raises:
        StoredStateError: A restore was interrupted.
        StoredByNewerVersion: A later version has written it.
    """
    if command != ["restore"] and (home / RESTORING_FOLDER).exists():
        raise StoredStateError(
            f"The restore of {home} was interrupted, so {home} is not complete.",
            remedy="Run the same `lake restore` again: it continues.",
        )
    if command != ["down"]:
        check_version(home)
