"""The report in a real browser, on a desk and on a phone: nothing sticks out, and the verdict comes first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lake_assets.base.findings import Finding
from lake_assets.incremental.engine.arrivals import Arrivals
from lake_assets.incremental.engine.model import AuditResult, HeldHour, PlannedHour, SessionPlan
from lake_assets.incremental.engine.session_log import SessionRecord
from lake_assets.incremental.operations.overview import (
    ColumnOverview,
    Overview,
    QuarantinedRows,
    TableProgress,
    TargetOverview,
)
from lake_assets.pages import report
from lake_assets.pages.data_path import DataPath, Fact, Stage
from lake_assets.pages.page import write
from lake_assets.pages.report import verdict
from lake_assets_tests.browser import Tab, open_tab, require_browser
from lake_assets_tests.pages.test_report import HOURS, NOW, arrivals

DESK = (1400, 900)
PHONE = (390, 844)
SOURCES = ("raw.signups", "raw.plan_changes", "raw.cancel_requests", "raw.a_table_with_a_name_that_is_rather_long")
TARGETS = ("core.signup_fact", "core.cancel_fact", "core.account_state_dim_with_a_name_that_is_rather_long")
LONG = "hours 2026-01-01-07:00 to 2026-01-01-09:00 wait for raw.cancel_requests, complete through 2026-01-01-06:00"
DROPPED = Finding("targets", "error", "core.cancel_fact was dropped.", "Run `lake rebuild core.cancel_fact --reset`.")


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    require_browser()
    with open_tab(tmp_path_factory.mktemp("browser")) as found:
        yield found


def strangers() -> tuple[Overview, DataPath]:
    """One source without rows, one target that nothing has built: no landing, no lakes, nothing served."""
    source, target = TableProgress("shop.orders", "raw", None), TableProgress("mart.order_fact", "stateless", None)
    empty = TargetOverview("mart.order_fact", (), (), (), ())
    overview = Overview(NOW, (source, target), (Arrivals("shop.orders", 0, 0, None, (), ()),), (empty,))
    facts = [Fact(each.table, "no hour is complete yet") for each in (source, target)]
    return overview, DataPath((Stage("Raw tables", (facts[0],)), Stage("Facts and dimensions", (facts[1],))))


def whole() -> tuple[Overview, DataPath]:
    """All stages, long names, sessions, failed audits, hours in every state, and rows in quarantine."""
    rows = [(landed, landed - late, 10 ** (3 - late)) for landed in range(3, 30) for late in range(4)]
    standings = [TableProgress(name, "raw", HOURS + 29) for name in SOURCES]
    standings += [TableProgress(name, "sequential", HOURS + 25) for name in TARGETS]
    sources = tuple(replace(arrivals(*rows), table=name) for name in SOURCES)
    overview = Overview(NOW, tuple(standings), sources, tuple(map(built, TARGETS)))
    return overview, whole_path()


def built(name: str) -> TargetOverview:
    failed = AuditResult("not_null_account_id", False, counts={"null": 3}, sample=("account_0001", "account_0002"))
    records = []
    for number in range(12):
        plan = SessionPlan(name, f"{name}-{number}", "session", "overwrite", (), (PlannedHour(HOURS + number, LONG),))
        began = NOW - timedelta(minutes=20 * (12 - number))
        ended = began + timedelta(seconds=40)
        record = SessionRecord(plan, "committed", 1, 1, "", began, ended, built=(HOURS + number,), rows_written=30)
        records.append(replace(record, audits=(failed,) if number == 11 else ()))
    return TargetOverview(
        name,
        tuple(records),
        pending=(HOURS + 7, HOURS + 8),
        skipped=(HOURS + 1,),
        quarantine=(QuarantinedRows("raw.signups", "event_ts is over an hour after landed_at", 14),),
        held=(HeldHour(HOURS + 12, "not_null_account_id failed", "signup_fact-11"),),
        columns=(ColumnOverview("account_id", "string", LONG, ("raw.signups.account_id", "raw.cancels.account_id")),),
    )


def whole_path() -> DataPath:
    def stage(name: str, *parts: str, beside: bool = False) -> Stage:
        facts = [Fact(part, "complete through 2026-01-01-09:00", LONG if part in TARGETS else "") for part in parts]
        return Stage(name, tuple(facts), beside=beside)

    back = Fact("account_state", "COMPLETED, 2026-01-01 00:00:00", "4 → 5 segments", command=f"lake revert {'x' * 40}")
    return DataPath(
        stages=(
            stage("Kafka", *SOURCES),
            stage("Landing zones", *[f"{name}, zone {zone}" for name in SOURCES for zone in "ab"]),
            stage("Raw tables", *SOURCES),
            stage("Facts and dimensions", *TARGETS),
            stage("Engagement lakes", "email_event.ingestion", "email_event: metrics", beside=True),
            Stage("Served tables", instead=f"ZooKeeper did not answer: {LONG}", broken=True, remedy="Run `lake up`."),
        ),
        pushes=Stage("Last pushes", (back,) * 3),
        quarantine=Stage("Landed files", (Fact(f"{'f' * 80}, zone b", "since 2026-01-01", LONG, bad=True),)),
    )


def looks(tab: Tab, shown: tuple[Overview, DataPath], file: Path, size: tuple[int, int], **scheme: Any) -> Any:
    """What the browser shows of a page, after checking what must hold of every page."""
    overview, path = shown
    judged = verdict([DROPPED] if path.pushes else [], path)
    found = tab.look(write(report.page(overview, path, judged), file), *size, **scheme)
    assert found.errors == []
    measured = found.measured
    assert measured["width"] == size[0]
    assert [measured[fault] for fault in ("overflow", "overlaps", "small", "squeezed")] == [[], [], [], []]
    assert measured["stages"] == [stage.name for stage in path.stages]
    assert all(measured["charts"])
    return measured


@pytest.mark.parametrize("size", [DESK, PHONE])
def test_nothing_sticks_out_and_the_verdict_is_on_the_first_screen(
    tab: Tab, tmp_path: Path, size: tuple[int, int]
) -> None:
    stranger = looks(tab, strangers(), tmp_path / "stranger.html", size)
    assert stranger["verdict"].split() == [
        "✓",
        "All",
        "is",
        "well:",
        "nothing",
        "is",
        "wrong,",
        "and",
        "nothing",
        "is",
        "pending.",
    ]
    assert (stranger["charts"], stranger["ground"]) == ([], "rgb(245, 246, 248)")
    full = looks(tab, whole(), tmp_path / "whole.html", size, dark=True)
    said = "✗ Not well: core.cancel_fact was dropped. → Run lake rebuild core.cancel_fact --reset."
    assert " ".join(full["verdict"].split()) == said
    assert (len(full["charts"]), full["ground"]) == (2 * len(SOURCES) + 1, "rgb(18, 22, 29)")
