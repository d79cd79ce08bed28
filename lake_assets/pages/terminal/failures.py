"""Errors on the terminal: two lines each, on standard error, and the path of the log with their tracebacks."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from lake_assets.errors.described import describe, has_details
from lake_assets.errors.texts import ErrorText

MAX_BYTES = 5 << 20
"""Size at which a log is replaced; the one before it is kept as `errors.log.1`."""

OWNER_ONLY = 0o600
"""Tracebacks may contain values of rows."""


def show_error(error: BaseException, home: Path) -> None:
    """Print an error. If the two lines may not be all there is to know, its traceback is logged."""
    typer.echo(f"Error: {describe(error)}", err=True)
    if has_details(error):
        show_log(log(error, home))


def log(error: BaseException, home: Path) -> Path | None:
    """Append the traceback of an error to the log. Return the path of the log; None if it cannot be written."""
    path = home / "logs" / "errors.log"
    command = " ".join(["lake", *sys.argv[1:2]])
    lines = traceback.format_exception(error)
    text = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC {command}\n{''.join(lines)}\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > MAX_BYTES:
            path.replace(path.with_suffix(".log.1"))
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, OWNER_ONLY)
        with os.fdopen(file, "a", encoding="utf-8") as opened:
            opened.write(text)
    except OSError:
        return None
    return path


def show_log(path: Path | None) -> None:
    """Print the path of the log, dimmed."""
    if path is not None:
        typer.secho(f"  Details: {path}", dim=True, err=True)


def show_failures(failures: Iterable[str]) -> None:
    """Print the failures of targets, two lines each, and a text that several targets have once."""
    for text in dict.fromkeys(failures):
        typer.echo(f"Error: {text}", err=True)


def show_warning(text: ErrorText) -> None:
    """Print a warning."""
    typer.secho(f"Warning: {text}", fg="yellow", err=True)


@contextmanager
def own_warnings() -> Iterator[None]:
    """Print warnings of the project as commands do; others as Python does."""
    as_python_does = warnings.showwarning

    def show(message: Any, category: type[Warning], *rest: Any, **others: Any) -> None:
        if category.__module__.startswith("lake_assets."):
            typer.secho(f"Warning: {message}", fg="yellow", err=True)
        else:
            as_python_does(message, category, *rest, **others)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
