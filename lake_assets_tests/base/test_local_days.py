"""Local days against a slow oracle: the local date of the start of every hour of several years."""

from __future__ import annotations

from datetime import date
from itertools import groupby
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_assets.base.hours import DAY, days_in, hour_key, hour_start, parse_hour, uneven_day

FIRST = parse_hour("2023-12-31-00:00")
LAST = parse_hour("2028-01-02-00:00")

SPECIAL = {
    # The clock skips midnight, repeats it, or repeats the hour before it; Apia has skipped a whole date.
    "America/Sao_Paulo": ("2017-10-01-00:00", "2018-03-01-00:00"),
    "America/Havana": ("2025-10-25-00:00", "2026-03-20-00:00"),
    "America/Scoresbysund": ("2025-10-20-00:00", "2026-04-10-00:00"),
    "Pacific/Apia": ("2011-12-20-00:00", "2012-01-10-00:00"),
}


def oracle(zone: str, first: int, last: int) -> list[tuple[date, list[int]]]:
    """The whole local days between two hours, each with its hours."""
    at = ZoneInfo(zone)
    days = groupby(range(first, last), key=lambda hour: hour_start(hour).astimezone(at).date())
    return [(day, list(hours)) for day, hours in days][1:-1]


def check(zone: str, first: int, last: int) -> set[int]:
    """Compare all days of a zone; return how many hours they have."""
    grain = DAY if zone == "UTC" else days_in(zone)
    for day, hours in oracle(zone, first, last):
        numbers = {grain.number(hour) for hour in hours}
        assert numbers == {(day - date(1970, 1, 1)).days}
        assert list(grain.numbered(numbers.pop())) == hours
        assert grain.whole([hours[len(hours) // 2]]) == set(hours)
        for hour in (hours[0], hours[11], hours[-1]):
            assert (grain.first(hour), grain.last(hour), grain.key(hour)) == (hours[0], hours[-1], str(day))
        assert grain.complete(hours[-1] - 1) == hours[0] - 1
        assert grain.complete(hours[-1]) == hours[-1]
        assert grain.partitions_in(len(hours)) == 1
    return {len(hours) for _, hours in oracle(zone, first, last)}


@pytest.mark.parametrize("zone", ["America/New_York", "Pacific/Auckland", "Europe/Berlin"])
def test_days_have_as_many_hours_as_the_clock_gives_them(zone: str) -> None:
    assert check(zone, FIRST, LAST) == {23, 24, 25}


@pytest.mark.parametrize("zone", ["UTC", "Africa/Lagos"])
def test_days_without_changes_have_24_hours(zone: str) -> None:
    assert check(zone, FIRST, LAST) == {24}


@pytest.mark.parametrize("zone", sorted(SPECIAL))
def test_a_midnight_that_is_skipped_or_repeated_is_where_the_date_changes(zone: str) -> None:
    first, last = SPECIAL[zone]
    assert check(zone, parse_hour(first), parse_hour(last)) >= {24}


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        ("Asia/Kolkata", "2020-01-01"),
        ("Asia/Kathmandu", "2020-01-01"),
        ("Australia/Lord_Howe", "2020-04-06"),  # 11 hours ahead in summer, and ten and a half in winter
        ("America/New_York", "None"),
        ("Pacific/Auckland", "None"),
    ],
)
def test_a_zone_is_uneven_from_its_first_day_that_begins_within_an_hour(zone: str, expected: str) -> None:
    assert str(uneven_day(zone, parse_hour("2020-01-01-12:00"))) == expected


@given(hour=st.integers(-30_000_000, 90_000_000), zone=st.sampled_from(["America/New_York", "Pacific/Auckland"]))
def test_every_hour_lies_in_one_day_of_23_to_25_hours_also_beyond_the_years_that_python_knows(
    hour: int, zone: str
) -> None:
    grain = days_in(zone)
    hours = grain.numbered(grain.number(hour))
    assert hour in hours
    assert len(hours) in (23, 24, 25)
    assert grain.first(hours[-1] + 1) == hours[-1] + 1


def test_a_day_is_shown_with_its_zone() -> None:
    grain = days_in("America/New_York")
    hour = parse_hour("2026-03-08-05:00")
    assert grain.format_hours([hour - 1, hour]) == "2026-03-07..2026-03-08 (America/New_York)"
    assert [hour_key(h) for h in (grain.first(hour), grain.last(hour))] == ["2026-03-08-05:00", "2026-03-09-03:00"]
    assert grain.format_hours([]) == ""
