"""What `lake plan` shows of hours that wait."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from lake_assets.base.hours import parse_hour
from lake_assets.cli import views as sessions
from lake_assets.cli.render import render
from lake_assets.incremental.engine.model import DeferredHour, NoSession

SINCE = datetime(2026, 1, 2, 9, tzinfo=UTC)
WAITS = NoSession(
    "wait",
    "hours wait",
    look_again_at=SINCE + timedelta(hours=4),
    deferred=(DeferredHour(parse_hour("2026-01-01-03:00"), int(SINCE.timestamp() * 1000), 1200),),
)


def test_a_deferred_hour_has_its_rows_and_its_age(capsys: pytest.CaptureFixture[str]) -> None:
    render(WAITS, partial(sessions.decision, now=SINCE + timedelta(hours=2, minutes=5)), as_json=False)
    said, heading, row = capsys.readouterr().out.splitlines()
    assert said == "No session: hours wait."
    assert heading.split() == ["deferred", "hour", "rows,", "at", "most", "waits", "for"]
    assert row.split() == ["2026-01-01-03:00", "1,200", "2", "h", "05", "min"]


def test_json_has_the_moment_to_look_again(capsys: pytest.CaptureFixture[str]) -> None:
    render(WAITS, sessions.decision, as_json=True)
    said = capsys.readouterr().out
    assert '"look_again_at": "2026-01-02 13:00:00+00:00"' in said
    assert '"hour": "2026-01-01-03:00"' in said
