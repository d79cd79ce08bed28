"""Random schedules of two zones on a real Kafka, held against all that was ever sent.

    python -m lake_assets_tests.landing.kafka_schedule --schedules 20 --seed 0

Two topics with two partitions each, rows, dead letters and heartbeats; zones that read at their own speeds, end, die
before or after a file is added; cutover policies, removal of what landed, Kafka's own retention, topics that are
created again, erasures, compaction, reshards, and a fault that both zones have. A schedule follows from its number.

The oracle keeps every message by its landed offset and replays the cutover message by message.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from tenacity import retry, retry_if_exception_type, retry_if_result, stop_after_delay, wait_fixed

from lake_assets.connections.catalog import open_catalog
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.errors import LakeError, LandingError, MessagesLost, ServiceError
from lake_assets.incremental.engine.erasures import Erasures
from lake_assets.incremental.engine.iceberg import create_raw, load
from lake_assets.landing.accept import accept
from lake_assets.landing.cutover import Policy
from lake_assets.landing.dead_letters import land_again
from lake_assets.landing.files import Draft
from lake_assets.landing.heal import verify
from lake_assets.landing.kafka import Place, logical_ends, remove_landed, topic_states
from lake_assets.landing.loading import Loader
from lake_assets.landing.manifest import ALL_STAGES, Stage, Verdict, open_manifest
from lake_assets.landing.messages import HEARTBEAT, Feed, Scrub
from lake_assets.landing.operations import GroupLimits, merge, scrub, sweep, to_columns
from lake_assets.landing.records import shards
from lake_assets.landing.reshard import reshard
from lake_assets.landing.state import DeletionRequest, Retention, SharedState
from lake_assets.landing.tail import Closed, Delivery
from lake_assets.landing.zone_tailer import ZoneTailer
from lake_assets.landing.zones import ZoneWriter, open_zones
from lake_assets.membership.raw import CANCEL_REQUESTS, SIGNUPS
from lake_assets.services.servers import kafka as kafka_service
from lake_assets.services.service import free_port, running
from lake_assets.settings import Settings

BEGIN = datetime(2026, 2, 1, tzinfo=UTC)
EVER = datetime.max.replace(tzinfo=UTC)
PEOPLE = 5
LENGTH = 30
FIRST = Policy(max_messages=6, max_bytes=1 << 20, max_age_ms=600_000, max_idle_ms=3_600_000)
LIMITS = GroupLimits(max_files=3, max_bytes=1 << 20)
SMALL, LARGE = 400, 4_000
"""The most bytes of a message, before and after a correction."""

KEEP_HOURS = 5
PATIENCE_SECONDS = 60
RAW = (SIGNUPS, CANCEL_REQUESTS)
IDS = ("signup_id", "request_id")
STEPS = {
    "send": 12,
    "beat": 4,
    "tail": 14,
    "pass time": 3,
    "end": 1,
    "die": 1,
    "policy": 3,
    "remove": 3,
    "forget": 1.5,
    "recreate": 1,
    "accept": 2,
    "ask": 2,
    "scrub": 2,
    "merge": 3,
    "columns": 1,
    "reshard": 1,
    "sweep": 1,
    "load": 3,
    "land again": 1,
    "same fault": 1,
    "partition": 1,
}


@dataclass(frozen=True)
class Message:
    """What was sent. kind: row, dead, large (a dead letter that is a row after a correction), beat, or bad beat."""

    name: str
    person: str
    kind: str
    at: int
    size: int


class Died(BaseException):
    """The process of a zone has died."""


@dataclass(frozen=True)
class Mortal(ZoneWriter):
    """Dies when it has landed the dead letters of a file, and not its rows, if its world says so."""

    world: World

    def land(self, draft: Draft, *, now: datetime, stage: Stage = "live") -> Verdict:
        verdict = super().land(draft, now=now, stage=stage)
        if self.world.dying == "between" and draft.file.holds_dead_letters:
            raise Died
        return verdict


@dataclass(frozen=True)
class Watched(Delivery):
    """Notes what is cut, has a fault, or dies, as its world says."""

    world: World = field(kw_only=True)

    def take(self, closed: Closed) -> None:
        world, zone = self.world, self.writer.zone.name
        place = (closed.place.topic, closed.place.partition)
        cut = closed.first, closed.last, world.epoch_of(place[0])
        world.cuts[zone, *place].append(cut)
        fault = world.faults.get(zone)
        if fault and closed.records:
            world.faults.pop(zone)
            world.faulty[zone] = place
            records = list(closed.records)
            changed = {
                "lost": records[1:],
                "last lost": records[:-1],
                "doubled": [*records, records[0]],
                "another twice": [*records[1:], records[-1]] if len(records) > 1 else records[1:],
            }
            closed = replace(closed, records=changed[fault])
        try:
            if world.dying == "before":
                raise Died
            super().take(closed)
        except BaseException:
            world.not_landed.add((zone, *place, *cut))
            raise
        if world.dying == "after":
            raise Died


class World:
    """A home, two topics on a Kafka, two zones, and what was sent."""

    def __init__(self, home: Settings, servers: str, seed: int) -> None:
        self.home, self.servers, self.chance = home, servers, random.Random(seed)
        self.now = BEGIN
        self.topics = [f"s{seed}-{uuid4().hex[:8]}-{number}" for number in range(2)]
        self.partitions = dict.fromkeys(self.topics, 2)
        self.messages: dict[tuple[str, int, int], list[Message]] = defaultdict(list)  # topic, epoch, partition
        self.started: dict[tuple[str, int, int], int] = defaultdict(int)  # Kafka's first offset
        self.numbers = dict.fromkeys(self.topics, 1)  # of epochs in Kafka
        self.requests: list[DeletionRequest] = []
        self.tailers: dict[str, ZoneTailer] = {}
        self.cuts: dict[tuple[str, str, int], list[tuple[int, int, int]]] = defaultdict(list)
        self.not_landed: set[tuple[str, str, int, int, int, int]] = set()  # zone, topic, partition, and the cut
        self.faults: dict[str, str] = {}
        self.faulty: dict[str, tuple[str, int]] = {}
        self.dying = ""
        self.shards = dict.fromkeys(self.topics, 1)
        self.events: list[str] = []
        self.counts: Counter[str] = Counter()
        self.catalog = open_catalog(home)
        self.manifest = open_manifest(home)
        for topic, raw in zip(self.topics, RAW, strict=True):
            create_raw(self.catalog, raw)
            KafkaTopic(servers, topic).create(2)
        self.ids: dict[str, list[str]] = {topic: [self.id_of(topic)] for topic in self.topics}
        self.connect()

    def connect(self) -> None:
        self.producer = Producer({"bootstrap.servers": self.servers, "log_level": 0})

    # --- what is where ---------------------------------------------------------------------------------------------
    def feed(self, topic: str, max_bytes: int = SMALL) -> Feed:
        return Feed(topic, RAW[self.topics.index(topic)], "account_id", max_bytes)

    def scrub_of(self, topic: str) -> Scrub:
        return Scrub(self.feed(topic).distinct_id_of, lambda person: f"hash of {person}", self.feed(topic).sent)

    def writer(self, zone: str) -> ZoneWriter:
        (found,) = open_zones(self.home, [zone])
        return found

    @retry(retry=retry_if_exception_type(ServiceError), stop=stop_after_delay(PATIENCE_SECONDS), wait=wait_fixed(0.1))
    def id_of(self, topic: str) -> str:
        return topic_states(self.servers, [topic])[topic].topic_id

    def commands(self, kind: str, topic: str) -> list[dict[str, Any]]:
        """Of the log itself, in its order."""
        log = self.home.landing_folder / "commands.jsonl"
        lines = log.read_text().splitlines()[1:] if log.exists() else []
        found = [json.loads(line) for line in lines]
        return [each["body"] for each in found if (each["kind"], each["topic"]) == (kind, topic)]

    def epochs(self, topic: str) -> list[dict[int, int]]:
        """The bases of each accepted epoch."""
        found: dict[int, dict[int, int]] = {}
        for body in self.commands("topic", topic):
            found.setdefault(body["number"], {int(p): base for p, base in json.loads(body["bases"]).items()})
        return [found[number] for number in sorted(found)]

    def epoch_of(self, topic: str) -> int:
        return len(self.epochs(topic)) or 1

    def landed(self, topic: str, partition: int) -> dict[int, Message]:
        """Every message that can land, by its landed offset: of a former topic, those below the next one's base."""
        found = {}
        bases = self.epochs(topic) or [{}]
        for number, of in enumerate(bases, 1):
            base = of.get(partition, 0)
            end = bases[number].get(partition, 0) if number < len(bases) else 1 << 60
            key = self.kafka_epochs(topic)[number - 1]
            for offset, message in enumerate(self.messages[topic, key, partition]):
                if base + offset < end:
                    found[base + offset] = message
        return found

    def kafka_epochs(self, topic: str) -> list[int]:
        """Of each accepted epoch, which topic of Kafka it was: one that nobody accepted has none."""
        ids: dict[int, str] = {}
        for body in self.commands("topic", topic):
            ids.setdefault(body["number"], body["topic_id"])
        return [self.ids[topic].index(ids[number]) + 1 for number in sorted(ids)] or [1]

    def lost(self, topic: str, partition: int) -> set[int]:
        found: set[int] = set()
        for body in self.commands("loss", topic):
            if body["partition"] == partition and body["for_good"]:
                found |= set(range(body["first"], body["last"] + 1))
        return found

    def is_erased(self, topic: str, partition: int, offset: int, message: Message) -> bool:
        return any(
            request.topic == topic
            and request.id_hash == f"hash of {message.person}"
            and (offset < (request.cut or {}).get(partition, 0) or message.at <= request.sent_through)
            for request in self.requests
        )

    # --- steps -----------------------------------------------------------------------------------------------------
    def play(self, length: int) -> None:
        for _ in range(length):
            (step,) = self.chance.choices(list(STEPS), list(STEPS.values()))
            self.counts[step] += 1
            self.now += timedelta(minutes=1)
            getattr(self, step.replace(" ", "_"))()
            self.check()
        self.settle()

    def note(self, *words: object) -> None:
        self.events.append(f"{self.now:%d %H:%M} " + " ".join(map(str, words)))

    def any_topic(self) -> str:
        return self.chance.choice(self.topics)

    def any_zone(self) -> str:
        return self.chance.choice("ab")

    def any_place(self) -> tuple[str, int]:
        topic = self.any_topic()
        return topic, self.chance.randrange(self.partitions[topic])

    def send(self) -> None:
        topic, partition = self.any_place()
        count = self.chance.randint(1, 9)
        self.note("send", topic[-1], partition, count)
        for _ in range(count):
            (kind,) = self.chance.choices(["row", "dead", "large", "bad beat"], [8, 2, 1, 0.3])
            self.send_one(topic, partition, kind)
        assert self.producer.flush(PATIENCE_SECONDS) == 0

    def send_one(self, topic: str, partition: int, kind: str) -> None:
        person = f"person{self.chance.randrange(PEOPLE)}"
        name = f"n{sum(map(len, self.messages.values()))}"
        at = int(self.now.timestamp() * 1000) - self.chance.choice([0, 0, 0, 30_000, 4_000_000])
        headers: list[tuple[str, str | bytes | None]] = []
        values = {IDS[self.topics.index(topic)]: name, "account_id": person, "event_ts": "2026-01-01T00:00:00Z"}
        if kind == "large":
            values["more"] = "x" * SMALL
        value = json.dumps(values).encode()
        if kind == "dead":
            value = f"broken {name} of {person}".encode()
        if kind == "beat":
            value, person = b"", ""
            headers = [(HEARTBEAT, self.now.isoformat().encode())]
        if kind == "bad beat":
            headers = [(HEARTBEAT, b"soon")]
        size = 24 + 4 + len(person) + 4 + len(value) + sum(8 + len(k) + len(v or b"") for k, v in headers)
        message = Message(name, person, kind, at, size)
        self.messages[topic, self.numbers[topic], partition].append(message)
        self.producer.produce(
            topic, value, key=person.encode() or None, partition=partition, timestamp=at, headers=headers
        )

    def beat(self) -> None:
        topic = self.any_topic()
        self.note("beat", topic[-1])
        for partition in range(self.partitions[topic]):
            self.send_one(topic, partition, "beat")
        assert self.producer.flush(PATIENCE_SECONDS) == 0

    def pass_time(self) -> None:
        self.now += timedelta(minutes=self.chance.choice([2, 11, 61, 200, 400]))
        self.note("time passes")

    def open(self, zone: str) -> ZoneTailer:
        if zone not in self.tailers:
            scrubs = {topic: self.scrub_of(topic) for topic in self.topics}
            writer = self.writer(zone)
            writer.require_storage()
            delivery = Watched(Mortal(writer.zone, writer.manifest, self), lambda: self.now, scrubs=scrubs, world=self)
            feeds = [self.feed(topic) for topic in self.topics]
            tailer = ZoneTailer(delivery, self.servers, feeds, policy=FIRST, read_at_once=self.chance.choice([2, 1000]))
            self.tailers[zone] = tailer.__enter__()
        return self.tailers[zone]

    def tail(self) -> None:
        zone = self.any_zone()
        self.dying = self.chance.choices(["", "before", "between", "after"], [9, 1, 2, 1])[0]
        self.tail_in(zone, whole=self.chance.random() < 0.6)

    def tail_in(self, zone: str, *, whole: bool) -> None:
        self.note("tail", zone, "whole" if whole else "", self.dying)
        try:
            tailer = self.open(zone)
            if whole:
                tailer.drain(seconds=0.05)
            else:
                tailer.step(seconds=0.2)
        except Died:
            self.note("died", zone)
            self.kill(zone)
        finally:
            self.dying = ""

    def kill(self, zone: str) -> None:
        if zone in self.tailers:
            self.tailers.pop(zone).__exit__(Died, Died(), None)

    def end_in(self, zone: str) -> None:
        if zone in self.tailers:
            self.tailers.pop(zone).__exit__(None, None, None)

    def end(self) -> None:
        zone = self.any_zone()
        self.note("end", zone)
        self.end_in(zone)

    def die(self) -> None:
        zone = self.any_zone()
        self.note("die", zone)
        self.kill(zone)

    def policy(self) -> None:
        topic = self.any_topic()
        limits: dict[str, Any] = self.chance.choice(
            [
                {"max_messages": self.chance.randint(2, 9)},
                {"max_bytes": self.chance.choice([150, 400, 1 << 20])},
                {"max_age_ms": self.chance.choice([60_000, 600_000, 3_600_000])},
                {"max_idle_ms": self.chance.choice([1_200_000, 7_200_000])},
            ]
        )
        if self.commands("policy", topic):
            self.note("policy", topic[-1], limits)
            SharedState(self.writer(self.any_zone()).manifest).change_policies(topic, **limits)

    def remove(self) -> None:
        topic, zone = self.any_topic(), self.any_zone()
        manifest = self.writer(zone).manifest
        Retention(manifest).keep(topic, KEEP_HOURS)
        removed = remove_landed(manifest, self.servers, topic, zones=("a", "b"), now=self.now)
        self.note("remove", topic[-1], "by", zone, removed)
        for partition, first in removed.items():
            self.started[topic, self.numbers[topic], partition] = first
            base = self.epochs(topic)[-1].get(partition, 0)
            for name in "ab":  # nothing that a zone has not landed may go
                held = self.held(name, topic, partition) | self.lost(topic, partition)
                missing = [o for o in range(base, base + first) if o in self.landed(topic, partition) and o not in held]
                missing = [o for o in missing if not self.is_gone(topic, partition, o)]
                assert not missing, f"removed before zone {name} has landed it: {topic} p{partition} {missing}"

    def is_gone(self, topic: str, partition: int, offset: int) -> bool:
        return self.is_erased(topic, partition, offset, self.landed(topic, partition)[offset])

    def held(self, zone: str, topic: str, partition: int) -> set[int]:
        writer = self.writer(zone)
        found: set[int] = set()
        for entry in writer.entries(topic):
            if partition in entry.file.ranges:
                found |= {record.offset for record in writer.records(entry.file) if record.partition == partition}
        return found

    def with_rows(self, zone: str, topic: str, partition: int) -> set[int]:
        """The offsets of closed files: not those of dead letters after which the process died, before the rows."""
        rows = [entry.file for entry in self.writer(zone).entries(topic) if not entry.file.holds_dead_letters]
        ranges = [file.ranges[partition] for file in rows if partition in file.ranges]
        return {offset for first, last in ranges for offset in range(first, last + 1)}

    def forget(self) -> None:
        topic, partition = self.any_place()
        key = (topic, self.numbers[topic], partition)
        first, end = self.started[key], len(self.messages[key])
        if first < end:
            before = self.chance.randint(first + 1, end)
            self.note("forget", topic[-1], partition, "before", before)
            admin = AdminClient({"bootstrap.servers": self.servers})
            for answer in admin.delete_records([TopicPartition(topic, partition, before)]).values():
                answer.result(PATIENCE_SECONDS)
            self.started[key] = before

    def recreate(self) -> None:
        topic = self.any_topic()
        self.note("recreate", topic[-1])
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)
        self._created(topic)
        self.numbers[topic] += 1
        self.ids[topic].append(self._another_id(topic))
        self.connect()

    @retry(retry=retry_if_result(lambda done: not done), stop=stop_after_delay(PATIENCE_SECONDS), wait=wait_fixed(0.1))
    def _created(self, topic: str) -> bool:
        return KafkaTopic(self.servers, topic).create(self.partitions[topic])

    @retry(
        retry=retry_if_result(lambda found: not found), stop=stop_after_delay(PATIENCE_SECONDS), wait=wait_fixed(0.1)
    )
    def _another_id(self, topic: str) -> str:
        found = self.id_of(topic)
        return "" if found in self.ids[topic] else found

    def partition(self) -> None:
        topic = self.any_topic()
        if self.partitions[topic] < 3:
            self.note("partition", topic[-1])
            admin = AdminClient({"bootstrap.servers": self.servers})
            admin.create_partitions([NewPartitions(topic, 3)])[topic].result(PATIENCE_SECONDS)
            self._has(topic, 3)
            self.partitions[topic] = 3
            self.connect()

    @retry(retry=retry_if_result(lambda done: not done), stop=stop_after_delay(PATIENCE_SECONDS), wait=wait_fixed(0.1))
    def _has(self, topic: str, count: int) -> bool:
        return len(topic_states(self.servers, [topic])[topic].ends) == count

    def accept(self) -> None:
        for topic in self.topics:
            if any(
                isinstance(e, MessagesLost)
                for t in self.tailers.values()
                for p, e in t.stopped.items()
                if p[0] == topic
            ):
                self.accept_of(topic)

    def accept_of(self, topic: str) -> None:
        places = [(zone, partition) for zone in "ab" for partition in range(self.partitions[topic])]
        before = {(zone, partition): self.held(zone, topic, partition) for zone, partition in places}
        whole = {(zone, partition): self.with_rows(zone, topic, partition) for zone, partition in places}
        was = [dict(each) for each in self.epochs(topic)]
        done = accept(
            [self.writer(zone) for zone in "ab"],
            self.servers,
            topic,
            now=self.now,
            feed=self.feed(topic),
            scrub=self.scrub_of(topic),
        )
        for closed in done.closed:
            self.cuts["a", topic, closed.place.partition].append((closed.first, closed.last, len(was)))
        lost = [(loss.partition, loss.first, loss.last, loss.zones, loss.for_good) for loss in done.losses]
        self.note(
            "accept",
            topic[-1],
            "epoch" if done.epoch else "",
            lost,
            [(c.place[1], c.first, c.last) for c in done.closed],
        )
        for partition in range(self.partitions[topic]):
            gone = self.lost(topic, partition)
            had = before["a", partition] | before["b", partition]
            kept = whole["a", partition] | whole["b", partition]
            assert not gone & kept, f"lost for good, and landed: {topic} p{partition} {sorted(gone & kept)}"
            if done.epoch:
                assert all(offset < done.epoch.base(partition) for offset in had)
            base = self.epochs(topic)[-1].get(partition, 0)
            start = base + self.started[topic, self.numbers[topic], partition]
            reachable = [offset for offset in gone if offset >= start and offset in self.landed(topic, partition)]
            assert not reachable, f"given up, and Kafka has it: {topic} p{partition} {reachable}"
        assert was == self.epochs(topic)[: len(was)]

    def ask(self) -> None:
        topic, person = self.any_topic(), f"person{self.chance.randrange(PEOPLE)}"
        manifest = self.writer(self.any_zone()).manifest
        cut = logical_ends(manifest, self.servers, topic)
        through = int(self.now.timestamp() * 1000) - self.chance.choice([0, 60_000, 600_000])
        request = DeletionRequest(f"r{len(self.requests)}", topic, f"hash of {person}", through, cut)
        self.note("ask", topic[-1], person, cut)
        SharedState(manifest).request_deletions(request.topic, [request], now=self.now)
        self.requests.append(request)

    def scrub(self) -> None:
        zone, topic = self.any_zone(), self.any_topic()
        self.note("scrub", zone, topic[-1])
        scrub(self.writer(zone), topic, self.scrub_of(topic), now=self.now)

    def merge(self) -> None:
        zone = self.any_zone()
        self.note("merge", zone)
        for topic in self.topics:
            for of in (1, 2, 3):
                for shard in shards(topic, of):
                    merge(self.writer(zone), shard, LIMITS, now=self.now)

    def columns(self) -> None:
        zone = self.any_zone()
        self.note("columns", zone)
        for topic in self.topics:
            to_columns(self.writer(zone), topic, now=self.now)

    def reshard(self) -> None:
        topic, zone = self.any_topic(), self.any_zone()
        of = self.chance.choice([self.shards[topic], 2, 3])
        with suppress(LakeError):  # another one is not finished
            found = reshard(self.writer(zone), topic, of, self.feed(topic).distinct_id_of, now=self.now)
            self.note("reshard", topic[-1], zone, of, found)
            if SharedState(self.manifest).reshards(topic):
                self.shards[topic] = SharedState(self.manifest).reshards(topic)[-1].of or 1

    def sweep(self) -> None:
        zone = self.any_zone()
        self.note("sweep", zone)
        writer = self.writer(zone)
        sweep(writer.manifest, writer.zone, retired_before=self.now + timedelta(seconds=1))

    def loader(self, topic: str, max_bytes: int = SMALL) -> Loader:
        zones = [self.writer(zone).zone for zone in "ab"]
        erasures = Erasures(self.catalog, key=lambda: b"key")
        numbers = tuple(range(self.partitions[topic]))
        feed = self.feed(topic, max_bytes)
        return Loader(
            self.catalog, self.writer(self.any_zone()).manifest, zones, feed, numbers, (), erasures, lambda: self.now
        )

    def load(self) -> None:
        for topic in self.topics:
            done = [(each.zone, dict(each.offsets), each.rows) for each in self.loader(topic).load()]
            self.note("load", topic[-1], done)

    def land_again(self) -> None:
        """The limit is corrected for one topic: what was too large is a row."""
        topic = self.any_topic()
        done = land_again(self.loader(topic, LARGE))
        self.note("land again", topic[-1], done)

    def same_fault(self) -> None:
        """The next file of both zones lacks a message or has one twice: no comparison could tell."""
        fault = self.chance.choice(["lost", "last lost", "doubled", "another twice"])
        self.note("same fault", fault)
        self.faults = dict.fromkeys("ab", fault)

    # --- what must hold --------------------------------------------------------------------------------------------
    def check(self) -> None:
        """A partition stops for what Kafka has lost, or for the fault that was made, and for nothing else."""
        for zone, place in list(self.faulty.items()):
            if zone in self.tailers:
                error = self.tailers[zone].stopped.get(Place(*place))
                assert isinstance(error, LandingError), f"zone {zone} has not told its fault"
                self.note("told", zone, *place)
            del self.faulty[zone]
            self.kill(zone)
        for zone, tailer in self.tailers.items():
            for of, error in [*tailer.stopped.items(), *tailer.not_refetched.items()]:
                assert isinstance(error, MessagesLost | ServiceError), f"zone {zone}, {of}: {error}"
        for zone in "ab":
            entries = self.writer(zone).entries(verdicts=("quarantined",), stages=ALL_STAGES)
            assert not entries, f"in quarantine: {zone} {[(e.file.name, e.reason) for e in entries]}"

    def settle(self) -> None:
        """All that was sent comes to its place; the stopped partitions are accepted."""
        self.faults = {}
        self.note("settle")
        for turn in range(6):
            for topic in self.topics if turn < 2 else ():
                for partition in range(self.partitions[topic]):
                    for _ in range(2):  # files end
                        self.now += timedelta(hours=2)
                        self.send_one(topic, partition, "beat")
            assert self.producer.flush(PATIENCE_SECONDS) == 0
            for zone in "ab":
                self.kill(zone)
                self.tail_in(zone, whole=True)
                self.check()
            stopped = {p.topic for t in self.tailers.values() for p in t.stopped}
            for topic in sorted(stopped):
                self.accept_of(topic)
            if turn >= 2 and not stopped:
                break
        else:
            raise AssertionError(f"still stopped: {stopped}")
        for zone in "ab":
            self.end_in(zone)
        for topic in self.topics:
            for _ in range(2):
                for zone in "ab":
                    scrub(self.writer(zone), topic, self.scrub_of(topic), now=self.now)
                for of in (1, 2, 3):
                    for shard in shards(topic, of):
                        for zone in "ab":
                            merge(self.writer(zone), shard, None, now=self.now)
                if self.shards[topic] > 1:
                    for zone in "aba":
                        found = reshard(
                            self.writer(zone), topic, self.shards[topic], self.feed(topic).distinct_id_of, now=self.now
                        )
                        self.note("reshard", topic[-1], zone, found)
        self.load()
        self.load()
        for topic in self.topics:
            land_again(self.loader(topic, LARGE))
        self.check_equal()
        for topic in self.topics:
            self.check_files(topic)
            self.check_rows(topic)
            self.check_cuts(topic)

    def check_equal(self) -> None:
        writers = [self.writer(zone) for zone in "ab"]
        findings = verify(writers, now=self.now, deadline=timedelta(0)).findings
        assert findings == [], [f"{f.zone} {f.name}: {f.problem}" for f in findings]
        for writer in writers:
            known = {e.file.name for e in writer.entries(stages=ALL_STAGES)}
            assert known == set(writer.zone.names(EVER)), f"strays of zone {writer.zone.name}"
        one, other = (
            sorted(
                (f.shard, sorted(f.ranges.items()), sorted(f.deletions), f.checksum.sum)
                for f in (e.file for e in writer.entries())
            )
            for writer in writers
        )
        assert one == other, "the zones have other files"

    def check_files(self, topic: str) -> None:
        for zone in "ab":
            writer = self.writer(zone)
            found: Counter[tuple[int, int, bool]] = Counter()
            for entry in writer.entries(topic):
                for record in writer.records(entry.file):
                    found[record.partition, record.offset, entry.file.holds_dead_letters] += 1
            expected: Counter[tuple[int, int, bool]] = Counter()
            for partition in range(self.partitions[topic]):  # the process died when it had landed these, and no rows
                for offset in self.lost(topic, partition):
                    found.pop((partition, offset, True), None)
            for partition in range(self.partitions[topic]):
                lost = self.lost(topic, partition)
                closed = {o for first, last in self.replay(topic, partition) for o in range(first, last + 1)}
                for offset, message in self.landed(topic, partition).items():
                    if (
                        offset in closed
                        and offset not in lost
                        and not self.is_erased(topic, partition, offset, message)
                    ):
                        expected[partition, offset, message.kind in ("dead", "large", "bad beat")] += 1
            assert found == expected, (
                f"zone {zone} of {topic[-1]}: lacks {sorted(expected - found)}, has more {sorted(found - expected)}"
            )

    def first_of(self, topic: str, partition: int) -> int:
        """What Kafka removed before any zone began a partition never was there."""
        policies = [each for each in self.commands("policy", topic) if each["partition"] == partition]
        return min([each["first"] for each in policies if "first" in each], default=1 << 60)

    def check_rows(self, topic: str) -> None:
        raw, column = self.feed(topic).raw, IDS[self.topics.index(topic)]
        rows = Counter(load(self.catalog, raw.table).scan().to_arrow()[column].to_pylist())
        needed, allowed = Counter[str](), Counter[str]()
        for partition in range(self.partitions[topic]):
            lost = self.lost(topic, partition)
            closed = {o for first, last in self.replay(topic, partition) for o in range(first, last + 1)}
            for offset, message in self.landed(topic, partition).items():
                if message.kind == "large" and offset in lost:  # its dead letter may have landed before the rows
                    allowed[message.name] += 1
                if message.kind in ("row", "large") and offset not in lost and offset in closed:
                    allowed[message.name] += 1
                    if not self.is_erased(topic, partition, offset, message):
                        needed[message.name] += 1
        assert not needed - rows, f"rows of {topic[-1]} are missing: {sorted(needed - rows)}"
        assert not rows - allowed, f"rows of {topic[-1]} are there twice, or were never sent: {sorted(rows - allowed)}"

    def check_cuts(self, topic: str) -> None:
        """Both zones cut where a replay does, message by message."""
        for partition in range(self.partitions[topic]):
            expected, lost = set(self.replay(topic, partition)), self.lost(topic, partition)
            for zone in "ab":
                for first, last, epoch in self.cuts[zone, topic, partition]:
                    if epoch < len(self.epochs(topic)):
                        base = self.epochs(topic)[epoch].get(partition, 0)
                        if first >= base or last >= base:
                            continue  # of a topic that was gone by then: it did not land
                    did_land = (zone, topic, partition, first, last, epoch) not in self.not_landed
                    if not did_land and lost & {*range(first, last + 1)}:
                        continue  # what was lost then divides it
                    assert (first, last) in expected, (
                        f"zone {zone} cut {topic[-1]} p{partition} at {first}-{last}: {sorted(expected)}"
                    )

    def replay(self, topic: str, partition: int) -> Iterator[tuple[int, int]]:
        messages = self.landed(topic, partition)
        policies, horizon = [], 0
        log = (self.home.landing_folder / "commands.jsonl").read_text().splitlines()[1:]
        seen: set[int] = set()
        for each in map(json.loads, log):
            body = each["body"]
            if each["topic"] != topic or body.get("partition") != partition:
                continue
            if each["kind"] == "horizon":
                horizon = max(horizon, body["to"])
            if each["kind"] == "policy" and body["from_offset"] not in seen:
                seen.add(body["from_offset"])
                policies.append((max(horizon, body["from_offset"]), body))
        forced = {base.get(partition, 0) for base in self.epochs(topic)}
        for body in self.commands("loss", topic):
            if body["partition"] == partition and body["for_good"]:
                forced |= {body["first"], body["last"] + 1}
        lost = self.lost(topic, partition)
        held: list[tuple[int, Message]] = []
        for offset in sorted(messages):
            if offset in lost or offset < self.first_of(topic, partition):
                continue
            if held and offset in forced:
                yield held[0][0], held[-1][0]
                held = []
            if not held:
                begun = sorted((each for each in policies if each[0] <= offset), key=lambda each: each[0])
                policy = begun[-1][1]
            held.append((offset, messages[offset]))
            if self.is_full([m for _, m in held], policy):
                yield held[0][0], offset
                held = []

    @staticmethod
    def is_full(held: list[Message], policy: dict[str, Any]) -> bool:
        if len(held) >= policy["max_messages"] or sum(m.size for m in held) >= policy["max_bytes"]:
            return True
        if held[-1].kind != "beat":
            return False
        beats = [(n, m) for n, m in enumerate(held) if m.kind == "beat"]
        others = [(n, m) for n, m in enumerate(held) if m.kind != "beat"]
        if not others:
            return abs(held[-1].at - held[0].at) >= policy["max_idle_ms"]
        number, sent = others[0]
        earlier = [m for n, m in beats if n < number]
        later = [m for n, m in beats if n > number]
        if earlier:
            began = earlier[-1].at
        else:
            near = 0 <= later[0].at - sent.at <= policy["max_age_ms"] // 2
            began = sent.at if near else later[0].at
        return abs(held[-1].at - began) >= policy["max_age_ms"]


