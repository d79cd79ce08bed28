"""Edits while `lake up` runs: the code server loads what the files that declare tables have become, by itself.

A thread of the web server looks at the files. If one has changed, it calls `lake init`, which analyses changed queries
and creates new tables, and then ends the code server between two runs. The supervisor starts it again, with the
definitions of now, and the other processes of Dagster notice that. A run that the server begins later has these.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lake_assets.settings import YAML, is_path, pipeline_names

LOOK_SECONDS = 2
"""Time between two looks at the files. They are read when two looks find them alike: editors write in several steps."""

IDLE_SECONDS = 60
"""The longest wait for a moment without a run. Then the code server gets the signal to end; it ends after its runs."""

OWN = "lake_assets"
"""The package itself, which nobody edits while it runs."""

COLUMNS = ".columns.json"
SUFFIXES = (*YAML, ".sql", COLUMNS)

LOAD = "from lake_assets.incremental.from_settings import *; open_pipeline(__import__('lake_assets').Settings())"
"""A program of Python that fails if nothing can be used of the declarations."""

log = logging.getLogger("dagster-webserver")


def declaring_files(pipelines: str) -> Iterator[Path]:
    """Yield the files that declare tables: of folders those of YAML and SQL, of modules all files of their package."""
    from lake_assets.incremental.sql.files import files_in

    for name in pipeline_names(pipelines):
        if is_path(name):
            path = Path(name)
            files = [path, *path.parent.glob("*")] if path.is_file() else files_in(path)
            yield from (file for file in files if file.name.endswith(SUFFIXES))
        else:
            yield from _files_of_module(name.partition(":")[0])


def _files_of_module(module: str) -> Iterator[Path]:
    if module.endswith(".py"):
        yield from Path(module).parent.glob("*.py")
        return
    top = module.partition(".")[0]
    for folder in map(Path, sys.path if top != OWN else ()):
        if (folder / top).is_dir():
            yield from (folder / top).rglob("*.py")
        elif (folder / f"{top}.py").is_file():
            yield from folder.glob("*.py")


State = dict[Path, tuple[int, int]]
"""File → when it was changed, and its size."""


def state_of(pipelines: str) -> State:
    """Return the present state of the files that declare tables."""
    found: State = {}
    for file in declaring_files(pipelines):
        try:
            status = file.stat()
        except OSError:  # it was removed just now
            continue
        found[file] = (status.st_mtime_ns, status.st_size)
    return found


def follow(pipelines: str, load_anew: Callable[[], None], *, loaded_at: float) -> None:
    """Have the definitions loaded anew whenever a file that declares tables has changed. Never returns.

    Args:
        pipelines: What declares tables, as LAKE_PIPELINES names it.
        load_anew: Does it.
        loaded_at: When the definitions were loaded, in seconds since 1970-01-01 UTC.
    """
    before = state_of(pipelines)
    loaded = before if all(changed <= loaded_at * 1e9 for changed, _ in before.values()) else {}
    while True:
        time.sleep(LOOK_SECONDS)
        now = state_of(pipelines)
        if now == loaded or now != before:
            before = now
            continue
        changed = sorted(file for file in {*now, *loaded} if now.get(file) != loaded.get(file))
        log.info("Declarations have changed, such as %s. They are loaded anew.", changed[0])
        try:
            if _prepare():
                load_anew()
        except Exception:  # of Dagster or of the disk: the next change tries again
            log.exception("The definitions could not be loaded anew.")
        # What was edited meanwhile is a change, but not what was stored beside the declarations.
        stored = {file: state for file, state in state_of(pipelines).items() if file.name.endswith(COLUMNS)}
        loaded = before = {file: state for file, state in now.items() if not file.name.endswith(COLUMNS)} | stored


def _prepare() -> bool:
    """Analyse changed queries, and create the tables that are new.

    Returns:
        Whether the definitions can be loaded. If nothing can be used of the declarations, those of before stay.
    """
    done = _run("-m", "lake_assets.cli.main", "init")
    for line in (done.stdout + done.stderr).splitlines():
        log.info("lake init: %s", line)
    return done.returncode == 0 or _run("-c", LOAD).returncode == 0


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


def end_between_runs(is_idle: Callable[[], bool], end: Callable[[], None]) -> None:
    """End the code server when no run is at work, or after `IDLE_SECONDS`: it then lets its runs end."""
    deadline = time.monotonic() + IDLE_SECONDS
    while not is_idle() and time.monotonic() < deadline:
        time.sleep(0.2)
    end()
