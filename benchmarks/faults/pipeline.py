"""A small pipeline: clicks that a program appends, orders that come from Kafka, and what both add up to."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.incremental.declaration import (
    Pipeline,
    RawTable,
    SessionContext,
    Source,
    Stateful,
    Stateless,
    Topic,
    incremental_asset,
)
from lake_assets.incremental.engine.audits import source_target_counts, unique_key

START = "2026-01-01-00:00"
EVENT = {"event_id": "string", "event_ts": "timestamptz"}

CLICKS = RawTable("raw.clicks", EVENT, time_column="event_ts", feed=False)
ORDERS = RawTable("raw.orders", EVENT, time_column="event_ts", feed=Topic("event_id"))


@incremental_asset(
    mode=Stateless(),
    sources=[Source("raw.clicks", time_column="event_ts")],
    key="event_id",
    time_column="event_ts",
    columns=EVENT,
    audits=[source_target_counts(), unique_key()],
)
def click_fact(session: SessionContext, clicks: DataFrame) -> DataFrame:
    """Return every click once."""
    return clicks.select("event_id", "event_ts")


@incremental_asset(
    mode=Stateless(),
    sources=[Source("raw.orders", time_column="event_ts")],
    key="event_id",
    time_column="event_ts",
    columns=EVENT,
    audits=[source_target_counts(), unique_key()],
)
def order_fact(session: SessionContext, orders: DataFrame) -> DataFrame:
    """Return every order once."""
    return orders.select("event_id", "event_ts")


@incremental_asset(
    mode=Stateful(load="changed"),
    sources=[
        Source("core.click_fact", time_column="event_ts"),
        Source("core.order_fact", time_column="event_ts"),
    ],
    key="event_id",
    time_column="event_ts",
    columns={**EVENT, "kind": "string"},
    audits=[unique_key()],
)
def activity(session: SessionContext, clicks: DataFrame, orders: DataFrame) -> DataFrame:
    """Return clicks and orders together, hour by hour."""
    both = clicks.withColumn("kind", F.lit("click")).unionByName(orders.withColumn("kind", F.lit("order")))
    return both.select("event_id", "event_ts", "kind")


PIPELINE = Pipeline(raw=(CLICKS, ORDERS), targets=(click_fact, order_fact, activity), start=START)
