"""Throughput of the ingestion stream: messages per second from Kafka to rows, dead letters and notifications.

    python -m benchmarks.engagement_ingestion [--records 500000] [--batches 3]

Spark, ZooKeeper and Kafka are started in a temporary data directory. The time to produce the messages is not counted.
The first batch, which is the warm-up, is printed, too.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from confluent_kafka import Producer

from lake_assets.connections.addresses import process_of
from lake_assets.connections.spark import open_spark
from lake_assets.coordination import zookeeper_client
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.lakes import EMAIL_EVENT
from lake_assets.engagement.model.table_schemas import ENGAGEMENT
from lake_assets.engagement.model.tables import open_tables
from lake_assets.engagement.streams.turn import coordinator, open_stream, take_turn
from lake_assets.services.stack import lake_services
from lake_assets.settings import Settings

START = datetime(2026, 1, 1, tzinfo=UTC)
PARTITIONS = 4
SECONDS = 60.0
"""Timeout of the ZooKeeper session and of a turn, which no other process takes."""


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=500_000, help="of each batch")
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--orgs", type=int, default=20)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="lake-bench-") as folder,
        lake_services(Settings(home=Path(folder), spark_java_options="")) as home,
    ):
        spark = open_spark(home)
        tables = open_tables(home, replace(EMAIL_EVENT, max_records=arguments.records))
        tables.create(spark)
        tables.register_orgs({f"org{number}": None for number in range(arguments.orgs)})
        topic = KafkaTopic(str(home.kafka), tables.lake.topic("ingestion"))
        topic.create(PARTITIONS)
        stream = open_stream("ingestion", tables, spark, topic.servers)
        with zookeeper_client(str(home.zookeeper), session_seconds=SECONDS) as zk:
            for _ in range(arguments.batches):
                _produce(topic, arguments.records, arguments.orgs)
                cpu_before = _cpu_seconds(home)
                began = time.perf_counter()
                take_turn(stream, coordinator(stream, zk, spark, timeout=SECONDS), max_wait=SECONDS)
                seconds = time.perf_counter() - began
                _print_rates(arguments.records, seconds, _cpu_seconds(home) - cpu_before)
        print(f"rows in all: {tables.read(spark, ENGAGEMENT).count():,}")
        spark.stop()


def _print_rates(records: int, seconds: float, cpu_seconds: float) -> None:
    wall = f"{seconds:.1f} s, {records / seconds:,.0f} a second"
    cpu = f"{cpu_seconds:.1f} s of Spark's CPU, {records / cpu_seconds:,.0f} a second of it"
    print(f"{records:,} messages: {wall}; {cpu}", flush=True)


def _cpu_seconds(home: Settings) -> float:
    """Return the processor time of the Spark server so far. It depends less on other programs than wall time."""
    process = process_of(home.home, "spark")
    assert process is not None
    times = process.cpu_times()
    return float(times.user + times.system)


def _produce(topic: KafkaTopic, count: int, orgs: int) -> None:
    producer = Producer({"bootstrap.servers": topic.servers, "linger.ms": 50, "queue.buffering.max.messages": count})
    for number in range(count):
        producer.produce(topic.topic, _message(number, orgs), partition=number % PARTITIONS)
    producer.flush()


def _message(number: int, orgs: int) -> bytes:
    values = {
        "org_id": f"org{number % orgs}",
        "engagement_id": f"e{number}",
        "who_id": f"lead {number % 50_000}",
        "kind": ("sent", "opened", "replied", "bounced")[number % 4],
        "template_id": f"template {number % 40}",
        "rep_id": f"rep {number % 300}",
        "engaged_at": (START + timedelta(seconds=number)).isoformat(),
        "engagement": {"subject": f"Following up on {number}", "opens": number % 5, "replied": number % 4 == 2},
    }
    return json.dumps(values).encode()


if __name__ == "__main__":
    main()
