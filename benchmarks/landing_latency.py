"""How long a message takes from Kafka to a row that can be queried in the raw table, through both zones.

    python -m benchmarks.landing_latency [--seconds 120] [--rate 200] [--age 10]

Kafka is started in a home of its own; no Spark. One process does what `lake landing run` does; this one sends messages
and watches the table. What a file waits for before it is closed, the cutover age, is most of it; it is taken off, too.
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
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.execution.engine import utc_now
from lake_assets.incremental.metadata.tables import create_raw
from lake_assets.landing.landing_service import LandingService, run
from lake_assets.landing.loading.progress import read_progress
from lake_assets.membership import PIPELINE
from lake_assets.membership.raw import SIGNUPS
from lake_assets.services.kafka import kafka
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
    """Seconds from each message's timestamp to when its row was seen."""
    station = _station(home)
    create_raw(station.catalog, SIGNUPS)
    (feed,) = station.feeds
    KafkaTopic(station.servers, feed.topic).create(PARTITIONS)
    start = multiprocessing.get_context("spawn")
    ended = start.Event()
    landing = start.Process(target=_land, args=(home, ended))
    landing.start()
    try:
        return _watched(station, seconds, rate)
    finally:
        ended.set()
        landing.join()


def _land(home: Settings, ended: Event) -> None:
    run(_station(home), (), on_loaded=lambda _: None, should_stop=ended.is_set)


def _watched(station: LandingService, seconds: float, rate: int) -> list[float]:
    (feed,) = station.feeds
    producer, begun, sent = Producer({"bootstrap.servers": station.servers}), time.monotonic(), 0
    waited: list[float] = []
    seen = 0
    while (passed := time.monotonic() - begun) < seconds or len(waited) < sent:
        for number in range(sent, int(min(passed, seconds) * rate)):
            at = utc_now()
            value = {"signup_id": f"s-{number}", "account_id": f"a-{number}", "event_ts": at.isoformat()}
            timestamp = int(at.timestamp() * 1000)
            producer.produce(feed.topic, json.dumps(value).encode(), value["account_id"], timestamp=timestamp)
            sent = number + 1
        producer.poll(0)
        table = station.catalog.load_table(feed.raw.table)
        progress = read_progress(table.metadata.properties, feed.topic)
        now = utc_now()
        for batch in range(seen + 1, progress.batch + 1):
            waited += [(now - at).total_seconds() for at in _landed_at(table, replace(progress, batch=batch).batch_id)]
        seen = progress.batch
        if passed > seconds + PATIENCE_SECONDS:
            raise SystemExit(f"{sent - len(waited)} of {sent} messages did not come in {PATIENCE_SECONDS} s.")
        time.sleep(TICK_SECONDS)
    return waited


def _landed_at(table: Table, batch_id: str) -> list[datetime]:
    """When the messages of a batch were sent."""
    scan = table.scan(row_filter=EqualTo("batch_id", batch_id), selected_fields=("landed_at",))  # type: ignore[call-arg, arg-type]
    return [at for at in scan.to_arrow()["landed_at"].to_pylist() if at is not None]


def _station(home: Settings) -> LandingService:
    return LandingService(home, str(home.kafka), open_catalog(home), ONE_TABLE, utc_now)


if __name__ == "__main__":
    main()
