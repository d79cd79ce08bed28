"""All checks of catalog, tables and session log, in the order in which one needs the other."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from lake_assets.base.findings import Check, Finding, run_checks
from lake_assets.connections.clients.sql_catalog import one_look
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.diagnosis import catalog_check, leftover_check, session_check, table_check
from lake_assets.incremental.diagnosis.context import Context
from lake_assets.settings import Settings


def diagnose_lake(
    settings: Settings,
    pipeline: Pipeline | None,
    *,
    clock: Callable[[], datetime],
) -> list[Finding]:
    """Check a home. Changes nothing, and raises nothing.

    Args:
        settings: The settings of the home.
        pipeline: Its pipeline; None if it cannot be loaded, so that no table counts as declared.
        clock: Returns the present moment.
    """
    context = Context(settings, pipeline, clock)
    found = run_checks([Check(catalog_check.CHECK, lambda: catalog_check.check_catalog(context))])
    if not _has_tables(context):
        return found
    checks = [
        Check(table_check.CHECK, lambda: table_check.check_tables(context)),
        Check(session_check.LOG, lambda: session_check.check_log(context)),
    ]
    references = context.references
    if references is not None:
        checks += [
            Check(session_check.WATERMARKS, lambda: session_check.check_watermarks(context, references)),
            Check(session_check.TARGETS, lambda: session_check.check_targets(context)),
            Check(session_check.OPEN_SESSIONS, lambda: session_check.check_open_sessions(context)),
            Check(leftover_check.CHECK, lambda: leftover_check.check_leftovers(context)),
        ]
    with one_look(context.catalog):
        return found + run_checks(checks)


def _has_tables(context: Context) -> bool:
    """Return whether the catalog can be read and has tables. If not, its own check has said so."""
    try:
        return bool(context.present)
    except Exception:  # of SQLAlchemy, requests or the REST client, depending on the address
        return False
