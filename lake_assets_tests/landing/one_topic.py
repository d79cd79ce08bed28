"""One topic of signups in a real Kafka, two zones that land it, and its raw table. Files of ten messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tenacity import retry, retry_if_exception_type, retry_if_result, stop_after_delay, wait_fixed

from lake_assets.connections.catalog import open_catalog
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.errors import ServiceError
from lake_assets.incremental.engine.erasures import Erasures
from lake_assets.incremental.engine.iceberg import create_raw, load
from lake_assets.landing.cutover import Policy
from lake_assets.landing.heal import Finding, verify
from lake_assets.landing.kafka import topic_ids
from lake_assets.landing.loading import Loader
from lake_assets.landing.manifest import open_manifest
from lake_assets.landing.messages import Feed
from lake_assets.landing.records import DataFile
from lake_assets.landing.tail import Delivery
from lake_assets.landing.zone_tailer import ZoneTailer
from lake_assets.landing.zones import ZoneWriter, open_zones
from lake_assets.membership.raw import SIGNUPS
from lake_assets.settings import Settings

NOW = datetime(2026, 2, 1, tzinfo=UTC)
SENT_MS = 1_767_247_200_000
FILE = 10
"""Messages of a file."""

PATIENCE_SECONDS = 60


@dataclass
class OneTopic:
    """A home, and a topic of two partitions."""

    home: Settings
    servers: str
    delivery: type[Delivery] = Delivery
    topic: str = field(default_factory=lambda: f"t{uuid4().hex}")
    alarms: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.feed = Feed(self.topic, SIGNUPS, "account_id")
        self.manifest = open_manifest(self.home)
        self.catalog = open_catalog(self.home)
        create_raw(self.catalog, SIGNUPS)
        KafkaTopic(self.servers, self.topic).create(2)
        self._id()

    @property
    def writers(self) -> list[ZoneWriter]:
        return open_zones(self.home)

    def send(self, names: Iterable[object], *, partition: int = 0, broken: Sequence[object] = ()) -> None:
        """A signup of each name; those that are broken make no row."""
        producer = Producer({"bootstrap.servers": self.servers})
        for name in names:
            values = {"signup_id": f"{name}", "account_id": "a", "event_ts": "2026-01-01T00:00:00Z"}
            value = b"broken" if name in broken else json.dumps(values).encode()
            producer.produce(self.topic, value, partition=partition, timestamp=SENT_MS)
        assert producer.flush(PATIENCE_SECONDS) == 0

    def tailer(self, zone: str) -> ZoneTailer:
        (writer,) = (found for found in self.writers if found.zone.name == zone)
        policy = Policy(max_messages=FILE, max_bytes=1 << 20, max_age_ms=1 << 40)
        delivery = self.delivery(writer, clock=lambda: NOW)
        return ZoneTailer(delivery, self.servers, [self.feed], policy=policy, alarm=self.alarms.append)

    def land(self, zones: str = "ab") -> list[ZoneTailer]:
        """Zones, drained one after the other."""
        tailers = []
        for zone in zones:
            with self.tailer(zone) as tailer:
                tailer.drain()
            tailers.append(tailer)
        return tailers

    def recreate(self, partitions: int = 2) -> None:
        """Delete the topic and create it again."""
        before = self._id()
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.delete_topics([self.topic])[self.topic].result(PATIENCE_SECONDS)
        self._created(partitions)
        assert self._id() != before

    @retry(retry=retry_if_result(lambda done: not done), stop=stop_after_delay(PATIENCE_SECONDS), wait=wait_fixed(0.1))
    def _created(self, partitions: int) -> bool:
        return KafkaTopic(self.servers, self.topic).create(partitions)

    @retry(retry=retry_if_exception_type(ServiceError), stop=stop_after_delay(PATIENCE_SECONDS), wait=wait_fixed(0.1))
    def _id(self) -> str:
        """The topic's id, as soon as the broker knows of it."""
        return topic_ids(self.servers, [self.topic])[self.topic]

    def forget(self, before: int, partition: int = 0) -> None:
        """Let Kafka remove the messages before an offset, as its retention does."""
        wanted = [TopicPartition(self.topic, partition, before)]
        admin = AdminClient({"bootstrap.servers": self.servers})
        for answer in admin.delete_records(wanted).values():
            answer.result(PATIENCE_SECONDS)

    def load(self) -> list[str]:
        """Load what is ready; return the names of all signups in the raw table, sorted."""
        erasures = Erasures(self.catalog, key=lambda: b"key")
        zones = [writer.zone for writer in self.writers]
        list(Loader(self.catalog, self.manifest, zones, self.feed, (0, 1), (), erasures, lambda: NOW).load())
        rows = load(self.catalog, SIGNUPS.table).scan().to_arrow()
        return sorted(str(name) for name in rows["signup_id"].to_pylist())

    def files(self, zone: str) -> list[DataFile]:
        return [entry.file for entry in self.manifest.entries(zone)]

    def findings(self) -> list[Finding]:
        return list(verify(self.writers, now=NOW, deadline=timedelta(minutes=15)).findings)


def named(*names: Iterable[object]) -> list[str]:
    """All names, as `load` returns them."""
    return sorted(str(name) for several in names for name in several)
