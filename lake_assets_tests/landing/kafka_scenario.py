"""Landing for the tests: topics of membership in a real Kafka, two zones, raw tables; what was sent is the truth."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from confluent_kafka import KafkaError, Producer

from lake_assets.base.failpoints import EXIT_CODE
from lake_assets.connections.catalog import open_catalog
from lake_assets.demo.engagement_simulator import send
from lake_assets.demo.membership_simulator import Landing, heartbeats, messages
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.incremental.engine.erasures import Erasures
from lake_assets.incremental.engine.iceberg import create_raw, load
from lake_assets.landing.cutover import Policy
from lake_assets.landing.kafka import beat, partitions
from lake_assets.landing.loading import Loaded, Loader
from lake_assets.landing.manifest import open_manifest
from lake_assets.landing.messages import feeds
from lake_assets.landing.records import parse_shard
from lake_assets.landing.tail import Closed, Delivery
from lake_assets.landing.zone_tailer import ZoneTailer
from lake_assets.landing.zones import ZoneWriter, open_zones
from lake_assets.membership import PIPELINE
from lake_assets.membership.raw import RAW
from lake_assets.settings import Settings, settings
from lake_assets_tests.processes import Child, environment

PARTITIONS = 2
POLICY = Policy(max_messages=150, max_bytes=30_000, max_age_ms=1_800_000)
LANDED_MS = 1_767_247_200_000
NOW = datetime(2026, 2, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Spoiling(Delivery):
    """A zone with a fault: of the files that begin at an offset, the first record has another key."""

    first: int | None = None

    def take(self, closed: Closed) -> None:
        if closed.first == self.first:
            changed = closed.records[0]._replace(key=b"spoilt")
            closed = replace(closed, records=[changed, *closed.records[1:]])
        super().take(closed)


@dataclass
class Landings:
    """A home, and its topics on a Kafka: all that a prefix tells apart."""

    home: Settings
    servers: str
    prefix: str = field(default_factory=lambda: f"t{uuid4().hex}.")
    alarms: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.feeds = feeds(PIPELINE, prefix=self.prefix)
        self.manifest = open_manifest(self.home)
        self.catalog = open_catalog(self.home)

    def create(self) -> None:
        """The topics and the raw tables."""
        for feed in self.feeds:
            KafkaTopic(self.servers, feed.topic).create(PARTITIONS)
            create_raw(self.catalog, feed.raw)

    def send(self, landings: Iterable[Landing]) -> None:
        """The rows of landings as messages, each with its heartbeats behind it."""
        for landing in landings:
            send(self.servers, messages(landing, prefix=self.prefix))
            beat(self.servers, heartbeats(landing, prefix=self.prefix))

    def send_broken(self) -> list[bytes]:
        """Messages that make no row, into each topic; their values, sorted."""
        producer, values = Producer({"bootstrap.servers": self.servers}), [b"", b"no JSON", b"{}", b"[]", b"\xff" * 50]
        for feed in self.feeds:
            for number, value in enumerate(values):
                producer.produce(feed.topic, value, partition=number % PARTITIONS, timestamp=LANDED_MS)
        assert producer.flush(20) == 0
        return sorted(values * len(self.feeds))

    def send_signup(self, account: str, at: datetime, signup: str) -> None:
        """A signup that claims a time. (Kafka refuses a message whose own timestamp lies ahead.)"""
        told: list[KafkaError | None] = []
        values = {"signup_id": signup, "account_id": account, "event_ts": at.isoformat()}
        producer = Producer({"bootstrap.servers": self.servers})
        producer.produce(
            self.feeds[0].topic,
            json.dumps(values).encode(),
            account.encode(),
            timestamp=LANDED_MS,
            on_delivery=lambda error, _: told.append(error),
        )
        assert producer.flush(20) == 0
        assert told == [None]

    def dead_letters(self, zone: str) -> list[bytes]:
        """The values of a zone's dead letters, sorted."""
        found = self.writer(zone)
        entries = [e for e in self.manifest.entries(zone) if parse_shard(e.file.shard).dead_letters]
        return sorted(record.value or b"" for entry in entries for record in found.records(entry.file))

    def settle(self, at: datetime) -> None:
        """A heartbeat into each topic, late enough to close every file."""
        beat(self.servers, dict.fromkeys((feed.topic for feed in self.feeds), at))

    def writer(self, zone: str) -> ZoneWriter:
        (writer,) = open_zones(self.home, [zone])
        return writer

    def tail(self, zone: str, *, read_at_once: int = 1000, spoil: int | None = None) -> ZoneTailer:
        """A zone, drained. spoil: of each partition, the file that begins there has its first record changed."""
        delivery = Spoiling(self.writer(zone), clock=lambda: NOW, first=spoil)
        with ZoneTailer(
            delivery, self.servers, self.feeds, policy=POLICY, read_at_once=read_at_once, alarm=self.alarms.append
        ) as tailer:
            tailer.drain()
        return tailer

    def load(self) -> list[Loaded]:
        """Everything that may be loaded by now."""
        found = partitions(self.servers, [feed.topic for feed in self.feeds])
        zones = [self.writer(name).zone for name in ("a", "b")]
        loaded: list[Loaded] = []
        for feed in self.feeds:
            erasures = Erasures(self.catalog, key=lambda: b"key")
            numbers = found[feed.topic]
            subjects = PIPELINE.subjects
            loader = Loader(self.catalog, self.manifest, zones, feed, numbers, subjects, erasures, lambda: NOW)
            loaded += loader.load()
        return loaded

    def die(self, *lives: str) -> None:
        """Let processes of their own tail a zone, or load, and die at a point: `POINT:ZONE`, `POINT:load`."""
        for life in lives:
            point, what = life.split(":")
            variables = {**environment(self.home, point), "LAKE_KAFKA": self.servers}
            child = Child(_live, f"{self.prefix} {what}", variables)
            assert child.end() == EXIT_CODE, f"{what} did not come to {point}"

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Table → its own columns and landed_at of all rows, sorted."""
        return {raw.table: _plain(load(self.catalog, raw.table).scan().to_arrow().to_pylist()) for raw in RAW}


def _live(words: str) -> str:
    prefix, what = words.split()
    landings = Landings(settings(), str(settings().kafka), prefix)
    return str(landings.load() if what == "load" else landings.tail(what))


def sent(landings: Iterable[Landing]) -> dict[str, list[dict[str, Any]]]:
    """What the raw tables should hold of landings, as `Landings.rows` tells it."""
    every = list(landings)
    return {raw.table: _plain([row for one in every for row in one.rows[raw.table].to_pylist()]) for raw in RAW}


def _plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    dropped = ("batch_id",)
    return sorted(({k: v for k, v in row.items() if k not in dropped} for row in rows), key=repr)
