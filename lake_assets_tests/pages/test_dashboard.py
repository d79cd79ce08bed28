"""The dashboard: all metrics are in the page, any value as text, and it loads nothing."""

from __future__ import annotations

import json
import re
from datetime import date
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lake_assets.pages import dashboard
from lake_assets.pages.dashboard import CHOICES, DAY
from lake_assets_tests.pages.test_report import HOSTILE, own_text

COUNTS = ("sent", "opened", "replied", "bounced", "calls", "meaningful_contact", "not_interested", "left_voicemail")
NAMES = (DAY, *(name for name, _ in CHOICES), *COUNTS)
SCHEMA = pa.schema(
    [(DAY, pa.date32()), *((name, pa.string()) for name, _ in CHOICES), *((name, pa.int64()) for name in COUNTS)]
)
TEXTS = st.none() | st.sampled_from(["a", "b", HOSTILE])
ROWS = st.lists(
    st.tuples(st.dates(), *[TEXTS] * len(CHOICES), *[st.integers(0, 9)] * len(COUNTS)).map(
        lambda values: dict(zip(NAMES, values, strict=True))
    )
)


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@given(ROWS)
def test_the_cells_are_the_metrics_whatever_their_order(rows: list[dict[str, Any]]) -> None:
    found = dashboard.compact(table(rows), COUNTS)
    assert found == dashboard.compact(table(rows[::-1]), COUNTS)
    values = {DAY: [date.fromisoformat(day) for day in found["days"]], **found["values"]}
    named = [
        {
            name: (None if cell[at] < 0 else values[name][cell[at]]) if name in values else cell[at]
            for at, name in enumerate(found["columns"])
        }
        for cell in found["cells"]
    ]
    assert sorted(map(repr, named)) == sorted(map(repr, rows))


def test_any_value_is_text_and_the_page_loads_nothing() -> None:
    row = {DAY: date(2026, 1, 1), **dict.fromkeys([name for name, _ in CHOICES], HOSTILE), **dict.fromkeys(COUNTS, 1)}
    page = own_text(dashboard.page(table([row]), lake="email_event", version=7))
    assert "<img" not in page
    assert page.count("</script>") == 3
    assert "innerHTML" not in page
    assert "default-src 'none'" in page
    assert not re.search(r"<[^>]+\b(src|href)=|@import|url\(", page)
    data = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert data
    assert json.loads(data[1])["values"]["rep_id"] == [HOSTILE]
