"""The file of settings in the data directory must be private if it sets a secret."""

from __future__ import annotations

import shlex
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from dotenv import dotenv_values
from pydantic.fields import FieldInfo

from lake_assets.errors import ConfigurationError
from lake_assets.passed_properties import is_passed, variable_name

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def require_private(file: Path, fields: Mapping[str, FieldInfo]) -> None:
    """Refuse a file that sets a secret and that others may read or change.

    Args:
        file: The file; it may be missing.
        fields: Of the settings.

    Raises:
        ConfigurationError: Its permissions let others in. Nothing of it is to be used.
    """
    try:
        is_open = file.stat().st_mode & OTHERS
        secret = next(_secrets(file, fields), None) if is_open else None
    except (OSError, ValueError):  # reported when the settings are read
        return
    if secret is not None:
        raise ConfigurationError(
            f"{file} sets the secret {secret}, and its permissions let other users read it, so it is not used.",
            remedy=f"Run `chmod 600 {shlex.quote(str(file))}`, and change the secret if others had access.",
        )


def _secrets(file: Path, fields: Mapping[str, FieldInfo]) -> Iterator[str]:
    secret = {variable_name(name) for name, field in fields.items() if "SecretStr" in str(field.annotation)}
    for name in dotenv_values(file):
        if name.upper() in secret or is_passed(name):
            yield name
