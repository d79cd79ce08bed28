"""Hours that go together: partitions of an hour or of a day, and their keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lake_assets.base.hours import DAY, HOUR, format_hours, hour_key, hour_start, parse_hour

MIDNIGHT = parse_hour("2026-01-02-00:00")

hours = st.integers(-50_000, 1_000_000)


@given(hours)
def test_a_day_is_that_of_the_calendar(hour: int) -> None:
    moment = hour_start(hour)
    assert hour_start(DAY.first(hour)) == moment.replace(hour=0)
    assert hour_start(DAY.last(hour)) == moment.replace(hour=23)
    assert DAY.numbered(hour // 24) == range(DAY.first(hour), DAY.last(hour) + 1)
    assert DAY.key(hour) == str(moment.date())


@given(hours)
def test_a_day_is_complete_with_its_last_hour(hour: int) -> None:
    complete = DAY.complete(hour)
    assert hour_start(complete).hour == 23
    assert 0 <= hour - complete < 24


@given(st.frozensets(hours, max_size=5))
def test_of_hours_each_is_a_partition_of_its_own(found: frozenset[int]) -> None:
    assert HOUR.whole(found) == found
    assert HOUR.firsts(found) == sorted(found)
    assert HOUR.format_hours(found) == format_hours(found)
    assert all(HOUR.first(h) == HOUR.last(h) == HOUR.complete(h) and HOUR.key(h) == hour_key(h) for h in found)


def test_ranges_are_rounded_outward_to_days() -> None:
    touched = [MIDNIGHT - 1, MIDNIGHT, MIDNIGHT + 49]
    assert DAY.firsts(touched) == [MIDNIGHT - 24, MIDNIGHT, MIDNIGHT + 48]
    assert DAY.whole(touched) == {*range(MIDNIGHT - 24, MIDNIGHT + 24), *range(MIDNIGHT + 48, MIDNIGHT + 72)}
    assert DAY.format_hours([MIDNIGHT - 1, MIDNIGHT + 3, MIDNIGHT + 80]) == "2026-01-01..2026-01-02, 2026-01-05"
    assert [DAY.rounded_up(n) for n in (1, 24, 25)] == [1, 1, 2]
