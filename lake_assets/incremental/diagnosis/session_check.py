"""The checks of the session log: its files, the tables that watermarks name, and open sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from pyiceberg.table import Table

from lake_assets.base.findings import Finding, Level, Repair
from lake_assets.errors import SourceReplaced, TableDamaged
from lake_assets.incremental.diagnosis.context import Context
from lake_assets.incremental.diagnosis.forget import LOGS, forget, forgotten_by
from lake_assets.incremental.execution.engine import Engine
from lake_assets.incremental.execution.state import State
from lake_assets.incremental.maintenance.snapshot_references import SnapshotReferences
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.damaged_files import DamagedFile, damaged_file
from lake_assets.incremental.monitoring.targets import target_problems

LOG, WATERMARKS, TARGETS, OPEN_SESSIONS = "session log", "watermarks", "targets", "open sessions"

Row = Mapping[str, Any]


def check_log(context: Context) -> Iterator[Finding]:
    """Yield the damaged files of the session log. All files are read, because each may be the newest of a process."""
    sound = True
    for name in LOGS:
        damaged = damaged_file(context.catalog, name) if name in context.present else None
        if damaged is not None:
            sound = False
            yield _damaged(context, name, damaged)
    if sound:
        yield Finding(LOG, "ok", f"{' and '.join(LOGS)} can be read.")


def check_watermarks(context: Context, references: SnapshotReferences) -> Iterator[Finding]:
    """Yield the watermarks whose source or target is missing or was replaced."""
    found: list[Finding] = []
    for watermark in references.watermarks:
        found += _check_watermark(context, watermark)
    yield from dict.fromkeys(found)
    if not found:
        yield Finding(WATERMARKS, "ok", f"{len(references.watermarks)} watermarks fit their tables.")


def check_targets(context: Context) -> Iterator[Finding]:
    """Yield the targets that are not as their sessions left them: dropped, replaced, rolled back."""
    if context.pipeline is None:
        return
    engine = Engine(context.catalog, context.pipeline, clock=context.clock)
    problems = target_problems(engine)
    for problem in problems:
        yield Finding(TARGETS, "error", problem.problem, problem.remedy)
    if not problems:
        yield Finding(TARGETS, "ok", f"{len(context.targets)} targets are as their sessions left them.")


def check_open_sessions(context: Context) -> Iterator[Finding]:
    """Yield the sessions that other programs write. They block nobody, so none has to be ended."""
    found = []
    for name in sorted(context.targets & context.present):
        opened = State(name, table=_load(context, name)).opened
        if opened is not None:
            since = datetime.fromisoformat(opened["at"])
            text = f"Session {opened['plan']['session_id']} of {name} waits for an external job since "
            found.append(Finding(OPEN_SESSIONS, "ok", f"{text}{since:%Y-%m-%d %H:%M} UTC."))
    yield from found
    if not found:
        yield Finding(OPEN_SESSIONS, "ok", "No session is open.")


def _load(context: Context, name: str) -> Table | None:
    try:
        return tables.load(context.catalog, name)
    except TableDamaged:  # the check of tables reports it
        return None


def _damaged(context: Context, name: str, damaged: DamagedFile) -> Finding:
    what = forgotten_by(name, damaged)
    error = TableDamaged(name, damaged.path, damaged.cause, repair=what)
    repair = Repair(what, lambda: forget(context.catalog, name, damaged))
    return Finding(LOG, "error", error.problem, error.remedy, repair)


def _check_watermark(context: Context, watermark: Row) -> Iterator[Finding]:
    process = watermark["process_name"]
    source = watermark["source"]
    level: Level = "error" if process in context.targets else "warning"
    if process not in context.present and process not in context.targets:
        text = f"etl.high_watermark has watermarks of {process}, but the catalog has no such table."
        yield Finding(
            WATERMARKS, level, text, f"Restore {process}. If it was removed on purpose, nothing is to be done."
        )
    if source not in context.present:
        text = f"{process} reads {source}, but the catalog has no such table."
        yield Finding(WATERMARKS, level, text, f"Restore {source}, or correct the declaration of {process}.")
    elif damaged_file(context.catalog, source, manifests=0, data=False) is None:
        found = str(tables.load(context.catalog, source).metadata.table_uuid)
        if found != watermark["table_uuid"]:
            error = SourceReplaced(source, expected=watermark["table_uuid"], found=found)
            yield Finding(WATERMARKS, "warning", f"{process}: {error.problem}", error.remedy)
