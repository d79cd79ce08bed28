"""Payments that are corrected and deleted: raw rows, targets, and what must stand in them by plain Python."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lake_assets import Pipeline, RawTable, Rule, SessionContext, Source, Stateful, Stateless, audits, incremental_asset
from lake_assets.base.hours import hour_of, hour_start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


Row = dict[str, Any]

PAYMENTS = RawTable(
    table="raw.payments",
    columns={
        "payment_id": "string",
        "amount": "int",
        "op": "string",
        "event_ts": "timestamptz",
        "updated_at": "timestamptz",
    },
    time_column="event_ts",
)
NEGATIVE = Rule("negative", where="amount < 0")
LAST = Source(
    "raw.payments",
    time_column="event_ts",
    key="payment_id",
    rules=(NEGATIVE,),
    keep="last",
    order_by="updated_at",
    deleted="op = 'D'",
)
COLUMNS = {"payment_id": "string", "amount": "int", "paid_at": "timestamptz"}


@incremental_asset(
    mode=Stateless(),
    sources=[LAST],
    key="payment_id",
    time_column="paid_at",
    columns=COLUMNS,
    audits=[audits.source_target_counts(), audits.no_missing_events(), audits.unique_key()],
)
def payment_fact(session: SessionContext, payments: DataFrame) -> DataFrame:
    """Each payment in its last version."""
    return payments.selectExpr("payment_id", "amount", "event_ts as paid_at")


@incremental_asset(
    mode=Stateful(load="changed"),
    sources=[LAST],
    key="payment_id",
    time_column="paid_at",
    columns={**COLUMNS, "paid_before": "int"},
    audits=[audits.source_target_counts(), audits.no_missing_events(), audits.unique_key()],
)
def payment_running(session: SessionContext, payments: DataFrame) -> DataFrame:
    """Each payment in its last version, once more: built from all payments up to the hours."""
    rows = payments.selectExpr("payment_id", "amount", "event_ts as paid_at", "amount as paid_before")
    return session.within(rows, "paid_at")


@incremental_asset(
    mode=Stateful(load="changed"),
    sources=[replace(LAST, time_column="updated_at", keep="all")],
    key="payment_id",
    time_column="valid_from",
    columns={"payment_id": "string", "amount": "int", "valid_from": "timestamptz", "valid_to": "timestamptz"},
    audits=[audits.source_target_counts(), audits.unique_key()],
)
def payment_history(session: SessionContext, payments: DataFrame) -> DataFrame:
    """Each version of a payment, and until when it was valid."""
    found = session.versions(payments, key="payment_id", valid_from="updated_at", deleted="op = 'D'")
    return found.selectExpr("payment_id", "amount", "updated_at as valid_from", "valid_to")


PIPELINE = Pipeline(raw=(PAYMENTS,), targets=(payment_fact, payment_running, payment_history), start="2026-01-01-00:00")
START = PIPELINE.start_hour


def version(
    key: str | None, hour: int | None, order: int | None, *, amount: int = 1, op: str = "U", batch: int = 0
) -> Row:
    """A raw row: the version of a payment that was updated `order` minutes after the start, landed with a batch."""
    landed = hour_start(START + 24 + batch)
    return {
        "payment_id": key,
        "amount": amount,
        "op": op,
        "event_ts": None if hour is None else hour_start(START + hour) + timedelta(minutes=5),
        "updated_at": None if order is None else hour_start(START) + timedelta(minutes=order),
        "landed_at": landed,
        "landing_date": landed.date(),
        "landing_hour": landed.hour,
        "batch_id": f"b{batch:03}",
    }


def arrow(rows: Iterable[Row]) -> pa.Table:
    time = pa.timestamp("us", tz="UTC")
    names = {
        "payment_id": pa.string(),
        "amount": pa.int32(),
        "op": pa.string(),
        "event_ts": time,
        "updated_at": time,
        "landed_at": time,
        "landing_date": pa.date32(),
        "landing_hour": pa.int32(),
        "batch_id": pa.string(),
    }
    return pa.Table.from_pylist(list(rows), schema=pa.schema(list(names.items())))


def is_sound(row: Row) -> bool:
    """Whether a raw row does not belong in quarantine."""
    if row["payment_id"] is None:
        return False
    if row["op"] == "D":
        return True
    if row["updated_at"] is None:
        return False
    return row["event_ts"] is not None and row["event_ts"] >= hour_start(START) and row["amount"] >= 0


def standing(rows: Iterable[Row]) -> list[Row]:
    """The payments that stand, by the rows landed so far: `payment_fact`, ordered by key."""
    last: dict[str, Row] = {}
    sound = [row for row in rows if is_sound(row)]
    cuts = [row for row in sound if row["updated_at"] is None]
    for row in sound:
        removed = any(cut["payment_id"] == row["payment_id"] and _place(row) <= _place(cut) for cut in cuts)
        if row["updated_at"] is not None and not removed:
            known = last.get(row["payment_id"])
            if known is None or _order(row) >= _order(known):
                last[row["payment_id"]] = row
    found = []
    for key in sorted(last):
        if last[key]["op"] != "D":
            found.append({"payment_id": key, "amount": last[key]["amount"], "paid_at": last[key]["event_ts"]})
    return found


def history(rows: Iterable[Row]) -> list[Row]:
    """`payment_history` by a replay: each later version ends the one before; ordered by key and time."""
    versions: dict[tuple[str, Any], Row] = {}
    for row in rows:
        has_time = row["updated_at"] is not None
        if row["payment_id"] is None or not has_time or (row["amount"] < 0 and row["op"] != "D"):
            continue
        known = versions.get((row["payment_id"], row["updated_at"]))
        if known is None or _order(row) >= _order(known):
            versions[row["payment_id"], row["updated_at"]] = row
    found: list[Row] = []
    current: Row | None = None
    for (key, time), row in sorted(versions.items(), key=lambda item: item[0]):
        if current is not None and current["payment_id"] == key:
            current["valid_to"] = time
        current = None
        if row["op"] != "D":
            current = {"payment_id": key, "amount": row["amount"], "valid_from": time, "valid_to": None}
            found.append(current)
    return found


def _order(row: Row) -> tuple[Any, ...]:
    return row["updated_at"], *_place(row)


def _place(row: Row) -> tuple[Any, ...]:
    return row["landed_at"], row["batch_id"]


def hours_of(rows: Iterable[Row]) -> set[int]:
    """The hours of payments that stand, counted from the start."""
    return {hour_of(row["paid_at"]) - START for row in rows}


@dataclass
class History:
    """Random batches of versions of few payments, in few hours: most are corrections, and some delete."""

    random: Random
    batches: int = 0

    def batch(self, rows: int) -> list[Row]:
        self.batches += 1
        drawn = [self._row() for _ in range(rows)]
        # Two versions of one order in one batch would differ by nothing but the hash of the row.
        found = list({(row["payment_id"], row["updated_at"]): row for row in drawn}.values())
        if self.random.random() < 0.3:
            found.append(dict(self.random.choice(found)))
        return found

    def _row(self) -> Row:
        chosen = self.random
        key = None if chosen.random() < 0.03 else f"p{chosen.randrange(6)}"
        deletes = chosen.random() < 0.2
        order = None if chosen.random() < (0.3 if deletes else 0.03) else chosen.randrange(40)
        hour = None if chosen.random() < (0.5 if deletes else 0.03) else chosen.randrange(-1, 8)
        amount = -1 if chosen.random() < 0.1 else (order or 0) * 10 + self.batches
        return version(key, hour, order, amount=amount, op="D" if deletes else "U", batch=self.batches)
