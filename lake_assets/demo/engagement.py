"""The engagement demo: traffic, streams that take turns, an erasure with its certificate, maintenance, and proofs.

It runs in the data directory of the settings, as `membership.py` does. The services that a lake needs end with it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lake_assets.connections.spark import open_spark
from lake_assets.coordination import zookeeper_client
from lake_assets.demo.engagement_simulator import Message, Simulation, batches, generate, org_names, send
from lake_assets.demo.engagement_simulator.replay import Person, erasure, flawed, replay
from lake_assets.demo.home import prepare_home
from lake_assets.demo.output import console, headline
from lake_assets.engagement.erasure.certificate import certify
from lake_assets.engagement.maintenance import maintain as maintenance
from lake_assets.engagement.metrics.refresh import Metrics, read_metrics
from lake_assets.engagement.model.configuration.metric_groups import EMAILS
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.lake import STREAMS, StreamName
from lake_assets.engagement.model.lakes import EMAIL_EVENT
from lake_assets.engagement.model.table_schemas import DEAD_LETTER, ENGAGEMENT
from lake_assets.engagement.model.tables import open_tables
from lake_assets.engagement.monitoring.audits import unnotified_batches
from lake_assets.engagement.notifications.notify import total_counts
from lake_assets.engagement.streams.turn import coordinator, open_stream, take_turn
from lake_assets.pages.terminal import engagement as views
from lake_assets.pages.terminal.render import show
from lake_assets.services.stack import lake_services

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from pyspark.sql import SparkSession

    from lake_assets.engagement.model.tables import LakeTables
    from lake_assets.engagement.streams.batch import BatchReport
    from lake_assets.settings import Settings

LAKE = EMAIL_EVENT
SIMULATION = Simulation(orgs=6, people=150, touches=1_000, poison=0, missing=0, retention=0)
"""Every message is sound, and every request finds its engagement in the end, so the replay gives the right rows."""

PARTS = 2
PARTITIONS = 2
WAIT_SECONDS = 60.0


def run() -> bool:
    """Play all scenes in the data directory of the settings; return whether all proofs hold."""
    began = time.monotonic()
    with lake_services(prepare_home()) as home:
        console.print(f"[dim]Spark, ZooKeeper and Kafka are ready after {time.monotonic() - began:.0f} s.[/]")
        spark = open_spark(home)
        try:
            with zookeeper_client(str(home.zookeeper)) as zk:
                succeeded = _play(_Stage(home, spark, zk, open_tables(home, LAKE)))
        finally:
            spark.stop()
    console.print(f"\n{time.monotonic() - began:.0f} s in all.")
    return succeeded


@dataclass(frozen=True)
class _Stage:
    """The parts that the scenes use."""

    home: Settings
    spark: SparkSession
    zk: KazooClient
    tables: LakeTables

    @property
    def servers(self) -> str:
        return str(self.home.kafka)

    def open(self) -> None:
        """Create tables and topics, and register the orgs of the simulation."""
        self.tables.create(self.spark)
        self.tables.register_orgs(dict.fromkeys(org_names(SIMULATION)))
        for name in STREAMS:
            KafkaTopic(self.servers, LAKE.topic(name)).create(PARTITIONS)

    def send(self, messages: Sequence[Message]) -> None:
        sent = send(self.servers, messages)
        counts = ", ".join(f"{count:,} to {topic}" for topic, count in sorted(sent.items()))
        console.print(f"  [cyan]→[/] {counts}")

    def take_turns(self) -> None:
        """Take turns until a whole round reads no message. Pending requests are tried again in later rounds."""
        reading = True
        while reading:
            results = [self._take_turn(name) for name in STREAMS]
            reading = any(results)

    def maintain(self) -> None:
        """Take a turn of maintenance. It follows retention, the last turn of a round."""
        done = maintenance.take_turn(
            self.tables,
            self.spark,
            self.zk,
            max_wait=WAIT_SECONDS,
            retain_hours=self.home.retain_hours,
        )
        console.print(f"  [green]■[/] maintenance follows retention: {views.maintained(done)}")

    def certify(self, person: Person) -> bool:
        """Print the certificate of an id; return whether no file of the lake has the id."""
        org, who_id = person
        console.print(f"  [cyan]?[/] lake erasure certify org {org} {who_id}")
        found = certify(self.tables.root, [LAKE], org, who_id, self.servers)
        show(views.certificate(found))
        return found.nowhere

    def _take_turn(self, name: StreamName) -> bool:
        """Take a turn of a stream; return whether it read messages."""
        stream = open_stream(name, self.tables, self.spark, self.servers)
        coordinated = coordinator(stream, self.zk, self.spark, timeout=WAIT_SECONDS)
        report = take_turn(stream, coordinated, max_wait=WAIT_SECONDS)
        turn = f"{name} follows {report.predecessor}" if report.predecessor else f"{name} is the first"
        if report.batch is None:
            console.print(f"  [green]■[/] {turn}: [dim]nothing to do[/]")
            return False
        console.print(f"  [green]■[/] {turn}: {_describe(report.batch)}")
        return report.batch.batch.messages.count > 0


def _describe(report: BatchReport) -> str:
    """Return what a batch did: `batch 1: 812 inserted, 12 dead letters`."""
    data, dead = report.commits.get("data"), report.commits.get("dead_letter")
    counts = asdict(total_counts(data)) if data else {}
    counts["dead letters"] = total_counts(dead).inserted if dead else 0
    done = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    return f"batch {report.batch.batch_id}: {done or 'no row changed'}"


@dataclass(frozen=True)
class _Expected:
    """What must be left at the end. rows: engagement id → person. dead_letters: reason → number."""

    rows: Mapping[str, Person]
    dead_letters: Counter[str]


def _play(stage: _Stage) -> bool:
    stage.open()
    messages = list(generate(SIMULATION, LAKE))
    reasons = _play_traffic(stage, messages)
    replayed = replay(messages, LAKE)
    [(person, _)] = Counter(replayed.rows.values()).most_common(1)
    _play_erasure(stage, person, at=messages[-1].timestamp)
    _play_maintenance(stage)
    is_erased = _certify_all(stage, replayed.ids(person))
    expected = _Expected(replayed.without(person), reasons)
    return _check_proofs(stage, expected, is_erased=is_erased)


def _play_traffic(stage: _Stage, messages: list[Message]) -> Counter[str]:
    """Send all messages in parts, and broken ones with the first part; return the reasons of the broken ones."""
    broken = list(flawed(messages, LAKE))
    extra = [message for message, _ in broken]
    part_size = -(-len(messages) // PARTS)
    for number, part in enumerate(batches(messages, part_size), start=1):
        headline(
            f"Traffic, part {number} of {PARTS}",
            "Emails, calls, conversions, merges and deletions; some are late.",
        )
        stage.send(part + extra)
        stage.take_turns()
        extra = []
    return Counter(reason for _, reason in broken)


def _play_erasure(stage: _Stage, person: Person, *, at: int) -> None:
    org, who_id = person
    headline("An erasure", f"{who_id} of {org} has the most engagements. This person is erased under every id.")
    stage.send([erasure(person, LAKE, at)])
    stage.take_turns()


def _play_maintenance(stage: _Stage) -> None:
    headline(
        "Maintenance",
        "Files are sorted and compacted. Old files that still mention the erased person are removed at once.",
    )
    stage.maintain()


def _certify_all(stage: _Stage, ids: set[Person]) -> bool:
    headline("The certificate", "Every file is decoded and searched for each id of the erased person.")
    results = [stage.certify(id_) for id_ in sorted(ids)]
    return all(results)


def _check_proofs(stage: _Stage, expected: _Expected, *, is_erased: bool) -> bool:
    headline("The proofs", f"A replay of all messages, one by one, leaves {len(expected.rows):,} rows.")
    tables, spark = stage.tables, stage.spark
    rows = tables.read(spark, ENGAGEMENT).select("engagement_id", "org_id", "who_id", "kind").collect()
    found = sorted((row["engagement_id"], (row["org_id"], row["who_id"])) for row in rows)
    dead_letters = tables.read(spark, DEAD_LETTER).select("reason").collect()
    reasons = Counter(row["reason"] for row in dead_letters)
    proofs = {
        "rows equal the replay, each once": found == sorted(expected.rows.items()),
        "each broken message is one dead letter with its reason": reasons == expected.dead_letters,
        "each data commit has one notification": not unnotified_batches(tables),
        "metrics count the emails that are left": _metrics_equal(stage, Counter(row["kind"] for row in rows)),
        "no file of the lake has an id of the erased person": is_erased,
    }
    for what, holds in proofs.items():
        console.print(f"  [green]✓[/] {what}" if holds else f"  [red]✗ {what}[/]")
    return all(proofs.values())


def _metrics_equal(stage: _Stage, kinds: Counter[str]) -> bool:
    """Refresh the metrics and compare them with the number of emails of each kind."""
    Metrics(stage.tables, stage.spark).refresh()
    metrics = read_metrics(stage.tables).to_pydict()
    return all(sum(metrics[kind]) == kinds[kind] for kind in EMAILS.kinds)
