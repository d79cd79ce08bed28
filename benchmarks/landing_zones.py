"""Messages per second from Kafka through both zones, which check each other, into a raw table.

    python -m benchmarks.landing_zones [--messages 400000] [--bytes 300]

Kafka is started in a temporary data directory; Spark is not used. Three processes work at the same time, as in
production: one for each zone, and one that loads verified files. The time to produce the messages is not counted.
Memory is the peak resident set of each process.
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
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.engine.iceberg import create_raw
from lake_assets.landing.kafka import beat
from lake_assets.landing.landing_service import LandingService
from lake_assets.landing.zones import open_zones
from lake_assets.membership import PIPELINE
from lake_assets.membership.raw import SIGNUPS
from lake_assets.services.servers import kafka
from lake_assets.services.service import free_port, running
from lake_assets.settings import Settings

START = datetime(2026, 1, 1, tzinfo=UTC)
PARTITIONS = 4
MICROSECONDS = 1e6
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
class Usage:
    """The resources that a process used. cpu: seconds of user and system. memory_mb: peak."""

    who: str
    seconds: float
    cpu: float
    memory_mb: int


def _measure(home: Settings, count: int) -> None:
    start = multiprocessing.get_context("spawn")
    results: Queue[Usage] = start.Queue()
    ready = start.Barrier(4)
    works = [start.Process(target=_tail, args=(home, zone, ready, results)) for zone in ("a", "b")]
    works.append(start.Process(target=_load, args=(home, count, ready, results)))
    for work in works:
        work.start()
    ready.wait()
    usages = [results.get() for _ in works]
    for usage in usages:
        rate = count / usage.seconds
        each = MICROSECONDS * usage.cpu / count
        print(f"{usage.who}: {count:,} messages in {usage.seconds:.1f} s, {rate:,.0f} a second")
        print(f"{usage.who}: {each:.0f} µs of CPU a message, {usage.memory_mb} MB at most")
    for work in works:
        work.join()


def _tail(home: Settings, zone: str, ready: Barrier, results: Queue[Usage]) -> None:
    service = _service(home)
    with service.tailer(open_zones(home, [zone])[0]) as tailer, _measured(f"zone {zone}", ready, results):
        tailer.drain()


def _load(home: Settings, count: int, ready: Barrier, results: Queue[Usage]) -> None:
    service = _service(home)
    rows = 0
    with _measured("Kafka to verified raw snapshots", ready, results):
        while rows < count:
            rows += sum(loaded.rows for loaded in service.load())
            time.sleep(0.2)


@contextmanager
def _measured(who: str, ready: Barrier, results: Queue[Usage]) -> Iterator[None]:
    """Wait until all processes are ready, then measure the block."""
    ready.wait()
    began = time.perf_counter()
    cpu_before = time.process_time()
    yield
    seconds = time.perf_counter() - began
    cpu = time.process_time() - cpu_before
    results.put(Usage(who, seconds, cpu, _peak_memory_mb()))


def _peak_memory_mb() -> int:
    """Return the peak resident set of this process. `ru_maxrss` would include that of the process that forked it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def _service(home: Settings) -> LandingService:
    return LandingService(home, str(home.kafka), open_catalog(home), ONE_TABLE, lambda: START)


def _produce(home: Settings, count: int, size: int) -> None:
    """Send messages with distinct ids, and heartbeats that close the last files."""
    service = _service(home)
    create_raw(service.catalog, SIGNUPS)
    (feed,) = service.feeds
    KafkaTopic(service.servers, feed.topic).create(PARTITIONS)
    producer = Producer({"bootstrap.servers": service.servers, "linger.ms": 50, "queue.buffering.max.messages": count})
    for number in range(count):
        at = START + timedelta(milliseconds=number)
        producer.produce(
            feed.topic,
            _message(number, size),
            b"a-%d" % number,
            partition=number % PARTITIONS,
            timestamp=int(at.timestamp() * 1000),
        )
    producer.flush()
    beat(service.servers, {feed.topic: START + timedelta(days=1)})


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
