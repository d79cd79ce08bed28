"""Which message makes a row, and why another one does not: one reason for each, as Spark validates them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from lake_assets.engagement.lakes import EMAIL_EVENT, MEETING_EVENT
from lake_assets.engagement.messages import (
    RETENTION_FORMAT,
    TIMES,
    Format,
    ingestion_format,
    mutation_format,
    retention_format,
    validate_messages,
)
from lake_assets.engagement.requests import TTL_DAYS

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

SOUND: dict[str, Any] = {
    "org_id": "acme",
    "engagement_id": "e1",
    "who_id": "lead 1",
    "kind": "sent",
    "engaged_at": "2026-01-01T23:30:00-02:00",
    "engagement": {"subject": "Hello", "opens": 3, "replied": True},
}
REQUEST = {
    "org_id": "acme",
    "request_id": "r1",
    "op": "merge",
    "old_id": "a",
    "new_id": "b",
    "executed_at": "2026-01-02 10:00:00",
}
FAR_OFF = (
    "9999-12-31T00:00:00Z",
    "2200-01-01T00:00:00Z",
    "2199-12-31T23:30:00-01:00",
    "1799-12-31T23:59:59.999999Z",
    "1700-01-01T00:00:00Z",
    "0001-01-01T00:00:00+05:00",
)
FARTHEST = ("2199-12-31T23:59:59.999999Z", "1800-01-01T00:00:00Z")
AS_WRITTEN = {
    "2026-01-02T01:30:00.123456789Z": "2026-01-02T01:30:00.123456+00:00",  # Go's RFC3339Nano, Java's Instant
    "2026-01-02T01:30:00.1234567Z": "2026-01-02T01:30:00.123456+00:00",  # .NET's round trip
    "2026-01-02T01:30:00.1234567+01:00": "2026-01-02T00:30:00.123456+00:00",
    "2026-01-02T01:30Z": "2026-01-02T01:30:00+00:00",  # Java leaves out seconds that are zero
    "2026-01-02T01:30": "2026-01-02T01:30:00+00:00",
    "20260102T013000Z": "2026-01-02T01:30:00+00:00",
    "20260102T013000.5-0230": "2026-01-02T04:00:00.500000+00:00",
    "20260102T0130": "2026-01-02T01:30:00+00:00",
    "2026-01-02t01:30:00z": "2026-01-02T01:30:00+00:00",
    "2026-01-02": "2026-01-02T00:00:00+00:00",
    "20260102": "2026-01-02T00:00:00+00:00",
    "2026-01-02 01:30:00+02": "2026-01-01T23:30:00+00:00",
    "2026-01-02 01:30:00 UTC": "2026-01-02T01:30:00+00:00",
    "2026-01-02T01:30:00,25Z": "2026-01-02T01:30:00.250000+00:00",
    "2026-01-01T23:30:00-02:00": "2026-01-02T01:30:00+00:00",
}
"""Texts of programs → the moment that they mean."""

NO_TIMES = (
    "2026-1-2", "2026-01-02T", "2026-01-02T1:30:00Z", "2026-01-02T25:00:00Z", "2026-01-02T01:30:00+99:00", "1767317400",
    "2026-01-02T01:30:00.Z", "2026-01-02T01:60Z", "20260102T01", "20261302", "٢٠٢٦-٠١-٠٢",
)  # fmt: skip
REASONS: dict[str | bytes | None, str | None] = {
    json.dumps(SOUND): None,
    json.dumps({**SOUND, "something": ["else", 1]}): None,
    json.dumps({**SOUND, "engagement": None}): None,
    json.dumps(SOUND)[:-1]: "not JSON",
    json.dumps(SOUND) + " \n": None,
    json.dumps(SOUND) + " garbage": "not JSON",
    json.dumps(SOUND) + json.dumps({**SOUND, "engagement_id": "e2"}): "not JSON",
    json.dumps(SOUND) + ", " + json.dumps({**SOUND, "engagement_id": "e2"}): "not JSON",
    json.dumps(SOUND) + ", 1] garbage": "not JSON",
    json.dumps(SOUND) + "}": "not JSON",
    "[1, 2]": "not JSON",
    "": "not JSON",
    None: "not JSON",
    b"\xff\xfe": "not JSON",
    "{}": "missing field org_id",
    json.dumps({**SOUND, "who_id": None}): "missing field who_id",
    json.dumps({**SOUND, "engagement_id": "  "}): "missing field engagement_id",
    json.dumps({**SOUND, "engaged_at": "soon"}): "bad date engaged_at",
    json.dumps({**SOUND, "engaged_at": "2026-02-30T00:00:00Z"}): "bad date engaged_at",
    json.dumps({**SOUND, "engaged_at": "12:30:00"}): "bad date engaged_at",
    **{json.dumps({**SOUND, "engaged_at": moment}): "bad date engaged_at" for moment in FAR_OFF},
    **{json.dumps({**SOUND, "engaged_at": moment}): None for moment in FARTHEST},
    **{json.dumps({**SOUND, "engaged_at": moment}): None for moment in AS_WRITTEN},
    **{json.dumps({**SOUND, "engaged_at": text}): "bad date engaged_at" for text in NO_TIMES},
    json.dumps({**SOUND, "engagement": {"replied": "yes"}}): "bad boolean engagement.replied",
    json.dumps({**SOUND, "engagement": {"replied": 1}}): "bad boolean engagement.replied",
    json.dumps({**SOUND, "engagement": {"opens": 3.5}}): "bad int engagement.opens",
    json.dumps({**SOUND, "engagement": {"opens": 1e30}}): "bad int engagement.opens",
    json.dumps({**SOUND, "engagement": {"opens": "many"}}): "bad int engagement.opens",
    json.dumps({**SOUND, "engagement": {"opens": "3"}}): None,
    json.dumps({**SOUND, "engagement": {"subject": 3}}): "bad string engagement.subject",
    json.dumps({**SOUND, "engagement_id": 17}): "bad string engagement_id",
    json.dumps({**SOUND, "engagement_id": {"id": "e1"}}): "bad string engagement_id",
    json.dumps({**SOUND, "who_id": ["lead 1"]}): "bad string who_id",
    json.dumps({**SOUND, "org_id": True}): "bad string org_id",
    json.dumps({**SOUND, "rep_id": "17"}): None,
    json.dumps({**SOUND, "org_id": "nobody"}): "unknown org",
}


REQUEST_REASONS = {
    json.dumps(REQUEST): None,
    json.dumps({**REQUEST, "op": "delete", "new_id": None}): None,
    json.dumps({**REQUEST, "engagement_date": "2026-01-01"}): None,
    json.dumps({**REQUEST, "op": "rename"}): "unknown op",
    json.dumps({**REQUEST, "new_id": None}): "missing field new_id",
    json.dumps({**REQUEST, "op": None}): "missing field op",
    json.dumps({**REQUEST, "engagement_date": "1 January"}): "bad date engagement_date",
    **{json.dumps({**REQUEST, "executed_at": moment}): "bad date executed_at" for moment in FAR_OFF},
    json.dumps({**REQUEST, "engagement_date": "2200-01-01"}): "bad date engagement_date",
    json.dumps({**REQUEST, "engagement_date": "1799-12-31"}): "bad date engagement_date",
    json.dumps({**REQUEST, "engagement_date": "1800-01-01"}): None,
    json.dumps({**REQUEST, "insert_record": SOUND}): None,
    json.dumps({**REQUEST, "insert_record": None}): None,
    json.dumps({**REQUEST, "request_id": 1}): "bad string request_id",
    json.dumps({**REQUEST, "insert_record": {**SOUND, "who_id": 7}}): "bad string insert_record.who_id",
    json.dumps({**REQUEST, "insert_record": "e1"}): "bad object insert_record",
    json.dumps({**REQUEST, "insert_record": json.dumps(SOUND) + " garbage"}): "bad object insert_record",
    json.dumps({**REQUEST, "insert_record": {**SOUND, "who_id": " "}}): "missing field insert_record.who_id",
    json.dumps({**REQUEST, "insert_record": {**SOUND, "engaged_at": "soon"}}): "bad date insert_record.engaged_at",
    **{
        json.dumps({**REQUEST, "insert_record": {**SOUND, "engaged_at": moment}}): "bad date insert_record.engaged_at"
        for moment in FAR_OFF
    },
    json.dumps({**REQUEST, "insert_record": {**SOUND, "engagement": {"opens": "x"}}}): (
        "bad int insert_record.engagement.opens"
    ),
}


RETENTION = {"org_id": "acme", "request_id": "r1", "requested_at": "2026-01-02T10:00:00Z"}
RETENTION_REASONS = {
    json.dumps({**RETENTION, "op": "ttl", "ttl_days": 30}): None,
    json.dumps({**RETENTION, "op": "gdpr", "who_id": "lead 1"}): None,
    json.dumps({**RETENTION, "op": "ttl", "who_id": "lead 1"}): "missing field ttl_days",
    json.dumps({**RETENTION, "op": "gdpr", "ttl_days": 30}): "missing field who_id",
    json.dumps({**RETENTION, "op": "ttl", "ttl_days": 0}): "bad int ttl_days",
    json.dumps({**RETENTION, "op": "ttl", "ttl_days": 1_000_000}): "bad int ttl_days",
    json.dumps({**RETENTION, "op": "ttl", "ttl_days": "long"}): "bad int ttl_days",
    **{
        json.dumps({**RETENTION, "op": "ttl", "ttl_days": 30, "requested_at": moment}): "bad date requested_at"
        for moment in FAR_OFF
    },
    json.dumps({**RETENTION, "op": "forget", "ttl_days": 1, "who_id": "lead 1"}): "unknown op",
}


def judge(spark: SparkSession, shape: Format, messages: list[str | bytes | None]) -> list[Row]:
    values = [message.encode() if isinstance(message, str) else message for message in messages]
    rows = [("mail", 0, offset, value) for offset, value in enumerate(values)]
    found = spark.createDataFrame(rows, "topic string, partition int, offset long, value binary")
    orgs = spark.createDataFrame([("acme",), ("acme",), ("globex",)], "org_id string")
    return validate_messages(found, shape, orgs).orderBy("offset").collect()


@pytest.mark.parametrize(
    ("shape", "reasons"),
    [
        (ingestion_format(EMAIL_EVENT), REASONS),
        (mutation_format(EMAIL_EVENT), REQUEST_REASONS),
        (RETENTION_FORMAT, RETENTION_REASONS),
    ],
)
def test_each_message_has_its_reason(
    spark: SparkSession, shape: Format, reasons: dict[str | bytes | None, str | None]
) -> None:
    found = judge(spark, shape, list(reasons))
    assert dict(zip(reasons, (row["reason"] for row in found), strict=True)) == reasons


def test_what_works_out_requests_knows_every_time_that_a_message_may_have_and_every_cut_off() -> None:
    first, end = map(pd.Timestamp, TIMES)
    _, most = TTL_DAYS
    assert first - timedelta(days=most) > pd.Timestamp.min
    assert end < pd.Timestamp.max


def test_a_time_is_the_moment_that_the_program_meant(spark: SparkSession) -> None:
    found = judge(
        spark, ingestion_format(EMAIL_EVENT), [json.dumps({**SOUND, "engaged_at": text}) for text in AS_WRITTEN]
    )
    moments = [row["engaged_at"].astimezone(UTC).isoformat() for row in found]
    assert dict(zip(AS_WRITTEN, moments, strict=True)) == AS_WRITTEN


def test_a_batch_of_an_earlier_version_is_completed_by_its_rules(spark: SparkSession) -> None:
    """Else its messages that were dead letters would be neither rows, which it has written, nor dead letters."""
    messages = [json.dumps({**SOUND, "engaged_at": text}) for text in ("2026-01-02T01:30Z", "2026-01-02T01:30:00Z")]
    found = judge(spark, ingestion_format(EMAIL_EVENT).of_old_batch(), [*messages])
    assert [row["reason"] for row in found] == ["bad date engaged_at", None]


def test_a_sound_message_is_a_typed_row(spark: SparkSession) -> None:
    [row] = judge(spark, ingestion_format(EMAIL_EVENT), [json.dumps(SOUND)])
    assert row["engaged_at"].astimezone(UTC) == datetime(2026, 1, 2, 1, 30, tzinfo=UTC)
    assert (row["org_id"], row["who_id"], row["rep_id"]) == ("acme", "lead 1", None)
    assert row["engagement"].asDict() == {
        "subject": "Hello",
        "mailbox": None,
        "opens": 3,
        "clicks": None,
        "replied": True,
    }


def test_a_lake_may_have_other_keys_in_its_messages(spark: SparkSession) -> None:
    lake = replace(
        EMAIL_EVENT, message_keys={"who_id": "Contact", "new_id": "to", "insert_record": "row", "ttl_days": "days"}
    )
    renamed = {"Contact" if name == "who_id" else name: value for name, value in SOUND.items()}
    number = json.dumps({**renamed, "Contact": 7})
    found = judge(spark, ingestion_format(lake), [json.dumps(renamed), json.dumps(SOUND), number])
    assert [row["reason"] for row in found] == [None, "missing field Contact", "bad string Contact"]
    assert found[0]["who_id"] == "lead 1"
    record = {name: value for name, value in renamed.items() if name != "org_id"}
    request = {
        "org_id": "acme",
        "request_id": "r1",
        "op": "merge",
        "old_id": "a",
        "executed_at": "2026-01-02T00:00:00Z",
    }
    spoiled = {**record, "Contact": " "}
    requests = [
        {**request, "to": "b", "row": record},
        {**request, "new_id": "b"},
        {**request, "to": "b", "row": spoiled},
    ]
    found = judge(spark, mutation_format(lake), [json.dumps(values) for values in requests])
    assert [row["reason"] for row in found] == [None, "missing field to", "missing field row.Contact"]
    assert (found[0]["new_id"], found[0]["record"]["who_id"]) == ("b", "lead 1")
    limit = {"org_id": "acme", "request_id": "r1", "op": "ttl", "requested_at": "2026-01-02T00:00:00Z"}
    found = judge(spark, retention_format(lake), [json.dumps({**limit, "days": 0}), json.dumps({**limit, "days": 9})])
    assert [row["reason"] for row in found] == ["bad int days", None]


def test_another_lake_has_other_fields(spark: SparkSession) -> None:
    meeting = {**SOUND, "engagement": {"starts_at": "2026-01-05 09:00:00", "minutes": 30}}
    broken = {**SOUND, "engagement": {"starts_at": "Monday"}}
    first, second = judge(spark, ingestion_format(MEETING_EVENT), [json.dumps(meeting), json.dumps(broken)])
    assert (first["reason"], first["engagement"]["minutes"]) == (None, 30)
    assert second["reason"] == "bad date engagement.starts_at"
