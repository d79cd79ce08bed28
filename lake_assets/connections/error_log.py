"""The log of errors in the data directory: tracebacks, which commands do not print."""

from __future__ import annotations

import os
import traceback
from datetime import datetime
from pathlib import Path

MAX_BYTES = 5 << 20
"""Size at which a log is replaced; the one before it is kept as `errors.log.1`."""

OWNER_ONLY = 0o600
"""Tracebacks may contain values of rows."""


def error_log(home: Path) -> Path:
    """Return the path of the log."""
    return home / "logs" / "errors.log"


def log_error(home: Path, error: BaseException, *, command: str, at: datetime) -> Path | None:
    """Append the traceback of an error to the log.

    Returns:
        The path of the log; None if it cannot be written.
    """
    log = error_log(home)
    lines = traceback.format_exception(error)
    text = f"{at:%Y-%m-%d %H:%M:%S} UTC {command}\n{''.join(lines)}\n"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > MAX_BYTES:
            log.replace(log.with_suffix(".log.1"))
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, OWNER_ONLY)
        with os.fdopen(file, "a", encoding="utf-8") as opened:
            opened.write(text)
    except OSError:
        return None
    return log
