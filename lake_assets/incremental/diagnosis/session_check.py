"""The checks of the session log: its files, the tables that watermarks name, open sessions, and what dead ones left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from lake_assets.base.findings import Finding, Level, Repair
from lake_assets.errors import SourceReplaced, TableDamaged
from lake_assets.incremental.diagnosis.context import EXTERNAL_RUN, Context
from lake_assets.incremental.diagnosis.forget import LOGS, forget, forgotten_by
from lake_assets.incremental.execution.engine import Engine
from lake_assets.incremental.maintenance.snapshot_references import SnapshotReferences
from lake_assets.incremental.metadata import publish, tables
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
    """Yield the targets that are not as their sessions left them: dropped, replaced, rolled back, changed by others."""
    if context.pipeline is None:
        return
    engine = Engine(context.catalog, context.pipeline, clock=context.clock)
    problems = target_problems(engine)
    for problem in problems:
        yield Finding(TARGETS, "error", problem.problem, problem.remedy)
    if not problems:
        yield Finding(TARGETS, "ok", f"{len(context.targets)} targets are as their sessions left them.")


def check_open_sessions(context: Context, references: SnapshotReferences) -> Iterator[Finding]:
    """Yield the open sessions that nobody works on any more."""
    waiting = 0
    for session in references.open_sessions():
        if context.is_dead(session["run_id"] or "", session["started_at"]):
            yield _dead_session(context, session)
        else:
            waiting += 1
            yield _active_session(session)
    if not references.open_sessions():
        yield Finding(OPEN_SESSIONS, "ok", "No session is open.")


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
            yield Finding(WATERMARKS, level, f"{process}: {error.problem}", error.remedy)


def _active_session(session: Row) -> Finding:
    name = f"Session {session['session_id']} of {session['process_name']}"
    since = f"{session['started_at']:%Y-%m-%d %H:%M} UTC"
    if session["run_id"] == EXTERNAL_RUN:
        return Finding(OPEN_SESSIONS, "ok", f"{name} waits for an external job since {since}.")
    return Finding(OPEN_SESSIONS, "ok", f"{name} is open since {since}; its run may be active.")


def _dead_session(context: Context, session: Row) -> Finding:
    process, session_id = session["process_name"], session["session_id"]
    text = f"Session {session_id} of {process} is open since {session['started_at']:%Y-%m-%d %H:%M} UTC, "
    text += "but its run is dead."
    if process not in context.targets or process not in context.present:
        return Finding(OPEN_SESSIONS, "warning", text, "No pipeline here declares the target: its own project ends it.")
    table = tables.load(context.catalog, process)
    is_published = session["state"] == "published" or publish.is_published(table, session_id)
    what = f"commits the watermarks of {session_id}, which is published"
    if not is_published:
        what = f"abandons {session_id}, which published nothing; the next session of {process} is planned anew"
    repair = Repair(what, lambda: _end(context, process, session_id, is_published=is_published))
    name = process.rpartition(".")[2]
    remedy = f"The next session of {process} finishes it: `lake catch-up {name}`. Or run `lake doctor --repair`, "
    return Finding(OPEN_SESSIONS, "warning", text, f"{remedy}which {what}.", repair)


def _end(context: Context, process: str, session_id: str, *, is_published: bool) -> None:
    """End an open session, if it still is the newest one of its process."""
    assert context.pipeline is not None
    engine = Engine(context.catalog, context.pipeline, clock=context.clock)
    record = engine.store.state(process).open_session
    if record is None or record.plan.session_id != session_id:
        return
    if is_published:
        engine.commit_session(context.pipeline.target(process))
    else:
        engine.store.record(replace(record, state="abandoned", ended_at=context.clock()), after=record)
