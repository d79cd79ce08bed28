"""Hours, their keys, and runs of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_assets.base.hours import (
    HOUR_MICROSECONDS,
    format_hours,
    hour_key,
    hour_of,
    hour_start,
    is_hour,
    moment_at,
    parse_hour,
    parse_hours,
    ranges,
    time_text,
)
from lake_assets.errors import InvalidHourKey

FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, tzinfo=UTC)
hours = st.integers(hour_of(FIRST), hour_of(LAST))


def test_an_hour_counts_from_1970_as_icebergs_transform_does() -> None:
    assert (hour_key(0), hour_key(490_896)) == ("1970-01-01-00:00", "2026-01-01-00:00")
    assert hour_key(-1) == "1969-12-31-23:00"


def test_a_key_has_four_digits_of_its_year_and_more_only_where_python_knows_no_year() -> None:
    assert (hour_key(hour_of(FIRST)), hour_key(hour_of(LAST))) == ("0001-01-01-00:00", "9999-12-31-23:00")
    assert (hour_key(hour_of(FIRST) - 1), hour_key(hour_of(LAST) + 1)) == ("0000-12-31-23:00", "+10000-01-01-00:00")
    assert hour_key(490_899_000 - 2) == "+57971-06-29-22:00"


@given(hours)
def test_keys_round_trip(hour: int) -> None:
    assert parse_hour(hour_key(hour)) == hour
    assert hour_of(hour_start(hour)) == hour


zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
years = st.integers(-60_000_000_000, 60_000_000_000).map(lambda tenths: datetime.fromtimestamp(tenths / 10, UTC))


@given(years, zones)
def test_a_moment_lies_in_its_hour_whatever_its_zone(utc: datetime, zone: timezone) -> None:
    moment = utc.astimezone(zone)
    start = hour_start(hour_of(moment))
    assert start <= moment < start + timedelta(hours=1)
    assert start.tzinfo is UTC


@pytest.mark.parametrize(
    "key",
    ["", "today", "2026-01-01", "2026-01-01-05:30", "2026-1-1-05:00", "2026-01-01 05:00", "2026-02-30-00:00", None],
)
def test_what_is_no_hour_key_is_refused_with_where_it_stood(key: str) -> None:
    with pytest.raises(InvalidHourKey, match=r"Property x of raw\.signups is .*not an hour key"):
        parse_hour(key, where="Property x of raw.signups")


@given(st.frozensets(st.integers(0, 40)))
def test_ranges_are_maximal_and_hold_exactly_the_hours(found: frozenset[int]) -> None:
    runs = list(ranges(found))
    assert [h for a, b in runs for h in range(a, b + 1)] == sorted(found)
    assert all(b + 1 < c for (_, b), (c, _) in pairwise(runs))


def test_hours_are_spelled_with_their_runs_joined() -> None:
    assert format_hours([490_899, 490_898, 490_902]) == "2026-01-01-02:00..2026-01-01-03:00, 2026-01-01-06:00"
    assert format_hours([]) == ""
    scattered = format_hours(range(490_896, 490_896 + 5000, 2))
    assert scattered.startswith("2026-01-01-00:00, 2026-01-01-02:00, ")
    assert scattered.endswith(", 2026-01-02-14:00, and 2,480 more up to 2026-07-28-06:00")


@given(st.frozensets(st.integers(490_000, 490_040)))
def test_hours_are_read_as_they_are_spelled(found: frozenset[int]) -> None:
    spelled = format_hours(found, most=None)
    assert parse_hours(spelled.split(", ") if spelled else ()) == found


@pytest.mark.parametrize("key", ["2026-01-01-03:00..2026-01-01-02:00", "..2026-01-01-02:00", "2026-01-01-03:00..x"])
def test_a_run_that_ends_before_it_begins_is_refused(key: str) -> None:
    with pytest.raises(InvalidHourKey, match=r"HOURS is .*not an hour key"):
        parse_hours([key], where="HOURS")


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_time_that_a_table_stores_has_a_text_and_a_moment(microseconds: int) -> None:
    hour = microseconds // HOUR_MICROSECONDS
    shown = time_text(microseconds)
    assert shown.startswith(hour_key(hour)[:-6])
    assert moment_at(microseconds) <= moment_at(microseconds + 1)
    if is_hour(hour):
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
        assert moment_at(microseconds) == moment
        assert datetime.fromisoformat(shown + "+00:00") == moment
        assert hour_of(hour_start(hour)) == hour
    else:
        assert hour_start(hour) in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
        assert shown[0] in "+-0"
