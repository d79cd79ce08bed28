"""Rows that are sent while services die, and the count of what arrived: plain Python over ids, without the engine."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import KafkaError, Producer
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo

from benchmarks.faults.pipeline import CLICKS, ORDERS, PIPELINE
from lake_assets.base.hours import hour_key, hour_start, parse_hour
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.incremental.engine import iceberg

ROWS = 20
"""Rows of each table in a batch."""

EVENT_HOURS = 2
DELIVERY_SECONDS = 600
RETRY_SECONDS = 1

READERS: Mapping[str, tuple[str, ...]] = {
    "raw.clicks": ("click",),
    "raw.orders": ("order",),
    "core.click_fact": ("click",),
    "core.order_fact": ("order",),
    "core.activity": ("click", "order"),
}
"""Table → the kinds of events of which it has every one once."""


@dataclass
class Traffic:
    """Sends events. Each id is sent once: it is sent again only after a failure that surely has left nothing.

    Attributes:
        catalog: Of the raw tables.
        servers: Of Kafka.
        sent: Kind → the ids that a table or a topic has accepted.
    """

    catalog: Catalog
    servers: str
    sent: dict[str, list[str]] = field(default_factory=lambda: {"click": [], "order": []})
    _batches: int = 0

    def prepare(self) -> None:
        """Create the topic, and say that the clicks are complete: each of them will be a late one."""
        KafkaTopic(self.servers, ORDERS.table).create(1)
        self._producer = Producer(
            {
                "bootstrap.servers": self.servers,
                "enable.idempotence": True,
                "delivery.timeout.ms": DELIVERY_SECONDS * 1000,
                "log_level": 0,
            }
        )

    def send(self) -> None:
        """Send one batch of each kind, and return when it was accepted. Services may be dead meanwhile."""
        self._batches += 1
        orders = list(self._events("order"))
        for event in orders:
            self._produce(event)
        self._append(list(self._events("click")))
        if self._producer.flush(DELIVERY_SECONDS):
            raise SystemExit(f"Kafka at {self.servers} did not take all messages within {DELIVERY_SECONDS} s.")

    def count(self) -> dict[str, Count]:
        """Return what each table has of the events that were sent."""
        found = {}
        for table, kinds in READERS.items():
            wanted = [event_id for kind in kinds for event_id in self.sent[kind]]
            found[table] = compare(wanted, ids_of(self.catalog, table))
        return found

    def _events(self, kind: str) -> Iterable[dict[str, Any]]:
        first = hour_start(parse_hour(PIPELINE.start))
        for number in range(ROWS):
            hour = first + timedelta(hours=number % EVENT_HOURS)
            yield {"event_id": f"{kind}-{self._batches}-{number}", "event_ts": hour + timedelta(minutes=number)}

    def _produce(self, event: Mapping[str, Any]) -> None:
        event_id = str(event["event_id"])

        def delivered(error: KafkaError | None, _: object) -> None:
            if error is not None:
                raise SystemExit(f"Kafka did not take {event_id}: {error.str()}")
            self.sent["order"].append(event_id)

        value = json.dumps({**event, "event_ts": event["event_ts"].isoformat()})
        self._producer.produce(ORDERS.table, value.encode(), event_id, on_delivery=delivered)

    def _append(self, events: list[dict[str, Any]]) -> None:
        batch = f"batch-{self._batches}"
        deadline = time.monotonic() + DELIVERY_SECONDS
        while True:
            try:
                append_once(self.catalog, CLICKS.table, events, batch, now=datetime.now(UTC))
                break
            except Exception:  # of a disk that is full, or a database that is locked: whatever it is, it shall pass
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_SECONDS)
        self.sent["click"] += [str(event["event_id"]) for event in events]


@dataclass(frozen=True)
class Count:
    """What a table has of the events that were sent. lost: ids that it lacks; doubled: rows beyond one for an id."""

    lost: int
    doubled: int


def compare(wanted: Iterable[str], found: Iterable[str]) -> Count:
    """Return how many ids are missing, and how many rows are too many: repeated, or never sent."""
    ids = set(wanted)
    rows = Counter(found)
    extra = sum(count - (event_id in ids) for event_id, count in rows.items())
    return Count(lost=len(ids - rows.keys()), doubled=extra)


def ids_of(catalog: Catalog, table: str) -> list[str]:
    """Return the ids of all rows of a table; none if there is no table yet."""
    found = iceberg.find(catalog, table)
    if found is None:
        return []
    return [str(row["event_id"]) for row in found.scan(selected_fields=("event_id",)).to_arrow().to_pylist()]


def append_once(catalog: Catalog, name: str, events: list[dict[str, Any]], batch: str, *, now: datetime) -> None:
    """Append events to a raw table unless a call that seemed to fail has done so; the table is complete up to now."""
    import pyarrow as pa

    table = iceberg.load(catalog, name)
    of_batch = EqualTo("batch_id", batch)  # type: ignore[call-arg, arg-type]
    if len(table.scan(of_batch, selected_fields=("batch_id",)).to_arrow()):
        return
    landing = {"landed_at": now, "landing_date": now.date(), "landing_hour": now.hour, "batch_id": batch}
    rows = pa.Table.from_pylist([{**event, **landing} for event in events], schema=table.schema().as_arrow())
    complete_hour = int(now.timestamp()) // 3600 - 1
    with table.transaction() as transaction:
        transaction.append(rows)
        transaction.set_properties({iceberg.COMPLETE_THROUGH: hour_key(complete_hour)})
