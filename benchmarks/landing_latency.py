"""Time of a message from Kafka, through both zones, to a row of the raw table that can be queried.

    python -m benchmarks.landing_latency [--seconds 120] [--rate 200] [--age 10]

Kafka is started in a temporary data directory; Spark is not used. One process does what `lake landing run` does. This
process sends messages and reads the table. The cutover age, after which a file is closed, is most of the time, so the
rest is printed, too.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import tempfile
import time
from dataclasses import replace
from datetime import datetime
from multiprocessing.synchronize import Event
from pathlib import Path

from confluent_kafka import Producer
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table

from lake_assets.connections.catalog import open_catalog
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.engine.engine import utc_now
from lake_assets.incremental.engine.iceberg import create_raw
from lake_assets.landing.landing_service import LandingService, run
from lake_assets.landing.loading import read_progress
from lake_assets.membership import PIPELINE
from lake_assets.membership.raw import SIGNUPS
from lake_assets.services.servers import kafka
from lake_assets.services.service import free_port, running
from lake_assets.settings import Settings

PARTITIONS = 4
TICK_SECONDS = 0.2
PATIENCE_SECONDS = 120
ONE_TABLE = Pipeline(raw=(SIGNUPS,), targets=(), start=PIPELINE.start, subjects=PIPELINE.subjects)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--rate", type=int, default=200, help="messages a second")
    parser.add_argument("--age", type=int, default=10, help="LAKE_LANDING_AGE_SECONDS")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lake-bench-") as folder:
        home = Settings(home=Path(folder), landing_age_seconds=arguments.age)
        with running(kafka(home, free_port(), free_port())) as broker:
            home = home.model_copy(update={"kafka": f"127.0.0.1:{broker.port}"})
            waited = sorted(_measure(home, arguments.seconds, arguments.rate))
    p50, p95 = (waited[math.ceil(share * len(waited)) - 1] for share in (0.5, 0.95))
    print(f"{len(waited):,} messages: p50 {p50:.1f} s, p95 {p95:.1f} s, max {waited[-1]:.1f} s")
    print(f"beyond the cutover age of {arguments.age} s: p95 {p95 - arguments.age:.1f} s")


def _measure(home: Settings, seconds: float, rate: int) -> list[float]:
    """Return the seconds from the timestamp of each message until its row is in the table."""
    service = _service(home)
    create_raw(service.catalog, SIGNUPS)
    (feed,) = service.feeds
    KafkaTopic(service.servers, feed.topic).create(PARTITIONS)
    start = multiprocessing.get_context("spawn")
    ended = start.Event()
    landing = start.Process(target=_land, args=(home, ended))
    landing.start()
    try:
        return _Traffic(service).run(seconds, rate)
    finally:
        ended.set()
        landing.join()


def _land(home: Settings, ended: Event) -> None:
    run(_service(home), (), on_loaded=lambda _: None, should_stop=ended.is_set)


class _Traffic:
    """Sends messages at a constant rate, and measures when their rows are in the table."""

    def __init__(self, service: LandingService) -> None:
        (feed,) = service.feeds
        self._service = service
        self._topic = feed.topic
        self._table = feed.raw.table
        self._producer = Producer({"bootstrap.servers": service.servers})
        self._sent = 0
        self._batches_seen = 0
        self._waited: list[float] = []

    def run(self, seconds: float, rate: int) -> list[float]:
        """Send messages for some seconds, and wait for their rows; return the seconds that each message took."""
        began = time.monotonic()
        passed = 0.0
        while passed < seconds or len(self._waited) < self._sent:
            self._send_until(int(min(passed, seconds) * rate))
            self._look()
            if passed > seconds + PATIENCE_SECONDS:
                missing = self._sent - len(self._waited)
                raise SystemExit(f"{missing} of {self._sent} messages did not arrive in {PATIENCE_SECONDS} s.")
            time.sleep(TICK_SECONDS)
            passed = time.monotonic() - began
        return self._waited

    def _send_until(self, count: int) -> None:
        while self._sent < count:
            at = utc_now()
            value = {
                "signup_id": f"s-{self._sent}",
                "account_id": f"a-{self._sent}",
                "event_ts": at.isoformat(),
            }
            timestamp = int(at.timestamp() * 1000)
            self._producer.produce(self._topic, json.dumps(value).encode(), value["account_id"], timestamp=timestamp)
            self._sent += 1
        self._producer.poll(0)

    def _look(self) -> None:
        """Measure the messages of batches that were loaded since the last look."""
        table = self._service.catalog.load_table(self._table)
        progress = read_progress(table.metadata.properties, self._topic)
        now = utc_now()
        for batch in range(self._batches_seen + 1, progress.batch + 1):
            batch_id = replace(progress, batch=batch).batch_id
            self._waited += [(now - at).total_seconds() for at in _landed_at(table, batch_id)]
        self._batches_seen = progress.batch


def _landed_at(table: Table, batch_id: str) -> list[datetime]:
    """Return when the messages of a batch were sent."""
    scan = table.scan(row_filter=EqualTo("batch_id", batch_id), selected_fields=("landed_at",))  # type: ignore[call-arg, arg-type]
    return [at for at in scan.to_arrow()["landed_at"].to_pylist() if at is not None]


def _service(home: Settings) -> LandingService:
    return LandingService(home, str(home.kafka), open_catalog(home), ONE_TABLE, utc_now)


if __name__ == "__main__":
    main()
