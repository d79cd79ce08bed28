"""A cast is exact, or it is refused: checked against fractions and Python's datetime."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_assets.base.values import Cast, Refused, cast, time_of

NUMBERS = st.from_regex(r"[+-]?[0-9]{1,12}(\.[0-9]{0,6})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)
OFFSETS = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda minutes: timezone(timedelta(minutes=minutes)))


def cast_to(kind: str, **how: Any) -> Cast:
    found = cast(kind, **how)
    assert found is not None
    return found


def outcome(read: Cast, value: object) -> object:
    try:
        return read(value)
    except Refused:
        return None


@given(NUMBERS, st.integers(1, 38), st.data())
def test_a_number_is_exact_or_refused(text: str, precision: int, data: st.DataObject) -> None:
    scale = data.draw(st.integers(0, precision))
    exact = Fraction(text)
    fits = (exact * 10**scale).denominator == 1 and abs(exact) < 10 ** (precision - scale)
    found = outcome(cast_to(f"decimal({precision}, {scale})", text_only=True), text)
    assert (found is not None) == fits
    if isinstance(found, Decimal):
        assert Fraction(found) == exact
        assert found.as_tuple().exponent == -scale
    whole = outcome(cast_to("long", text_only=True), text)
    assert whole == (exact if exact.denominator == 1 and -(2**63) <= exact < 2**63 else None)


@given(st.datetimes(), OFFSETS, st.sampled_from("T t"), st.sampled_from(["auto", "microseconds"]))
def test_a_time_is_the_moment_that_python_reads(local: datetime, zone: timezone, sign: str, spec: str) -> None:
    at = local.replace(tzinfo=zone)
    try:
        expected: datetime | None = at.astimezone(UTC)
    except OverflowError:
        expected = None
    for text in (at.isoformat(sign, spec), f" {at.isoformat(sign, spec).replace('+00:00', 'Z')} "):
        assert outcome(cast_to("timestamptz"), text) == expected
    assert outcome(cast_to("timestamptz"), local.isoformat(sign, spec)) is None
    assert cast_to("timestamp")(local.isoformat(sign, spec)) == local


@given(st.datetimes(), st.integers(0, 999))
def test_a_time_of_arrow_is_exact_or_refused(local: datetime, nanoseconds: int) -> None:
    microseconds = (local.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert time_of(microseconds, "us", "UTC") == local.replace(tzinfo=UTC)
    assert time_of(microseconds * 1000, "ns", None) == local
    if nanoseconds:
        with pytest.raises(Refused, match="finer than a microsecond"):
            time_of(microseconds * 1000 + nanoseconds, "ns", None)


def test_a_zone_that_was_named_decides_only_where_its_clocks_do() -> None:
    read = cast_to("timestamptz", zone=ZoneInfo("America/New_York"))
    assert read("2026-07-01 09:00") == datetime(2026, 7, 1, 13, tzinfo=UTC)
    assert read("2026-07-01") == datetime(2026, 7, 1, 4, tzinfo=UTC)
    assert read("2026-07-01T09:00Z") == datetime(2026, 7, 1, 9, tzinfo=UTC)
    for twice_or_never in ("2026-11-01 01:30", "2026-03-08 02:30"):
        with pytest.raises(Refused, match="twice or never by the clocks of America/New_York"):
            read(twice_or_never)


@given(st.text(max_size=20) | st.from_regex(r"[0-9:TZ+.-]{0,30}"))
def test_any_text_has_a_verdict(text: str) -> None:
    for kind in ("int", "double", "boolean", "date", "timestamp", "timestamptz", "decimal(9, 2)"):
        outcome(cast_to(kind, text_only=True), text)
