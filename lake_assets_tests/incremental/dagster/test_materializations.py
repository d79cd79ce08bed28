"""The metadata that Dagster shows for a session. Pure."""

from __future__ import annotations

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest

from lake_assets.base.hours import hour_key
from lake_assets.incremental.dagster.asset_specs import materializations, report_metadata
from lake_assets.incremental.dagster.assets import incremental_definitions
from lake_assets.incremental.dagster.lake_resource import LAKE
from lake_assets.incremental.engine.model import PlannedHour, SessionPlan, SessionReport, SourceRange, Waiting
from lake_assets_tests.incremental.clicks import CLICKS, START, at, click_fact, click_state

SIGNUPS = "core.signup_fact"


def test_a_session_is_shown_with_its_figures() -> None:
    plan = SessionPlan(
        process=SIGNUPS,
        session_id="signup_fact-1",
        kind="session",
        load="append",
        sources=(SourceRange("raw.signups", "u", None, 5029430249498484569, 1, 0, None),),
        hours=(PlannedHour(START + 2, "append 5029430249498484569"),),
        waiting={START: Waiting("skipped")},
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
        lateness_p50_minutes=90.4666,
        lateness_p95_minutes=400.0,
        lateness_max_minutes=401.0,
        seconds={"stage": 1.50002, "publish": 0.25},
    )
    shown = report_metadata(report)
    assert isinstance(shown.pop("sources"), dg.TableMetadataValue)
    assert shown == {
        "session": "signup_fact-1",
        "load": "append",
        "hours": "2026-01-01-02:00",
        "hours rebuilt": 1,
        "session rows read": 5,
        "session rows written": 4,
        "session rows repeated": 1,
        "session rows quarantined": 0,
        "session rows late": 4,
        "lateness p50 (minutes)": 90.5,
        "lateness p95 (minutes)": 400.0,
        "lateness max (minutes)": 401.0,
        "seconds": {"stage": 1.5, "publish": 0.25},
        "total seconds": 1.75,
        "⚠ skipped hours": "2026-01-01-00:00 (beyond the catch-up threshold; launch a backfill to build them)",
        "notes": "compaction 7 was skipped",
    }


@pytest.mark.parametrize(
    ("without", "expected"),
    [
        ((), ["FRESH", "FRESH"]),
        (("dagster/input",), ["FRESH", "STALE"]),  # what Dagster does by itself: "has a new dependency"
    ],
)
def test_a_partition_stays_fresh_whatever_is_built_upstream(without: tuple[str, ...], expected: list[str]) -> None:
    resources = {LAKE: dg.ResourceDefinition.none_resource()}
    definitions = dg.Definitions.merge(
        incremental_definitions(CLICKS, clock=lambda: at(9), end=hour_key(START + 9)),
        dg.Definitions(resources=resources),
    )
    with dg.DagsterInstance.ephemeral() as instance:
        for version, target in enumerate([click_fact, click_state, click_fact]):
            hours = (PlannedHour(START + 2, "x"),)
            code = target.code_version
            plan = SessionPlan(target.table, f"s-{version}", "session", "overwrite", (), hours, code_version=code)
            report = SessionReport(plan, "committed", (START + 2,), data_version=str(version))
            for event in materializations(target, report, [START + 2]):
                kept = {tag: value for tag, value in (event.tags or {}).items() if not tag.startswith(without or "-")}
                instance.report_runless_asset_event(event._replace(tags=kept))
        graph = definitions.resolve_asset_graph()
        resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
        keys = [dg.AssetKey(target.table.split(".")) for target in (click_fact, click_state)]
        assert [resolver.get_status(key, hour_key(START + 2)).value for key in keys] == expected
