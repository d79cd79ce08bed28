"""Variables and values of settings that a person has misspelled."""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from dotenv import dotenv_values

from lake_assets.passed_properties import is_passed, variable_name
from lake_assets.settings import ENVIRONMENT_FILE, OF_TESTS, Settings, home_directory

SET_BY_COMMANDS = {"LAKE_HOME", "LAKE_KEPT_FOR"}  # No fields: the data directory, and the mark of its processes.

SIMILAR = 0.7  # How similar a setting must be to an unknown variable, from 0 to 1, to be the one that is meant.


@dataclass(frozen=True)
class UnknownVariable:
    """A variable `LAKE_…` that names no setting, where it is set, and the variable that is probably meant, if any."""

    name: str
    place: str
    nearest: str | None


def unknown_variables() -> list[UnknownVariable]:
    """Return the variables `LAKE_…` of the environment and of `lake.env` that name no setting, sorted by name."""
    file = home_directory() / ENVIRONMENT_FILE
    places = {**dict.fromkeys(_names_in(file), str(file)), **dict.fromkeys(os.environ, "the environment")}
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


def _names_in(file: Path) -> list[str]:
    try:
        return list(dotenv_values(file))
    except OSError:  # reported when the settings are read
        return []


def shown_value(field: str, value: object) -> str:
    """Return a malformed value of a setting for a message; that of a secret is not shown."""
    is_secret = "SecretStr" in str(Settings.model_fields[field].annotation)
    return "malformed" if is_secret else repr(value)