def play(home: Settings, servers: str, seed: int, length: int = LENGTH) -> World:
    """Play a schedule; what fails says what happened before."""
    world = World(home, servers, seed)
    try:
        world.play(length)
    except Exception as error:
        error.add_note(f"seed {seed}\n    " + "\n    ".join(world.events))
        raise
    finally:
        for zone in "ab":
            world.kill(zone)
    return world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--servers", default="", help="of a Kafka that runs already")
    asked = parser.parse_args()
    failed, counts = 0, Counter[str]()
    with TemporaryDirectory() as folder, ExitStack() as stack:
        servers = asked.servers
        if not servers:
            settings = Settings(home=Path(folder) / "kafka")
            service = stack.enter_context(running(kafka_service(settings, free_port(), free_port())))
            servers = f"127.0.0.1:{service.port}"
        for seed in range(asked.seed, asked.seed + asked.schedules):
            began = time.monotonic()
            try:
                counts += play(Settings(home=Path(folder) / str(seed)), servers, seed, asked.length).counts
            except Exception:
                failed += 1
                traceback.print_exc(file=sys.stdout)
            print(f"seed {seed} took {time.monotonic() - began:.1f} s; {failed} have failed", flush=True)
    print(f"{asked.schedules} schedules, {failed} fail: {dict(counts.most_common())}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
