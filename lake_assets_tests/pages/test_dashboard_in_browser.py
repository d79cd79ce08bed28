"""The dashboard in a real browser: what it shows is what adding up the rows, one by one, gives."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode

from jinja2.utils import htmlsafe_json_dumps

from lake_assets.engagement.lake import (
    CALLS,
    EMAILS,
    EMAILS_AND_CALLS,
    MetricGroup,
    rate_columns,
)
from lake_assets.pages import dashboard
from lake_assets.pages.dashboard import CHOICES, DAY
from lake_assets.pages.page import write
from lake_assets_tests.browser import BROWSER, LONGEST, Tab, open_tab, require_browser
from lake_assets_tests.pages.test_dashboard import COUNTS, table
from lake_assets_tests.pages.test_report import HOSTILE, own_text

PROBE = Path(__file__).with_name("dashboard_probe.js").read_text()
EMAIL_KINDS, CALL_OUTCOMES = tuple(EMAILS.kinds), tuple(CALLS.outcomes)
WHOLES = dict(rate_columns(EMAILS_AND_CALLS).values())
"""Count → that of which it is a part."""

CHOSEN = (
    {"from": "2026-01-02", "to": "2026-01-04", "org_id": "acme", "by": "cadence_id"},
    {"by": "rep_id"},
    {"rep_id": "none", "by": "template_id"},
    {"to": "2026-01-02", "cadence_id": "b", "template_id": HOSTILE, "by": "org_id"},
    {"from": "2027-01-01", "by": "rep_id"},
)
"""What is looked at: the first by the page's address, the others by its forms."""

Row = dict[str, Any]
Trace = list[Any]


def made_up() -> list[Row]:
    """Rows of five days, with nulls, thousands and wholes of 0."""
    pick = random.Random(1)
    texts = {name: ["a", "b", HOSTILE, None] for name, _ in CHOICES} | {"org_id": ["acme", "globex"]}
    return [
        {
            DAY: date(2026, 1, 1) + timedelta(days=pick.randrange(5)),
            **{name: pick.choice(values) for name, values in texts.items()},
            **{name: pick.choice([0, 0, pick.randrange(3000)]) for name in COUNTS},
        }
        for _ in range(100)
    ]


def looks(rows: Sequence[Row], folder: Path) -> list[dict[str, Any]]:
    """What a browser shows of these rows, for each of `CHOSEN`."""
    page = dashboard.page(table(list(rows)), lake="email_event", version=7)
    probe = f"<script>const choices = {htmlsafe_json_dumps(CHOSEN[1:])};\n{PROBE}</script>"
    file = write(page.replace("</body>", f"{probe}</body>"), folder / "dashboard.html")
    options = ("--headless", "--no-sandbox", "--virtual-time-budget=1000", f"--user-data-dir={folder / 'profile'}")
    address = f"{file.as_uri()}#{urlencode(CHOSEN[0])}"
    ended = subprocess.run([BROWSER, *options, "--dump-dom", address], check=True, capture_output=True, timeout=LONGEST)
    told = re.search(r'<pre id="shown">(.*?)</pre>', ended.stdout.decode())
    assert told
    found: list[dict[str, Any]] = json.loads(unquote(told[1]))
    return found


def expected(rows: Sequence[Row], chosen: dict[str, str]) -> dict[str, Any]:
    """The same, by adding up."""
    left = [row for row in rows if is_chosen(row, chosen)]
    return {"cards": cards(left), "detail": detail(left, chosen["by"]), "charts": charts(left), "address": chosen}


def is_chosen(row: Row, chosen: dict[str, str]) -> bool:
    of_days = chosen.get("from", "") <= row[DAY].isoformat() <= chosen.get("to", "9999")
    return of_days and all(text(row[name]) == chosen.get(name, text(row[name])) for name, _ in CHOICES)


def text(value: str | None) -> str:
    return "none" if value is None else value


def added(rows: Sequence[Row], name: str) -> int:
    return sum(row[name] for row in rows)


def words(name: str) -> str:
    return name.replace("_", " ")


def percent(rows: Sequence[Row], name: str) -> str:
    whole = added(rows, WHOLES[name])
    return f"{100 * added(rows, name) / whole:.1f} %" if whole else "–"


def cards(rows: Sequence[Row]) -> dict[str, list[str]]:
    rates = {name: f", {percent(rows, name)} of {whole}" for name, whole in WHOLES.items()}
    return {f"card-{name}": [f"{added(rows, name):,}", words(name) + rates.get(name, "")] for name in COUNTS}


def detail(rows: Sequence[Row], by: str) -> list[list[str]]:
    """The header, and a line for each value: the most emails and calls first, then none, then by text."""
    head = [dict(CHOICES)[by]]
    for name in COUNTS:
        head += [words(name), "rate"] if name in WHOLES else [words(name)]
    of = {value: [row for row in rows if row[by] == value] for value in {row[by] for row in rows}}
    lines = []
    for value in sorted(of, key=lambda v: (-added(of[v], "sent") - added(of[v], "calls"), v is not None, text(v))):
        line = [text(value)]
        for name in COUNTS:
            line.append(f"{added(of[value], name):,}")
            line += [percent(of[value], name)] if name in WHOLES else []
        lines.append(line)
    return [head, *lines]


