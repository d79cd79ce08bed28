"""How many messages a second go from Kafka through both zones, checked against each other, into a raw table.

    python -m benchmarks.landing_zones [--messages 400000] [--bytes 300]

Kafka is started in a home of its own; no Spark. Three processes work at once, as they would: a zone each, and one that
loads what is verified. Producing is not counted. Memory is the greatest resident set of each process.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

from confluent_kafka import Producer

from lake_assets.connections.catalog import open_catalog
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.metadata.tables import create_raw
from lake_assets.landing.consume.heartbeats import beat
from lake_assets.landing.landing_service import LandingService
from lake_assets.landing.manifest.open_zones import open_zones
from lake_assets.membership import PIPELINE
from lake_assets.membership.raw import SIGNUPS
from lake_assets.services.kafka import kafka
from lake_assets.services.service import free_port, running
from lake_assets.settings import Settings

START = datetime(2026, 1, 1, tzinfo=UTC)
PARTITIONS = 4
ONE_TABLE = Pipeline(raw=(SIGNUPS,), targets=(), start=PIPELINE.start, subjects=PIPELINE.subjects)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--bytes", type=int, default=300, help="of a message's value, about")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lake-bench-") as folder:
        home = Settings(home=Path(folder))
        with running(kafka(home, free_port(), free_port())) as broker:
            home = home.model_copy(update={"kafka": f"127.0.0.1:{broker.port}"})
            _produce(home, arguments.messages, arguments.bytes)
            _measure(home, arguments.messages)


@dataclass(frozen=True)
class Spent:
    """What a process took. cpu: seconds, of user and system. memory_mb: at most."""

    who: str
    seconds: float
    cpu: float
    memory_mb: int


def _measure(home: Settings, count: int) -> None:
    start = multiprocessing.get_context("spawn")
    told: Queue[Spent] = start.Queue()
    ready = start.Barrier(4)
    works = [start.Process(target=_tail, args=(home, zone, ready, told)) for zone in ("a", "b")]
    works.append(start.Process(target=_load, args=(home, count, ready, told)))
    for work in works:
        work.start()
    ready.wait()
    all_spent = [told.get() for _ in works]
    for spent in all_spent:
        rate, each = count / spent.seconds, 1e6 * spent.cpu / count
        print(f"{spent.who}: {count:,} messages in {spent.seconds:.1f} s, {rate:,.0f} a second")
        print(f"{spent.who}: {each:.0f} µs of CPU a message, {spent.memory_mb} MB at most")
    for work in works:
        work.join()


def _tail(home: Settings, zone: str, ready: Barrier, told: Queue[Spent]) -> None:
    station = _station(home)
    with station.tailer(open_zones(home, [zone])[0]) as tailer, _spending(f"zone {zone}", ready, told):
        tailer.drain()


def _load(home: Settings, count: int, ready: Barrier, told: Queue[Spent]) -> None:
    station, rows = _station(home), 0
    with _spending("Kafka to verified raw snapshots", ready, told):
        while rows < count:
            rows += sum(loaded.rows for loaded in station.load())
            time.sleep(0.2)


@contextmanager
def _spending(who: str, ready: Barrier, told: Queue[Spent]) -> Iterator[None]:
    """Begin when all are ready, and tell what the work within took."""
    ready.wait()
    began, cpu = time.perf_counter(), time.process_time()
    yield
    memory = _most_memory_mb()
    told.put(Spent(who, time.perf_counter() - began, time.process_time() - cpu, memory))


def _most_memory_mb() -> int:
    """The greatest resident set of this process alone: `ru_maxrss` begins with that of whoever forked it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def _station(home: Settings) -> LandingService:
    return LandingService(home, str(home.kafka), open_catalog(home), ONE_TABLE, lambda: START)


def _produce(home: Settings, count: int, size: int) -> None:
    """Messages of distinct ids, and heartbeats that close the last files."""
    station = _station(home)
    create_raw(station.catalog, SIGNUPS)
    (feed,) = station.feeds
    KafkaTopic(station.servers, feed.topic).create(PARTITIONS)
    producer = Producer({"bootstrap.servers": station.servers, "linger.ms": 50, "queue.buffering.max.messages": count})
    for number in range(count):
        value, at = _message(number, size), START + timedelta(milliseconds=number)
        timestamp = int(at.timestamp() * 1000)
        producer.produce(feed.topic, value, b"a-%d" % number, partition=number % PARTITIONS, timestamp=timestamp)
    producer.flush()
    beat(station.servers, {feed.topic: START + timedelta(days=1)})


def _message(number: int, size: int) -> bytes:
    values = {
        "signup_id": f"signup-{number}",
        "account_id": f"a-{number}",
        "plan": "standard",
        "monthly_price": "12.99",
        "event_ts": (START + timedelta(milliseconds=number)).isoformat(),
    }
    bare = json.dumps({**values, "note": ""})
    return json.dumps({**values, "note": "x" * max(0, size - len(bare))}).encode()


if __name__ == "__main__":
    main()
