"""The certificate finds an id of an org wherever it lies under the lakes, and what Kafka still holds of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable, write_deltalake

from lake_assets.engagement.erasure import LakeCertificate, certify
from lake_assets.engagement.lake import STREAMS, EngagementLake, StreamName
from lake_assets.engagement.topics import RetainedMessages
from lake_assets.errors import UsageError

WHO, ORG = "lead é", "acme"
DAY_MS = 86_400_000
SENT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def root(tmp_path: Path) -> str:
    return f"file://{tmp_path}"


def certified(root: str, kafka: str, *lakes: EngagementLake, org: str = ORG) -> LakeCertificate:
    return certify(root, lakes, org, WHO, kafka)


def table(root: str, name: str, **columns: list[Any]) -> str:
    """A Delta table of the lake `mail`, whose log tells no bounds."""
    location = f"{root}/mail/{name}"
    write_deltalake(location, pa.table(columns), mode="append", configuration={"delta.dataSkippingNumIndexedCols": "0"})
    return location


def test_rows_of_the_org_count_and_those_of_another_do_not(root: str, kafka: str) -> None:
    table(root, "mutation_request", org_id=["globex", ORG], old_id=[WHO, "lead x"])
    assert certified(root, kafka).nowhere
    location = table(root, "mutation_request", org_id=[ORG, None, "globex"], old_id=[WHO, WHO, WHO])
    [found] = certified(root, kafka).findings
    assert (found.table, found.kind, found.occurrences) == ("mail.mutation_request", "data", 2)
    assert found.referenced == "main"
    DeltaTable(location).delete()
    assert [finding.referenced for finding in certified(root, kafka).findings] == ["history"]


def test_columns_that_come_back_as_views_are_decoded(root: str, kafka: str, tmp_path: Path) -> None:
    columns = {name: pa.array([value], pa.string_view()) for name, value in (("org_id", ORG), ("who_id", WHO))}
    pq.write_table(pa.table(columns), tmp_path / "views.parquet")
    found = certified(root, kafka)
    assert ([finding.occurrences for finding in found.findings], found.undecoded) == ([1], ())


def test_messages_count_by_what_they_say(root: str, kafka: str) -> None:
    own, other = ({"org_id": org, "who_id": WHO} for org in (ORG, "globex"))
    letters = [json.dumps(own), json.dumps(other), json.dumps(own, ensure_ascii=False)[:-1], f"{WHO}1", None]
    nobodys = json.dumps({"org_id": None, "who_id": WHO})
    table(root, "dead_letter", message=[*letters, nobodys, json.dumps({**own, "org_id": 17})])
    assert [finding.occurrences for finding in certified(root, kafka).findings] == [3]
    assert [finding.occurrences for finding in certified(root, kafka, org="17").findings] == [3]
    table(root, "mutation_request", org_id=[ORG, "globex"], insert_record=2 * [json.dumps(other)])
    assert [finding.occurrences for finding in certified(root, kafka).findings] == [3, 1]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (f"mail/engagement/org_id={ORG}/a.parquet", "data"),
        ("mail/engagement/org_id=__HIVE_DEFAULT_PARTITION__/a.parquet", "data"),
        (f"mail/engagement/_change_data/org_id={ORG}/a.parquet", "change feed"),
        ("mail/engagement/_delta_log/1.checkpoint.parquet", "metadata"),
        ("mail/engagement/_delta_log/1.json", "metadata"),
        ("mail/engagement/deletion_vector_1.bin", "delete"),
        ("note.txt", "other"),
        ("mail/engagement/org_id=globex/a.parquet", None),
    ],
)
def test_planted_files(root: str, kafka: str, tmp_path: Path, path: str, kind: str | None) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    if path.endswith(".parquet"):
        pq.write_table(pa.table({"who_id": [WHO]}), file)
    else:
        file.write_text(f"about {WHO}")
    assert [finding.kind for finding in certified(root, kafka).findings] == ([kind] if kind else [])


def test_messages_in_kafka_are_told_until_they_are_gone(root: str, kafka: str) -> None:
    topics: dict[StreamName, str] = {stream: f"{stream}-{uuid4().hex}" for stream in STREAMS}
    keep = {"retention.ms": str(1_000 * DAY_MS), "segment.ms": str(DAY_MS)}
    forever = {"retention.ms": "-1"}
    made = [NewTopic(topics[s], 2, config=forever if s == "retention" else keep) for s in STREAMS]
    admin = AdminClient({"bootstrap.servers": kafka})
    for done in admin.create_topics(made).values():
        done.result(20)
    own, other = ({"org_id": org, "who_id": WHO} for org in (ORG, "globex"))
    producer = Producer({"bootstrap.servers": kafka})
    for place, values in enumerate([own, other, {**own, "org_id": None}, other]):
        at = int((SENT + timedelta(minutes=place)).timestamp() * 1000)
        producer.produce(topics["ingestion"], json.dumps(values).encode(), partition=place % 2, timestamp=at)
    producer.produce(topics["retention"], b"\xff " + WHO.encode())
    assert producer.flush(20) == 0
    table(root, "engagement", engagement_id=["e1"])
    lake = EngagementLake("mail", {"subject": "string"}, topics=topics)
    until = SENT + timedelta(minutes=2, days=1_001)
    held = RetainedMessages(topics["ingestion"], 2, until), RetainedMessages(topics["retention"], 1, None)
    assert certified(root, kafka, lake).kafka == held
    assert certified(root, kafka, EngagementLake("calls", {"subject": "string"})).kafka == ()
    with pytest.raises(UsageError, match="empty"):
        certify(root, [], ORG, " ", kafka)
