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

from lake_assets.base.values import Cast, Refused, cast, parts_of, time_of

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


PLAIN = st.sampled_from(["string", "int", "decimal(9, 2)", "timestamptz"])
NAMES = st.from_regex(r"[a-zé][a-z é_-]{0,5}[a-z]", fullmatch=True)
TYPES = st.recursive(
    PLAIN.map(lambda kind: (kind, None)),
    lambda types: st.one_of(
        types.map(lambda of: ("list", {"element": of})),
        st.tuples(PLAIN, types).map(lambda of: ("map", {"key": (of[0], None), "value": of[1]})),
        st.dictionaries(NAMES, types, min_size=1, max_size=4).map(lambda fields: ("struct", fields)),
    ),
)


def written(kind: Any, blank: str) -> str:
    form, parts = kind
    if parts is None:
        return str(form)
    names = [f"{name}:{blank}" if form == "struct" else "" for name in parts]
    texts = [name + written(part, blank) for name, part in zip(names, parts.values(), strict=True)]
    return f"{form}<{f',{blank}'.join(texts)}>"


def read_back(text: str) -> Any:
    found = parts_of(text)
    return (text, None) if found is None else (found[0], {name: read_back(part) for name, part in found[1].items()})


@given(TYPES, st.sampled_from(["", " "]))
def test_a_nested_type_is_read_as_it_is_written(kind: Any, blank: str) -> None:
    assert read_back(written(kind, blank)) == kind


@pytest.mark.parametrize(
    "text",
    [
        *("list<>", "list<int, int>", "list<int", "list<int>>", "map<int>", "map<int, int, int>", "struct<>"),
        *("struct<a>", "struct<a int>", "struct<a: >", "struct<: int>", "struct<a: int,>", "struct<a: int, a: int>"),
    ],
)
def test_a_malformed_nested_type_is_none(text: str) -> None:
    assert parts_of(text) is None
    assert cast(text) is None


def test_values_of_nested_types_are_cast_by_their_parts() -> None:
    kind = "struct<at: timestamptz, of: map<date, list<int>>>"
    at = datetime(2026, 1, 1, tzinfo=UTC)
    day = {"2026-01-31": [1, None]}
    assert cast_to(kind)({"at": "2026-01-01T00:00Z", "of": day, "x": 1}) == {
        "at": at,
        "of": [(at.date().replace(day=31), [1, None])],
    }
    for value, reason in (
        (1, "is no struct"),
        ({"of": []}, None),
        ({"of": [1]}, "is no map"),
        ({"of": {"x": []}}, "has in of {'x': []}, which has the key 'x', which is no date"),
        ({"of": {"2026-01-31": ["1"]}}, "has the element '1', which is no number"),
        ({"of": {"2026-01-31": [], " 2026-01-31": []}}, "has a key twice"),
        ({"of": {"2026-01-31": {}}}, "is no list"),
    ):
        if reason is None:
            assert cast_to(kind)(value) == {"at": None, "of": []}
            continue
        with pytest.raises(Refused) as refused:
            cast_to(kind)(value)
        assert reason in str(refused.value)
    with pytest.raises(Refused, match="has the field 'x', which the struct lacks"):
        cast_to(kind, whole=True)({"x": 1})
    assert cast(kind, text_only=True) is None
    assert cast("list<binary>") is None
