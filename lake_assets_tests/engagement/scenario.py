"""One engagement lake for the tests: real topics, Delta tables and Spark; what was sent is the truth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from lake_assets.engagement.batch import BatchReport, Stream, run_batch
from lake_assets.engagement.ingestion import ingestion
from lake_assets.engagement.lake import EngagementLake
from lake_assets.engagement.tables import DEAD_LETTER, ENGAGEMENT, NOTIFICATION, LakeTables, open_tables
from lake_assets.incremental.failpoints import EXIT_CODE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

ORGS = ("acme", "globex", "initech")
START = datetime(2026, 1, 1, 8, tzinfo=UTC)
PARTITIONS = 2
Values = dict[str, Any]


def lake_of(name: str, topic: str) -> EngagementLake:
    """A lake with fields of its own, and with one topic."""
    return EngagementLake(name, {"subject": "string", "opens": "int"}, topics={"ingestion": topic})


def email(number: int, **values: object) -> Values:
    """The message of an email, of one of three orgs: its number tells all else."""
    return {
        "org_id": ORGS[number % len(ORGS)],
        "engagement_id": f"e{number}",
        "who_id": f"lead {number % 7}",
        "kind": "sent",
        "engaged_at": (START + timedelta(minutes=number)).isoformat(),
        "engagement": {"subject": f"Subject {number}", "opens": number % 3},
        **values,
    }


@dataclass
class Traffic:
    """A lake, its topic and what was sent to it."""

    home: Settings
    spark: SparkSession
    servers: str
    name: str = "mail"
    topic: str = field(default_factory=lambda: f"mail-{uuid4().hex}")
    sent: list[Values] = field(default_factory=list)
    poison: list[bytes] = field(default_factory=list)
    lake: EngagementLake = field(init=False)

    def __post_init__(self) -> None:
        self.lake = lake_of(self.name, self.topic)
        self.admin = AdminClient({"bootstrap.servers": self.servers})
        self.admin.create_topics([NewTopic(self.topic, PARTITIONS)])[self.topic].result(20)
        self.tables.create(self.spark)
        self.tables.register_orgs(dict.fromkeys(ORGS))

    @property
    def tables(self) -> LakeTables:
        return open_tables(self.home, self.lake)

    @property
    def stream(self) -> Stream:
        return ingestion(self.tables, self.spark, self.servers)

    def send(self, numbers: Iterable[int], poison: Iterable[bytes] = ()) -> None:
        """Emails of these numbers, which make rows, and messages that make none."""
        mails, broken = [email(number) for number in numbers], list(poison)
        producer = Producer({"bootstrap.servers": self.servers})
        for place, value in enumerate([json.dumps(mail).encode() for mail in mails] + broken):
            producer.produce(self.topic, value, partition=place % PARTITIONS)
        assert producer.flush(20) == 0
        self.sent += mails
        self.poison += broken

    def run(self) -> BatchReport:
        """A batch that must be due."""
        report = run_batch(self.stream)
        assert report is not None
        return report

    def run_all(self, max_records: int | None = None) -> list[BatchReport]:
        """Every batch that is due."""
        if max_records:
            self.lake = replace(self.lake, max_records=max_records)
        reports = []
        while report := run_batch(self.stream):
            reports.append(report)
        return reports

    def die(self, point: str) -> None:
        """Let a turn, in a process of its own, die at a point."""
        command = [sys.executable, "-m", "lake_assets_tests.engagement.child", self.name, self.topic]
        variables = {
            "LAKE_HOME": str(self.home.home),
            "LAKE_SPARK_REMOTE": str(self.home.spark_remote),
            "LAKE_KAFKA": self.servers,
            "LAKE_FAILPOINT": point,
        }
        done = subprocess.run(command, env={**os.environ, **variables}, timeout=120, check=False)
        assert done.returncode == EXIT_CODE, f"the turn did not come to {point}"

    def rows(self, table: str) -> list[Values]:
        """All rows of a table, as they are, in an order of their own."""
        found = [row.asDict(recursive=True) for row in self.tables.read(self.spark, table).collect()]
        return sorted(found, key=repr)

    def assert_true(self) -> None:
        """What was sent is there, once; what is broken is set aside, once; each data commit is told of, once."""
        assert [r["engagement_id"] for r in self._by_id()] == sorted(m["engagement_id"] for m in self.sent)
        assert Counter(r["message"].encode() for r in self.rows(DEAD_LETTER)) == Counter(self.poison)
        told = Counter((r["version"], r["org_id"]) for r in self.rows(NOTIFICATION))
        assert set(told.values()) <= {1}
        assert {(r["version"], r["org_id"]): r["inserted"] for r in self.rows(NOTIFICATION)} == self._inserted()
        commits = [log.history() for log in map(DeltaTable, map(self.tables.location, (ENGAGEMENT, NOTIFICATION)))]
        assert len({sum(commit["operation"] == "WRITE" for commit in history) for history in commits}) == 1

    def _by_id(self) -> list[Values]:
        return sorted(self.rows(ENGAGEMENT), key=lambda r: str(r["engagement_id"]))

    def _inserted(self) -> dict[tuple[int, str], int]:
        """What the table's own feed says: (version, org) → rows."""
        feed = self.spark.read.format("delta").options(readChangeFeed="true", startingVersion="0")
        changed = feed.load(self.tables.location(ENGAGEMENT)).groupBy("_commit_version", "org_id").count().collect()
        return {(r["_commit_version"], r["org_id"]): r["count"] for r in changed}
