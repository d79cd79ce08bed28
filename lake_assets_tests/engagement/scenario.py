"""One engagement lake for the tests: real topics, Delta tables and Spark; what was sent is the truth."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from lake_assets.base.failpoints import EXIT_CODE
from lake_assets.coordination import zookeeper_client
from lake_assets.engagement.batch import BatchReport, Stream, run_batch
from lake_assets.engagement.checkpoint import Batch
from lake_assets.engagement.lake import STREAMS, EngagementLake, StreamName
from lake_assets.engagement.requests import MutationRequest, Op, Record, RetentionOp
from lake_assets.engagement.tables import DEAD_LETTER, ENGAGEMENT, NOTIFICATION, LakeTables, open_tables
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.engagement.turn import TurnReport, coordinator, open_stream, take_turn
from lake_assets.errors import LockLost
from lake_assets_tests.engagement.oracle import replay
from lake_assets_tests.engagement.prepared import create_tables
from lake_assets_tests.processes import Child, environment

if TYPE_CHECKING:
    from lake_assets.settings import Settings

ORGS = ("acme", "globex", "initech")
START = datetime(2026, 1, 1, 8, tzinfo=UTC)
PARTITIONS = 2
SESSION_SECONDS = 6.0
"""A machine that stalls for some seconds ends no session before its process is hit."""
PATIENCE_SECONDS = 30.0
"""For a lock that will be free, on a machine that may stall."""
Values = dict[str, Any]


def lake_of(name: str, topic: str) -> EngagementLake:
    """A lake with fields of its own, whose topics are called after one name."""
    topics: dict[StreamName, str] = {
        "ingestion": topic,
        "mutation": f"{topic}-requests",
        "retention": f"{topic}-retention",
    }
    return EngagementLake(name, {"subject": "string", "opens": "int"}, topics=topics)


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


def _message(org: str, asked: MutationRequest, insert: Values | None = None) -> bytes:
    """The message of a request of mutation. insert: the record that it carries."""
    values = {name: getattr(asked, name) for name in ("request_id", "op", "old_id", "new_id")}
    message = {"org_id": org, **values, "executed_at": asked.executed_at.isoformat(), "insert_record": insert}
    return json.dumps(message).encode()


class Alone:
    """The guard of a lake that nobody else writes."""

    def claim(self) -> int:
        return 0

    def confirm(self) -> None:
        return


@dataclass
class Losing(Alone):
    """The guard of a holder who has lost the lock after so many confirmations: of the intent, of data, ..."""

    confirmed: int

    def confirm(self) -> None:
        self.confirmed -= 1
        if self.confirmed < 0:
            raise LockLost("ingestion", "the test has taken it")


def rows_of(tables: LakeTables, table: str) -> list[Values]:
    """All rows of a table of a lake, as they are, in an order of their own; as a reader without Spark sees them."""
    read = QueryBuilder().register(table, DeltaTable(tables.location(table)))
    found: list[Values] = pa.table(read.execute(f"SELECT * FROM {table}").read_all()).to_pylist()
    return sorted(found, key=repr)


def coordinated_turn(stream: Stream, spark: SparkSession, hosts: str) -> TurnReport:
    """A turn of a stream that ZooKeeper coordinates."""
    with zookeeper_client(hosts, session_seconds=SESSION_SECONDS) as zk:
        coordinated = coordinator(stream, zk, spark, timeout=PATIENCE_SECONDS)
        return take_turn(stream, coordinated, max_wait=PATIENCE_SECONDS)


@dataclass
class Traffic:
    """A lake, its topics and what was sent to them. erased: org and id of those whose rows must all be gone.
    resent: how many emails were sent again.

    kind: a lake whose fields it has, instead of those of `lake_of`; none of its turns may be taken by a child.
    """

    home: Settings
    spark: SparkSession
    servers: str
    name: str = "mail"
    topic: str = field(default_factory=lambda: f"mail-{uuid4().hex}")
    partitions: int = PARTITIONS
    sent: list[Values] = field(default_factory=list)
    poison: list[bytes] = field(default_factory=list)
    resent: int = 0
    requests: list[tuple[str, MutationRequest]] = field(default_factory=list)
    erased: set[tuple[str, str]] = field(default_factory=set)
    kind: EngagementLake | None = None
    lake: EngagementLake = field(init=False)

    def __post_init__(self) -> None:
        lake = lake_of(self.name, self.topic)
        self.lake = replace(lake, fields=self.kind.fields, ids=self.kind.ids) if self.kind else lake
        self.admin = AdminClient({"bootstrap.servers": self.servers})
        topics = [self.lake.topic(stream) for stream in STREAMS]
        for done in self.admin.create_topics([NewTopic(topic, self.partitions) for topic in topics]).values():
            done.result(20)
        create_tables(self.tables, self.spark)
        self.tables.register_orgs(dict.fromkeys(ORGS))

    @property
    def tables(self) -> LakeTables:
        return open_tables(self.home, self.lake)

    def stream(self, name: StreamName = "ingestion") -> Stream:
        return open_stream(name, self.tables, self.spark, self.servers)

    def send(self, numbers: Iterable[int], poison: Iterable[bytes] = (), **values: object) -> None:
        """Emails of these numbers, which make rows, and messages that make none. values: other ones than usual."""
        self.deliver([email(number, **values) for number in numbers])
        self.spoil("ingestion", poison)

    def deliver(self, mails: Sequence[Values]) -> None:
        """These emails, which make rows."""
        self._produce(self.lake.topic("ingestion"), [json.dumps(mail).encode() for mail in mails])
        self.sent += mails

    def resend(self, mails: Iterable[Values]) -> None:
        """Emails that were sent before, once more: each is a dead letter without text."""
        again = [json.dumps(mail).encode() for mail in mails]
        self._produce(self.lake.topic("ingestion"), again)
        self.resent += len(again)

    def spoil(self, name: StreamName, poison: Iterable[bytes]) -> None:
        """Messages to a stream's topic that make no row."""
        broken = list(poison)
        self._produce(self.lake.topic(name), broken)
        self.poison += broken

    def ask(self, org: str, op: Op, old_id: str, new_id: str | None = None, *, insert: Values | None = None) -> None:
        """A mutation request, one minute after the last. insert: the record that it carries."""
        self._ask(org, op, old_id, new_id, insert)
        self.repeat(insert)

    def ask_all(self, org: str, steps: Iterable[tuple[Op, str, str | None]]) -> None:
        """Many mutation requests of one org, each one minute after the last. steps: op, old_id, new_id of each."""
        asked = [self._ask(org, *step) for step in steps]
        self._produce(self.lake.topic("mutation"), [_message(org, request) for request in asked])

    def repeat(self, insert: Values | None = None) -> None:
        """The last request of mutation once more."""
        self._produce(self.lake.topic("mutation"), [_message(*self.requests[-1], insert)])

    def _ask(self, org: str, op: Op, old_id: str, new_id: str | None, insert: Values | None = None) -> MutationRequest:
        number, at = len(self.requests), START + timedelta(days=1, minutes=len(self.requests))
        record = Record(insert["engagement_id"], insert["who_id"]) if insert else None
        asked = MutationRequest(f"r{number}", op, old_id, new_id, at, 0, number, record)
        self.requests.append((org, asked))
        return asked

    def longer(self, batch: Batch) -> Batch:
        """A batch as if it had taken all messages that its topic holds by now."""
        ends = KafkaTopic(self.servers, batch.messages.topic).state().end
        return replace(batch, messages=replace(batch.messages, end=ends))

    def retain(self, org: str, op: RetentionOp, at: datetime, **values: object) -> None:
        """A request for retention, made at a time."""
        message = {"org_id": org, "request_id": uuid4().hex, "op": op, "requested_at": at.isoformat(), **values}
        self._produce(self.lake.topic("retention"), [json.dumps(message).encode()])

    def run(self, name: StreamName = "ingestion") -> BatchReport:
        """A batch that must be due."""
        report = run_batch(self.stream(name), Alone())
        assert report is not None
        return report

    def start(self, point: str = "", name: str = "ingestion", *, remote: str | None = None) -> Child:
        """A turn in a process of its own, which dies at a point, or stops there. remote: of another Spark."""
        from lake_assets_tests.engagement.child import turn

        home = self.home.model_copy(update={"spark_remote": remote}) if remote else self.home
        zookeeper = {"LAKE_ZOOKEEPER": home.zookeeper} if home.zookeeper else {}
        variables = {**environment(home, point), "LAKE_KAFKA": self.servers, **zookeeper}
        return Child(turn, f"{self.name} {self.topic} {name}", variables)

    def die(self, point: str, name: str = "ingestion") -> None:
        """Let a turn, in a process of its own, die at a point."""
        assert self.start(point, name).end() == EXIT_CODE, f"the turn did not come to {point}"

    def rows(self, table: str) -> list[Values]:
        """All rows of a table, as they are, in an order of their own; as a reader without Spark sees them."""
        return rows_of(self.tables, table)

    def assert_true(self) -> None:
        """Rows are what replay makes of what was sent; each broken message is set aside, each commit told of, once."""
        assert self.whose() == self.truth()
        assert len(self.rows(ENGAGEMENT)) == len(self.truth())
        letters = Counter(map(self._letter, self.poison))
        letters[None] += self.resent
        assert Counter(row["message"] for row in self.rows(DEAD_LETTER)) == +letters
        assert self._told() == self._changed()
        assert self._commits(NOTIFICATION) == self._commits(ENGAGEMENT)

    def whose(self) -> dict[str, tuple[str, str]]:
        """Engagement → its org and its id, as the table has them."""
        return {row["engagement_id"]: (row["org_id"], row["who_id"]) for row in self.rows(ENGAGEMENT)}

    def truth(self) -> dict[str, tuple[str, str]]:
        """Engagement → its org and its id, after all requests of mutation, and then those to erase an id."""
        found: dict[str, tuple[str, str]] = {}
        for org in ORGS:
            rows = {mail["engagement_id"]: mail["who_id"] for mail in self.sent if mail["org_id"] == org}
            left = replay([request for of, request in self.requests if of == org], rows)
            found |= {row: (org, identity) for row, identity in left.items() if (org, identity) not in self.erased}
        return found

    def _letter(self, message: bytes) -> str | None:
        """What is left of a dead letter's message: nothing, if it names somebody erased."""
        text = message.decode(errors="replace")
        is_cut = any(f'"{org}"' in text and f'"{who}"' in text for org, who in self.erased)
        return None if is_cut else text

    def _produce(self, topic: str, messages: Iterable[bytes]) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for place, message in enumerate(messages):
            producer.produce(topic, message, partition=place % self.partitions)
        assert producer.flush(20) == 0

    def _told(self) -> Counter[tuple[int, str, str]]:
        """What notifications say: (version, org, type of change) → rows."""
        found: Counter[tuple[int, str, str]] = Counter()
        for row in self.rows(NOTIFICATION):
            counts = (("insert", "inserted"), ("update_postimage", "updated"), ("delete", "deleted"))
            found.update({(row["version"], row["org_id"], kind): row[column] for kind, column in counts})
        return +found

    def _changed(self) -> Counter[tuple[int, str, str]]:
        """The same by the table's own feed."""
        feed = self.spark.read.format("delta").options(readChangeFeed="true", startingVersion="0")
        kinds = ["_commit_version", "org_id", "_change_type"]
        changed = feed.load(self.tables.location(ENGAGEMENT)).groupBy(*kinds).count().collect()
        return Counter({tuple(r[kind] for kind in kinds): r["count"] for r in changed if "preimage" not in r[2]})

    def _commits(self, table: str) -> int:
        """How many commits wrote to a table."""
        history = DeltaTable(self.tables.location(table)).history()
        return sum(commit["operation"] in ("WRITE", "MERGE") for commit in history)
