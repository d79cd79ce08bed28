"""The output of a step, captured in a file without processes of its own.

By itself, Dagster starts four processes for each step, two of them interpreters of Python, which copy what the step
prints to the output of the code server while it runs. Here it is copied when the step has ended. Dagster's UI shows the
file while the step runs, as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lake_assets.connections.dagster import Moved, redirected, unknown_version, use_mirror

CHUNK_BYTES = 1 << 20


def use_lean_capture() -> str:
    """Make the runs of this process, and of its forks, capture output without further processes.

    Returns:
        Why that cannot be done; empty if it is done.
    """
    try:
        use_mirror(captured)
    except Moved as error:
        return unknown_version(error)
    return ""


@contextmanager
def captured(stream: Any, path: str) -> Iterator[tuple[None, None]]:
    """Redirect a stream to a file while the block runs, then copy what it got to the stream.

    Args:
        stream: `sys.stdout` or `sys.stderr`.
        path: The file. An earlier attempt of the step may have written to it.

    Yields:
        In place of the ids of the processes that Dagster starts.
    """
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    before = file.stat().st_size
    try:
        with redirected(stream, file):
            yield None, None
    finally:
        with suppress(OSError, ValueError):  # the stream may be closed; the file has all of it
            _copy(file, before, stream)


def _copy(file: Path, start: int, stream: Any) -> None:
    with file.open(encoding="utf-8", errors="replace") as written:
        written.seek(start)
        while text := written.read(CHUNK_BYTES):
            stream.write(text)
    stream.flush()
