"""Places in code of the user, as messages show them: `file:line`, relative to the current folder if it is in there."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

INSTALLED = ("site-packages", "dist-packages", "lib-dynload")
"""Folders of code that the user has not written."""

PACKAGE = Path(__file__).parents[2]
CALLERS = tuple(PACKAGE / name for name in ("base", "connections", "incremental"))
"""Code of the project that calls code of the user, or that it calls. The demo's pipelines are in the project, too."""

STANDARD_LIBRARY = Path(traceback.__file__).parent


def user_line(error: BaseException) -> str | None:
    """Return `file:line` of the innermost call in code of the user; None if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return shown_place(f"{error.filename}:{error.lineno}")
    found = None
    for frame in traceback.extract_tb(error.__traceback__):
        if _is_users(Path(frame.filename)):
            found = f"{frame.filename}:{frame.lineno}"
    return shown_place(found)


def users_place(place: str | None) -> str | None:
    """Return `file:line` as messages show it; None if it is not in code of the user."""
    is_users = place is not None and _is_users(Path(place.rpartition(":")[0]))
    return shown_place(place) if is_users else None


def definition(function: Callable[..., Any]) -> str:
    """Return `file:line` where a function is defined; of a query, where it is written."""
    written_at: str | None = getattr(function, "defined_at", None)
    if written_at is not None:
        return written_at
    code = getattr(function, "__code__", None)
    if code is None:
        return "an unknown place"
    return shown_place(f"{code.co_filename}:{code.co_firstlineno}") or code.co_filename


def shown_place(place: str | None) -> str | None:
    """Return `file:line` with the file's path relative to the current folder, if it is in that folder."""
    if place is None:
        return None
    file, _, line = place.rpartition(":")
    path = Path(file)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{path}:{line}"


def _is_users(path: Path) -> bool:
    is_ours = any(path.is_relative_to(caller) for caller in CALLERS)
    is_installed = path.is_relative_to(STANDARD_LIBRARY) or not set(INSTALLED).isdisjoint(path.parts)
    return path.is_file() and not is_ours and not is_installed