def charts(rows: Sequence[Row]) -> dict[str, list[Trace]]:
    """Chart → its traces: what they are called, their days, and a value for each day."""
    of = {day: [row for row in rows if row[DAY] == day] for day in sorted({row[DAY] for row in rows})}
    days = [day.isoformat() for day in of]

    def counts(names: Sequence[str]) -> list[Trace]:
        return [[words(name), days, [added(one, name) for one in of.values()]] for name in names]

    def rates(whole: str) -> list[Trace]:
        wholes = [added(one, whole) for one in of.values()]
        parts = counts([name for name, other in WHOLES.items() if other == whole])
        return [
            [name, days, [part / all_ if all_ else None for part, all_ in zip(values, wholes, strict=True)]]
            for name, _, values in parts
        ]

    rest = [added(one, "calls") - sum(added(one, name) for name in CALL_OUTCOMES) for one in of.values()]
    calls = [*counts(list(CALL_OUTCOMES)), ["other", days, rest]]
    return {"counts-0": counts(EMAIL_KINDS), "rates-0": rates("sent"), "counts-1": calls, "rates-1": rates("calls")}


def test_what_the_page_shows_for_a_choice_is_what_adding_up_gives(tmp_path: Path) -> None:
    require_browser()
    rows = made_up()
    assert looks(rows, tmp_path) == [expected(rows, chosen) for chosen in CHOSEN]


def test_the_page_shows_what_the_lake_counts() -> None:
    page = own_text(dashboard.page(table([]), lake="email_event", version=7))
    titles = re.findall(r"<h3>(.*?)</h3>", page)
    assert titles == ["Emails", "Emails: rates of sent", "Calls by outcome", "Calls: rates of calls"]
    assert (*EMAIL_KINDS, "calls", *CALL_OUTCOMES) == COUNTS
    replies = (MetricGroup("replies", kinds={"sent": "answered"}),)
    page = own_text(dashboard.page(table([]), lake="chat_message", version=7, groups=replies))
    assert re.findall(r"<h3>(.*?)</h3>", page) == ["Replies"]
    data = json.loads(re.findall(r'id="data">(.*?)</script>', page)[0])
    assert data["columns"] == [DAY, *(name for name, _ in CHOICES), "sent"]
    assert data["groups"] == [{"name": "replies", "kinds": ["sent"], "outcomes": [], "parts": [], "whole": None}]


LEGENDS = """[...document.querySelectorAll(".chart")].map((chart) => {
  const box = (name) => chart.querySelector(name).getBoundingClientRect();
  const [legend, plot, all] = [box(".legend"), box(".bglayer"), chart.getBoundingClientRect()];
  return legend.bottom <= plot.top + 1 && legend.right <= all.right + 1 && !chart.querySelector(".modebar-btn");
})"""


def test_the_first_screen_shows_the_last_30_days_on_a_desk_and_on_a_phone(tmp_path: Path) -> None:
    require_browser()
    rows = [{**row, DAY: date(2026, 1, 1) + timedelta(days=number)} for number, row in enumerate(made_up()[:60])]
    file = write(dashboard.page(table(rows), lake="email_event", version=7), tmp_path / "dashboard.html")
    with open_tab(tmp_path) as tab:
        for width, height in ((1400, 900), (390, 844)):
            found = tab.look(file, width, height)
            assert found.errors == []
            assert [found.measured[fault] for fault in ("overflow", "overlaps", "small")] == [[], [], []]
            days = tab.value('document.querySelector(".chart").data[0].x')
            assert (days[0], days[-1], len(days)) == ("2026-01-31", "2026-03-01", 30)
            assert tab.value("document.forms[0].elements.from.value") == "2026-01-31"
            assert tab.value(LEGENDS) == [True] * 4
        assert_the_address_has_the_dates(tab, file)


def assert_the_address_has_the_dates(tab: Tab, file: Path) -> None:
    """After `?` as well as after `#`, and a choice in the page goes to the address."""
    dates = "from=2026-01-05&to=2026-01-07"
    for query in (f"?{dates}", f"#{dates}", f"?from=2026-02-01#{dates}"):
        assert tab.look(file, 1400, 900, query=query).errors == []
        assert tab.value('document.querySelector(".chart").data[0].x') == ["2026-01-05", "2026-01-06", "2026-01-07"]
    tab.value("document.forms[0].elements.to.value = '2026-01-06'")
    tab.value("document.forms[0].dispatchEvent(new Event('change'))")
    assert tab.value("location.hash") == "#from=2026-01-05&to=2026-01-06&by=rep_id"
