"""Each hour of a strip has the state that looking at it alone gives."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from lake_assets.incremental.engine.model import HeldHour
from lake_assets.incremental.operations.overview import Overview, TableProgress, TargetOverview
from lake_assets.pages.report import SHOWN_HOURS, completeness

NOW = datetime(2026, 1, 2, tzinfo=UTC)
HOUR = st.integers(1_000, 1_100)
HOURS = st.lists(HOUR, max_size=6, unique=True)


def target(pending: list[int], skipped: list[int], held: list[int]) -> TargetOverview:
    held_hours = tuple(HeldHour(hour, "why", "a-1") for hour in held)
    return TargetOverview("a", (), tuple(pending), tuple(skipped), (), held_hours)


def state(hour: int, through: int | None, pending: list[int], skipped: list[int], held: list[int]) -> str:
    if hour in held:
        return "held"
    if hour in skipped:
        return "skipped"
    if hour in pending:
        return "pending"
    return "complete" if through is not None and hour <= through else "missing"


@given(st.none() | HOUR, HOUR, HOURS, HOURS, HOURS)
def test_a_strip_has_the_state_of_each_of_its_hours(
    through: int | None, newest: int, pending: list[int], skipped: list[int], held: list[int]
) -> None:
    standings = (TableProgress("raw", "raw", newest), TableProgress("a", "stateless", through))
    found = completeness(Overview(NOW, standings, (), (target(pending, skipped, held),)))
    assert found
    last = max(newest, through or 0)
    assert found.last == last
    assert found.first == max(last - SHOWN_HOURS + 1, min(newest, through or newest))
    drawn = found.strips[1]
    hours = [(hour, run.state) for run in drawn.runs for hour in range(run.first, run.last + 1)]
    expected = [(h, state(h, through, pending, skipped, held)) for h in range(found.first, last + 1)]
    assert hours == expected
    assert all(one.state != other.state for one, other in zip(drawn.runs, drawn.runs[1:], strict=False))
    assert sum(run.hours for run in drawn.runs) == last - found.first + 1


def test_without_a_complete_hour_there_is_no_picture() -> None:
    assert completeness(Overview(NOW, (TableProgress("raw", "raw", None),), (), ())) is None
