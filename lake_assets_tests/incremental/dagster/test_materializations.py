"""The metadata that Dagster shows for a session. Pure."""

from __future__ import annotations

import dagster as dg

from lake_assets.incremental.dagster.materializations import report_metadata
from lake_assets.incremental.planning.session import PlannedHour, SessionPlan, SessionReport, SourceRange
from lake_assets_tests.incremental.clicks import START

SIGNUPS = "core.signup_fact"


def test_a_session_is_shown_with_its_figures() -> None:
    plan = SessionPlan(
        process=SIGNUPS,
        session_id="signup_fact-1",
        kind="session",
        load="append",
        sources=(SourceRange("raw.signups", "u", None, 5029430249498484569, 1, 0, None),),
        hours=(PlannedHour(START + 2, "append 5029430249498484569"),),
        skipped=(START,),
        notes=("compaction 7 was skipped",),
    )
    report = SessionReport(
        plan,
        "committed",
        hours_built=(START + 2,),
        rows_read=5,
        rows_written=4,
        rows_duplicate=1,
        rows_late=4,
        lateness_p50_minutes=90.5,
        lateness_p95_minutes=400.0,
        lateness_max_minutes=401.0,
        seconds={"stage": 1.5, "publish": 0.25},
    )
    shown = report_metadata(report)
    assert isinstance(shown.pop("sources"), dg.TableMetadataValue)
    assert shown == {
        "session": "signup_fact-1",
        "load": "append",
        "hours": "2026-01-01-02:00",
        "hours rebuilt": 1,
        "rows read": 5,
        "rows written": 4,
        "rows repeated": 1,
        "rows quarantined": 0,
        "rows late": 4,
        "lateness p50 (minutes)": 90.5,
        "lateness p95 (minutes)": 400.0,
        "lateness max (minutes)": 401.0,
        "seconds": {"stage": 1.5, "publish": 0.25},
        "total seconds": 1.75,
        "⚠ skipped hours": "2026-01-01-00:00 (beyond the catch-up threshold; launch a backfill to build them)",
        "notes": "compaction 7 was skipped",
    }
