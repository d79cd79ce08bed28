"""A message makes a row or has a reason why not: whatever it is, and by itself alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from lake_assets.base.hours import from_milliseconds
from lake_assets.demo.membership_simulator import heartbeats, messages, worked_example
from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration import Pipeline, RawTable, Subject, Topic
from lake_assets.landing.messages import (
    BAD_HEARTBEAT,
    BAD_TIMESTAMP,
    HEARTBEAT,
    KEY_TWICE,
    NOT_JSON,
    TOO_LARGE,
    Feed,
    feeds,
    heartbeat_of,
)
from lake_assets.landing.records import Record
from lake_assets.membership import PIPELINE
from lake_assets.membership.raw import RAW, SIGNUPS

KINDS = RawTable(
    "raw.kinds",
    columns={
        "id": "string",
        "at": "timestamptz",
        "price": "decimal(9, 2)",
        "whole": "int",
        "long_one": "long",
        "share": "double",
        "yes": "boolean",
        "day": "date",
    },
    time_column="at",
)
FEED = Feed("kinds", KINDS, "id", max_bytes=10_000)
SOUND: dict[str, Any] = {"id": "a-1", "at": "2026-01-01T05:00:00.25+02:00", "price": "7.99", "whole": 3, "day": None}


def arrow_schema(raw: RawTable) -> pa.Schema:
    fields = [NestedField(i, name, kind, required=False) for i, (name, kind) in enumerate(raw.columns.items(), 1)]
    return schema_to_pyarrow(Schema(*fields), include_field_ids=False)


def parse(**values: object) -> object:
    return FEED.parse(json.dumps({**SOUND, **values}).encode())


def test_a_sound_message_is_a_row_of_all_columns() -> None:
    assert parse(more="no matter") == {
        "id": "a-1",
        "at": datetime(2026, 1, 1, 3, 0, 0, 250_000, UTC),
        "price": Decimal("7.99"),
        "whole": 3,
        **dict.fromkeys(("long_one", "share", "yes", "day")),
    }


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, NOT_JSON),
        (b"", NOT_JSON),
        (b"[1]", NOT_JSON),
        (b'"text"', NOT_JSON),
        (b"\xff\xfe", NOT_JSON),
        (b'{"id": NaN}', NOT_JSON),
        (b'{"share": 1e99999999999999999999}', NOT_JSON),
        (b"[" * 9_000, NOT_JSON),
        (b'{"id": "a-1", "more": {"x": 1, "x": 1}}', KEY_TWICE),
    ],
)
def test_what_is_no_json_object_is_told(value: bytes | None, reason: str) -> None:
    assert FEED.parse(value) == reason
    assert FEED.flaw(value, ()) == reason


def test_a_long_message_is_a_dead_letter_though_it_could_be_read() -> None:
    long = json.dumps({**SOUND, "more": "x" * 10_000}).encode()
    assert FEED.flaw(long, ()) == TOO_LARGE
    assert isinstance(FEED.parse(long), dict)


def test_a_timestamp_that_is_no_moment_makes_a_dead_letter_of_all_but_heartbeats() -> None:
    value, last = json.dumps(SOUND).encode(), 253_402_300_799_999
    assert [FEED.flaw(value, (), at) for at in (0, last, last + 1, 1_767_225_600_000_000)] == [
        None,
        None,
        BAD_TIMESTAMP,
        BAD_TIMESTAMP,
    ]
    assert FEED.flaw(b"", [(HEARTBEAT, b"2026-01-01T00:00Z")], last + 1) is None
    assert from_milliseconds(last) == datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"id": None}, "no id"),
        ({"id": ""}, "no id"),
        ({"at": None}, "no at"),
        ({"id": 7}, "bad string id"),
        ({"id": "\ud800"}, "bad string id"),
        ({"at": "yesterday"}, "bad timestamptz at"),
        ({"at": "0001-01-01T00:00:00+05:00"}, "bad timestamptz at"),
        ({"price": "7.999"}, "bad decimal(9, 2) price"),
        ({"price": "10000000.00"}, "bad decimal(9, 2) price"),
        ({"price": "Infinity"}, "bad decimal(9, 2) price"),
        ({"price": True}, "bad decimal(9, 2) price"),
        ({"whole": 1 << 31}, "bad int whole"),
        ({"whole": 1.5}, "bad int whole"),
        ({"share": "0.5"}, "bad double share"),
        ({"yes": 1}, "bad boolean yes"),
        ({"day": "2026-02-30"}, "bad date day"),
    ],
)
def test_what_a_column_cannot_hold_is_told(values: dict[str, object], reason: str) -> None:
    assert parse(**values) == reason


@pytest.mark.parametrize(
    ("field", "reason", "column", "value"),
    [
        ('"at": "2026-01-01 05:00"', "bad timestamptz at", "at", datetime(2026, 1, 1, 5, tzinfo=UTC)),
        ('"at": "2026-01-01T05:00:00.000001999Z"', "bad timestamptz at", "at", datetime(2026, 1, 1, 5, 0, 0, 1, UTC)),
        ('"price": "1_000.00"', "bad decimal(9, 2) price", "price", Decimal("1000.00")),
        ('"price": "７.00"', "bad decimal(9, 2) price", "price", Decimal("7.00")),
        ('"share": 1e400', "bad double share", "share", float("inf")),
        ('"day": "20260131"', "bad date day", "day", date(2026, 1, 31)),
        ('"whole": 1, "whole": 2', KEY_TWICE, "whole", 2),
    ],
)
def test_a_row_that_an_earlier_version_has_landed_stays_one(
    field: str, reason: str, column: str, value: object
) -> None:
    message = f'{{"id": "a-1", "at": "2026-01-01T05:00:00Z", {field}}}'.replace(
        '"at": "2026-01-01T05:00:00Z", "at"', '"at"'
    ).encode()
    assert FEED.flaw(message, ()) == reason
    row = FEED.parse_landed(message)
    assert isinstance(row, dict)
    assert row[column] == value
    assert FEED.distinct_id_of(Record(0, 0, 0, None, message, ())) == "a-1"


TEXT = st.text("aé \ud8000123-:T.e+", max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
JSON = SCALARS | st.datetimes().map(str) | st.decimals().map(str) | st.lists(SCALARS, max_size=2)


@given(st.dictionaries(st.sampled_from(list(KINDS.columns)), JSON))
def test_every_row_fits_its_table(values: dict[str, Any]) -> None:
    found = FEED.parse(json.dumps({**SOUND, **values}).encode())
    if isinstance(found, dict):
        pa.Table.from_pylist([found], schema=arrow_schema(KINDS))


@given(st.binary(max_size=60))
def test_any_bytes_have_a_verdict(value: bytes) -> None:
    assert isinstance(FEED.parse(value), str | dict)


def test_a_heartbeat_is_told_by_its_header() -> None:
    at = datetime(2026, 1, 1, 6, tzinfo=UTC)
    assert heartbeat_of([("other", b"x"), (HEARTBEAT, at.isoformat().encode())]) == at
    assert heartbeat_of([("other", b"x")]) is None
    assert heartbeat_of([(HEARTBEAT, b"soon")]) == BAD_HEARTBEAT
    assert heartbeat_of([(HEARTBEAT, None)]) == BAD_HEARTBEAT
    assert FEED.flaw(b"", [(HEARTBEAT, at.isoformat().encode())]) is None
    assert FEED.flaw(b"", [(HEARTBEAT, b"\xff")]) == BAD_HEARTBEAT


def test_a_column_that_no_message_can_hold_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"raw\.odd has the column c of type binary"):
        Feed("odd", RawTable("raw.odd", columns={"c": "binary", "at": "timestamptz"}, time_column="at"), "c")


def test_each_membership_table_has_a_feed_of_accounts() -> None:
    found = feeds(PIPELINE, prefix="test.")
    assert [(feed.topic, feed.raw, feed.distinct_id) for feed in found] == [
        (f"test.{raw.table}", raw, "account_id") for raw in RAW
    ]


def raw_orders(**more: Any) -> RawTable:
    columns = {"order_id": "string", "person_id": "string", "shop": "string", "at": "timestamptz"}
    return RawTable("raw.orders", columns=columns, time_column="at", **more)


PERSON = Subject("person", columns=("person_id",))


@pytest.mark.parametrize(
    ("declared", "subjects", "found"),
    [
        ({}, (), []),
        ({}, (PERSON,), [("test.raw.orders", "person_id")]),
        ({"feed": False}, (PERSON,), []),
        ({"feed": Topic("shop")}, (), [("test.raw.orders", "shop")]),
        ({"feed": Topic("person_id", name="Orders-v2")}, (PERSON,), [("Orders-v2", "person_id")]),
    ],
)
def test_a_table_is_landed_from_the_topic_that_it_declares(
    declared: dict[str, Any], subjects: tuple[Subject, ...], found: list[tuple[str, str]]
) -> None:
    pipeline = Pipeline(raw=(raw_orders(**declared),), targets=(), start="2026-01-01-00:00", subjects=subjects)
    assert [(feed.topic, feed.distinct_id) for feed in feeds(pipeline, prefix="test.")] == found


def two_tables(**declared: Any) -> Pipeline:
    columns = {"person_id": "string", "at": "timestamptz"}
    other = RawTable("raw.visits", columns, time_column="at", feed=Topic("person_id", "orders"))
    return Pipeline((raw_orders(**declared), other), targets=(), start="2026-01-01-00:00", subjects=(PERSON,))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: raw_orders(feed="orders"), r"feed= of raw\.orders is 'orders', which is no Topic\.\n  → Write feed="),
        (lambda: raw_orders(feed=Topic("who")), r"id column 'who', which is not among.*\n  → .*order_id, person_id"),
        (lambda: Topic("shop", name="a/b"), r"The topic is called 'a/b'\.\n  → Use up to 249"),
        (lambda: Topic("shop", name=".."), r"The topic is called '\.\.'\.\n"),
        (lambda: two_tables(feed=Topic("shop")), r"id column 'shop', but erasures.*\n  → .*one of: person_id"),
        (
            lambda: two_tables(feed=Topic("person_id", "orders")),
            r"raw\.orders and raw\.visits are both landed from the topic 'orders'\.\n",
        ),
    ],
)
def test_a_feed_that_cannot_work_is_refused(wrong: Callable[[], object], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        wrong()


def test_the_simulator_sends_the_rows_that_it_lands() -> None:
    landing = worked_example()[1]
    by_topic = {feed.topic: feed for feed in feeds(PIPELINE)}
    for raw in RAW:
        sent = [m for m in messages(landing) if m.topic == raw.table]
        rows = landing.rows[raw.table].select(list(raw.columns)).to_pylist()
        assert [by_topic[m.topic].parse(m.value) for m in sent] == rows
        assert [m.key.decode() for m in sent] == [row["account_id"] for row in rows]
        assert {m.timestamp for m in sent} <= {int(landing.landed_at.timestamp() * 1000)}
    assert heartbeats(landing)[SIGNUPS.table] == datetime(2026, 1, 1, 7, tzinfo=UTC)
