"""The demo of an engagement lake, by itself: traffic, streams that take turns, an erasure with its certificate, and
maintenance; at the end, the proofs.

It works in the settings' home, alone, as `demo.py` does, with the services that a lake needs, which end with it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich.markup import escape

from lake_assets.connections.spark import open_spark
from lake_assets.coordination import zookeeper_client
from lake_assets.demo.engagement_simulator import Message, Simulation, batches, generate, org_names, send
from lake_assets.demo.engagement_simulator.replay import Person, erasure, flawed, replay
from lake_assets.demo.home import prepare_home
from lake_assets.demo.stage import console
from lake_assets.engagement.erasure.certificate import certify
from lake_assets.engagement.maintenance import maintain as maintenance
from lake_assets.engagement.metrics.refresh import EMAIL_KINDS, Metrics, read_metrics
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.lake import STREAMS, StreamName
from lake_assets.engagement.model.lakes import EMAIL_EVENT
from lake_assets.engagement.model.tables import DEAD_LETTER, ENGAGEMENT, open_tables
from lake_assets.engagement.monitoring.audits import untold_batches
from lake_assets.engagement.notifications.notify import counted
from lake_assets.engagement.streams.turn import coordinator, open_stream, take_turn
from lake_assets.pages import terminal_engagement
from lake_assets.services.stack import lake_services

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from pyspark.sql import SparkSession

    from lake_assets.engagement.model.tables import LakeTables
    from lake_assets.engagement.streams.batch import BatchReport
    from lake_assets.settings import Settings

LAKE = EMAIL_EVENT
SIMULATION = Simulation(orgs=6, people=150, touches=1_000, poison=0, missing=0, retention=0)
"""All is sound, and every request meets its engagement in the end: what is left of it is one thing."""
PARTS = 2
PARTITIONS = 2
WAIT_SECONDS = 60.0


def run() -> bool:
    """Play all scenes; whether all proofs hold."""
    began = time.monotonic()
    with lake_services(prepare_home()) as home:
        console.print(f"[dim]Spark, ZooKeeper and Kafka are ready after {time.monotonic() - began:.0f} s.[/]")
        spark = open_spark(home)
        try:
            with zookeeper_client(str(home.zookeeper)) as zk:
                fine = _play(_Stage(home, spark, zk, open_tables(home, LAKE)))
        finally:
            spark.stop()
    console.print(f"\n{time.monotonic() - began:.0f} s in all.")
    return fine


@dataclass(frozen=True)
class _Stage:
    """Where the scenes play."""

    home: Settings
    spark: SparkSession
    zk: KazooClient
    tables: LakeTables

    def open(self) -> None:
        """Tables, topics, and the orgs whose messages are taken."""
        self.tables.create(self.spark)
        self.tables.register_orgs(dict.fromkeys(org_names(SIMULATION)))
        for name in STREAMS:
            KafkaTopic(str(self.home.kafka), LAKE.topic(name)).create(PARTITIONS)

    def send(self, messages: Sequence[Message]) -> None:
        counts = sorted(send(str(self.home.kafka), messages).items())
        console.print(f"  [cyan]→[/] {', '.join(f'{count:,} to {topic}' for topic, count in counts)}")

    def settle(self) -> None:
        """Rounds of turns, until all messages are read; requests that wait for their row are tried again later."""
        while sum(self._turn(name) for name in STREAMS):
            pass

    def maintain(self) -> None:
        """A turn of maintenance. It follows retention, the last of a round."""
        done = maintenance.take_turn(
            self.tables, self.spark, self.zk, max_wait=WAIT_SECONDS, retain_hours=self.home.retain_hours
        )
        console.print(f"  [green]■[/] maintenance follows retention: {terminal_engagement.maintained(done)}")

    def certified(self, person: Person) -> bool:
        """The certificate of an id, printed; whether the id is nowhere in the lake."""
        org, who_id = person
        console.print(f"  [cyan]?[/] lake erasure certify org {org} {who_id}")
        found = certify(self.tables.root, [LAKE], org, who_id, str(self.home.kafka))
        terminal_engagement.certificate(found)
        return found.nowhere

    def _turn(self, name: StreamName) -> bool:
        """A turn of a stream; whether it read messages."""
        stream = open_stream(name, self.tables, self.spark, str(self.home.kafka))
        coordinated = coordinator(stream, self.zk, self.spark, timeout=WAIT_SECONDS)
        report = take_turn(stream, coordinated, max_wait=WAIT_SECONDS)
        who = f"{name} follows {report.predecessor}" if report.predecessor else f"{name} is the first"
        said = "[dim]nothing to do[/]" if report.batch is None else _told(report.batch)
        console.print(f"  [green]■[/] {who}: {said}")
        return report.batch is not None and report.batch.batch.messages.count > 0


def _told(report: BatchReport) -> str:
    """What a batch did: `batch 1: 812 inserted, 12 dead letters`."""
    data, dead = report.commits.get("data"), report.commits.get("dead_letter")
    counts = {**(asdict(counted(data)) if data else {}), "dead letters": counted(dead).inserted if dead else 0}
    done = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    return f"batch {report.batch.batch_id}: {done or 'no row changed'}"


def _play(stage: _Stage) -> bool:
    stage.open()
    messages = list(generate(SIMULATION, LAKE))
    broken = list(flawed(messages, LAKE))
    for number, part in enumerate(batches(messages, -(-len(messages) // PARTS)), start=1):
        _headline(f"Traffic, part {number} of {PARTS}", "Emails, calls, conversions, merges and deletions; some late.")
        stage.send([*part, *(message for message, _ in broken if number == 1)])
        stage.settle()
    expected = replay(messages, LAKE)
    person = Counter(expected.rows.values()).most_common(1)[0][0]
    _headline("An erasure", f"{person[1]} of {person[0]}, of whom most is known, is erased under every id.")
    stage.send([erasure(person, LAKE, messages[-1].timestamp)])
    stage.settle()
    _headline("Maintenance", "Files are sorted and compacted. Those that still hold who was erased go at once.")
    stage.maintain()
    _headline("The certificate", "Every file is decoded, and searched for each id of who was erased.")
    nowhere = [stage.certified(id_) for id_ in sorted(expected.ids(person))]
    return _proofs(stage, expected.without(person), Counter(reason for _, reason in broken), nowhere)


def _proofs(stage: _Stage, rows: Mapping[str, Person], dead: Counter[str], nowhere: Collection[bool]) -> bool:
    _headline("The proofs", f"{len(rows):,} rows should be left of all messages, replayed one by one.")
    tables, spark = stage.tables, stage.spark
    found = tables.read(spark, ENGAGEMENT).select("engagement_id", "org_id", "who_id", "kind").collect()
    left = sorted((row["engagement_id"], (row["org_id"], row["who_id"])) for row in found)
    letters = Counter(row["reason"] for row in tables.read(spark, DEAD_LETTER).select("reason").collect())
    Metrics(tables, spark).refresh()
    metrics, kinds = read_metrics(tables).to_pydict(), Counter(row["kind"] for row in found)
    proofs = {
        "rows equal the replay, each once": left == sorted(rows.items()),
        "each broken message is a dead letter, with its reason, once": letters == dead,
        "each data commit is told of in one notification": not untold_batches(tables),
        "metrics count the emails that are left": all(sum(metrics[kind]) == kinds[kind] for kind in EMAIL_KINDS),
        "who was erased is in no file of the lake, under any id": all(nowhere),
    }
    for what, holds in proofs.items():
        console.print(f"  [green]✓[/] {what}" if holds else f"  [red]✗ {what}[/]")
    return all(proofs.values())


def _headline(title: str, what: str) -> None:
    console.print(f"\n[bold]{title}[/]\n[dim]{escape(what)}[/]")
