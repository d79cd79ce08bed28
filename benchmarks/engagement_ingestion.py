"""Throughput of the ingestion stream: messages per second from Kafka to rows, dead letters and notifications.

    python -m benchmarks.engagement_ingestion [--records 500000] [--batches 3] [--months 1 12]

Spark, ZooKeeper and Kafka are started in a temporary data directory. The time to produce the messages is not counted.
The first batch, which is the warm-up, is printed, too. With `--months`, the table first gets the rows of that many
months before the messages; for each number there is a lake. After each batch, the check `unique_engagement_ids` looks
for copies of its rows.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from pyspark.sql import functions as F

from benchmarks.processes import cpu_seconds, spark_server
from lake_assets.connections.spark import open_spark
from lake_assets.coordination import zookeeper_client
from lake_assets.engagement.lakes import EMAIL_EVENT
from lake_assets.engagement.monitoring import repeated_ids
from lake_assets.engagement.tables import ENGAGEMENT, LakeTables, open_tables
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.engagement.turn import coordinator, open_stream, take_turn
from lake_assets.services.lifecycle import lake_services
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2026, 1, 1, tzinfo=UTC)
MONTH = timedelta(days=30)
PARTITIONS = 4
SECONDS = 60.0
"""Timeout of the ZooKeeper session and of a turn, which no other process takes."""


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=500_000, help="of each batch")
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--orgs", type=int, default=20)
    parser.add_argument(
        "--months", type=int, nargs="+", default=[0], help="of rows before the messages; a lake for each"
    )
    parser.add_argument("--behind", type=int, default=200_000, help="rows of each of these months")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="lake-bench-") as folder,
        lake_services(Settings(home=Path(folder), spark_java_options="")) as home,
    ):
        spark = open_spark(home)
        for months in arguments.months:
            _play(home, spark, months, arguments)
        spark.stop()


def _play(home: Settings, spark: SparkSession, months: int, arguments: argparse.Namespace) -> None:
    """Ingest the batches into a lake that has the rows of some months."""
    lake = replace(EMAIL_EVENT, name=f"email_event_{months}", max_records=arguments.records)
    tables = open_tables(home, lake)
    tables.create(spark)
    tables.register_orgs({f"org{number}": None for number in range(arguments.orgs)})
    for month in range(months):
        _fill(tables, spark, month, arguments.behind, arguments.orgs)
    topic = KafkaTopic(str(home.kafka), lake.topic("ingestion"))
    topic.create(PARTITIONS)
    stream = open_stream("ingestion", tables, spark, topic.servers)
    print(f"{months * arguments.behind:,} rows of {months} months:", flush=True)
    with zookeeper_client(str(home.zookeeper), session_seconds=SECONDS) as zk:
        for batch in range(arguments.batches):
            _produce(topic, batch * arguments.records, arguments.records, arguments.orgs)
            cpu_before = cpu_seconds(spark_server(home.home))
            began = time.perf_counter()
            take_turn(stream, coordinator(stream, zk, spark, timeout=SECONDS), max_wait=SECONDS)
            seconds = time.perf_counter() - began
            cpu_after = cpu_seconds(spark_server(home.home))
            _print_rates(arguments.records, seconds, cpu_after - cpu_before)
            copies = repeated_ids(spark, tables, tables.version(ENGAGEMENT))
            cpu_of_check = cpu_seconds(spark_server(home.home)) - cpu_after
            print(f"  {copies.count} copies found by the check, {cpu_of_check:.1f} s of Spark's CPU", flush=True)
    print(f"rows in all: {tables.read(spark, ENGAGEMENT).count():,}", flush=True)


def _fill(tables: LakeTables, spark: SparkSession, month: int, count: int, orgs: int) -> None:
    """Append rows of a month: 0 for the one before the messages, 1 for the one before that."""
    number = F.col("id")
    engaged_at = F.lit(START - MONTH * (month + 1)) + F.make_dt_interval(secs=number * (MONTH.total_seconds() / count))
    columns = {
        "org_id": F.concat(F.lit("org"), number % orgs),
        "engagement_date": F.to_date(engaged_at),
        "engagement_id": F.concat(F.lit(f"m{month} "), number),
        "who_id": F.concat(F.lit("lead "), number),
        "kind": F.lit("sent"),
        "engaged_at": engaged_at,
    }
    rows = spark.range(count).withColumns(columns).drop("id").repartition("org_id")
    rows.write.format("delta").mode("append").save(tables.location(ENGAGEMENT))


def _print_rates(records: int, seconds: float, cpu_seconds: float) -> None:
    wall = f"{seconds:.1f} s, {records / seconds:,.0f} a second"
    cpu = f"{cpu_seconds:.1f} s of Spark's CPU, {records / cpu_seconds:,.0f} a second of it"
    print(f"{records:,} messages: {wall}; {cpu}", flush=True)


def _produce(topic: KafkaTopic, first: int, count: int, orgs: int) -> None:
    producer = Producer({"bootstrap.servers": topic.servers, "linger.ms": 50, "queue.buffering.max.messages": count})
    for number in range(first, first + count):
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
