"""The page: it needs nothing from anywhere, shows any value as text, and the command says where it is."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from plotly.offline import get_plotlyjs

from lake_assets.base.hours import hour_start
from lake_assets.errors import ErrorText
from lake_assets.incremental.engine.arrivals import Arrivals, Cell, LandedHour, Lateness
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import AuditResult, PlannedHour, SessionPlan
from lake_assets.incremental.engine.session_log import SessionRecord
from lake_assets.incremental.operations.overview import (
    ColumnOverview,
    Overview,
    QuarantinedRows,
    TableProgress,
    TargetOverview,
)
from lake_assets.membership import PIPELINE
from lake_assets.pages import charts, report
from lake_assets.pages.data_path import DataPath, Fact, Stage
from lake_assets.pages.report import Verdict
from lake_assets_tests.doors.lake_door import Done, LakeDoor

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.catalog import Catalog

    from lake_assets.settings import Settings

NOW = datetime(2026, 1, 2, tzinfo=UTC)
HOSTILE = """</script><img src="https://example.org/x" onerror='alert(1)'>&{{7*7}}"""
HOURS = PIPELINE.start_hour


def arrivals(*pairs: tuple[int, int, int]) -> Arrivals:
    """(landing hour, event hour, rows), the hours counted from the start."""
    late = Lateness(5, 60, 4000, 90_000)
    cells = tuple(Cell(HOURS + landed, HOURS + event, rows) for landed, event, rows in sorted(pairs))
    by_hour = tuple(LandedHour(hour, late) for hour in sorted({c.landed_hour for c in cells}))
    return Arrivals(f"raw.{HOSTILE}", 10, 1, late if pairs else None, by_hour, cells)


def hostile() -> Overview:
    """Values from outside that are markup, wherever a value may be."""
    failed = AuditResult(HOSTILE, False, counts={HOSTILE: 1}, sample=(HOSTILE,))
    plan = SessionPlan(HOSTILE, HOSTILE, "session", "append", (), (PlannedHour(HOURS, HOSTILE),))
    record = SessionRecord(plan, "committed", 1, 1, "", NOW, NOW, built=(HOURS,), rows_written=3, audits=(failed,))
    target = TargetOverview(
        HOSTILE,
        (record,),
        (HOURS,),
        (HOURS,),
        (QuarantinedRows(HOSTILE, HOSTILE, 4),),
        columns=(ColumnOverview(HOSTILE, HOSTILE, HOSTILE, (HOSTILE,)),),
    )
    standings = (TableProgress(HOSTILE, HOSTILE, HOURS), TableProgress("core.new", "stateless", None))
    return Overview(NOW, standings, (arrivals((0, 0, 5), (3, 1, 2)),), (target,))


def hostile_path() -> DataPath:
    fact = Fact(HOSTILE, HOSTILE, HOSTILE, bad=True, command=HOSTILE)
    stages = (Stage(HOSTILE, (fact,)), Stage("Kafka", instead=HOSTILE, broken=True))
    return DataPath(stages, Stage("Last pushes", (fact,)), Stage("Landed files", (fact,)))


def own_text(page: str) -> str:
    """The page without the library, which has addresses that it never asks for."""
    assert get_plotlyjs() in page
    return page.replace(get_plotlyjs(), "")


def test_any_value_is_shown_as_text() -> None:
    page = own_text(report.page(hostile(), hostile_path()))
    assert "<img" not in page
    assert page.count("</script>") == 3
    assert "{{7*7}}" in page
    told = json.dumps(figures(page))
    assert "<img" not in told
    assert "&lt;img" in told


def test_the_page_loads_nothing() -> None:
    page = own_text(report.page(hostile(), hostile_path()))
    assert "default-src 'none'" in page
    assert 'showSendToCloud: false, plotlyServerURL: ""' in page
    assert not re.search(r"<[^>]+\b(src|href)=|@import|url\(", page)


def test_the_verdict_is_shown_as_text() -> None:
    found = Verdict((ErrorText(f"{HOSTILE} `lake init`", HOSTILE),), (ErrorText(HOSTILE, HOSTILE),))
    page = own_text(report.page(hostile(), hostile_path(), found))
    assert "<img" not in page
    assert page.index("<code>lake init</code>") < page.index('id="path"')


def figures(page: str) -> list[charts.Figure]:
    found = re.search(r'id="figures">(.*?)</script>', page, re.DOTALL)
    assert found
    drawn: list[charts.Figure] = json.loads(found[1])
    assert page.count('<div id="chart-') == len(drawn)
    return drawn


def test_a_lake_without_rows_has_a_page_without_charts() -> None:
    empty = TargetOverview("core.some", (), (), (), ())
    page = own_text(report.page(Overview(NOW, (), (arrivals(),), (empty,))))
    assert figures(page) == []
    assert "No rows yet." in page
    assert "No table is complete through any hour yet." in page
    assert "No session yet." in page


def test_of_many_raw_tables_those_with_most_late_rows_have_charts() -> None:
    late = [Lateness(1, n % 4, n % 4, n % 4) for n in range(40)]
    many = [replace(arrivals((1, 0, 1)), table=f"raw.t{n:02}", overall=each) for n, each in enumerate(late)]
    sections = list(report._sections(Overview(NOW, (), tuple(many), ())))
    shown = [f"raw.t{n:02}" for n in range(40) if n % 4]
    for section in sections[:2]:
        assert [chart.title for chart in section.charts] == shown
        assert "has 10 more" in section.explanation


def test_a_heat_map_of_a_year_has_few_bins_and_all_rows() -> None:
    hours = range(0, 8760, 7)
    drawn = charts.heat_map(arrivals(*((h + 2, h, 3) for h in hours)))["data"][0]
    assert {len(line) for line in drawn["z"]} <= set(range(charts.MOST_BINS + 2))
    assert sum(n or 0 for line in drawn["customdata"] for n in line) == 3 * len(hours)


def test_axes_of_a_single_landing_show_hours() -> None:
    years = Lateness(3, 80_000_000, 80_000_000, 80_000_000)
    landed = replace(arrivals((9000, 0, 3)), by_landed_hour=(LandedHour(HOURS + 9000, years),))
    for axis in (
        charts.heat_map(landed)["layout"]["xaxis"],
        charts.heat_map(landed)["layout"]["yaxis"],
        charts.lateness(landed)["layout"]["xaxis"],
    ):
        first, last = (datetime.fromisoformat(each) for each in axis["range"])
        assert last - first == timedelta(hours=12)
    late = charts.lateness(landed)["layout"]["yaxis"]
    least, most = (10**each for each in late["range"])
    labels = zip(late["tickvals"], late["ticktext"], strict=True)
    assert [label for seconds, label in labels if least < seconds < most] == ["1 y", "3 y"]


def test_durations_for_people() -> None:
    spelled = [charts.duration(s) for s in (None, 1.234, 59, 60, 3599, 3600, 3900, 86_400, 100_000, -90)]
    assert (
        " | ".join(spelled)
        == "– | 1.23 s | 59 s | 1 min | 59 min | 1 h 00 min | 1 h 05 min | 1 d 0 h | 1 d 3 h | -1 min"
    )


def lake(home: Path, *arguments: str) -> Done:
    return LakeDoor(home.parent, {"LAKE_HOME": str(home)}).run("report", *arguments)


def test_the_command_says_where_the_page_is(bare_home: Settings, catalog: Catalog, tmp_path: Path) -> None:
    missing = lake(bare_home.home)
    assert (missing.code, missing.out) == (1, "")
    assert "lake init" in missing.err

    Engine(catalog, PIPELINE, clock=lambda: NOW).create_tables()
    told = lake(bare_home.home)
    assert told.out == f"The report is in {bare_home.home / 'report.html'}\n", told.err
    page = (bare_home.home / "report.html").read_text()
    assert "<h1>lake report</h1>" in page
    assert "<td>raw.signups.event_ts</td><td>When the person signed up.</td>" in page

    out = tmp_path / "new" / "page.html"
    both = lake(bare_home.home, "--json", "--out", str(out))
    assert [a["table"] for a in json.loads(both.out)["arrivals"]] == [r.table for r in PIPELINE.raw]
    assert out.exists()
    path = json.loads(both.out)["data_path"]
    assert {stage["name"]: stage["instead"] for stage in path["stages"]}["Kafka"].startswith("No Kafka runs")
    assert "No Kafka runs" in out.read_text()
    assert [stage["name"] for stage in path["stages"]].count("Engagement lakes") == 0
    assert json.loads(both.out)["verdict"]["wrong"] == []


def test_a_stage_in_a_few_words() -> None:
    fine, waits, bad = Fact("a", "here"), Fact("b", "here", "there"), Fact("c", "here", "there", bad=True)
    facts = [(fine, fine), (fine, waits), (fine, waits, bad)]
    stages = [*(Stage("s", found) for found in facts), Stage("s", broken=True), Stage("s")]
    assert [stage.summary for stage in stages] == [
        "2, nothing pending",
        "1 of 2 pending",
        "1 of 3 need attention",
        "not available",
        "nothing yet",
    ]


def test_a_session_that_is_open_reaches_to_now() -> None:
    plan = SessionPlan("core.some", "some-1", "session", "append", (), ())
    record = SessionRecord(plan, "staged", 1, 1, "", NOW - timedelta(hours=2))
    drawn = charts.sessions([TargetOverview("core.some", (record,), (), (), ())], NOW)["data"]
    assert [(bar["name"], bar["x"]) for bar in drawn] == [("staged", [7_200_000])]
    assert drawn[0]["base"] == [f"{NOW - timedelta(hours=2):%Y-%m-%d %H:%M:%S.%f}"]
    assert hour_start(HOURS) < NOW
