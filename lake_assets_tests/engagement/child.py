"""One turn of a stream or of maintenance, or a refresh of the metrics, in a process that a test lets die or stops.

Home, Kafka, ZooKeeper and the point at which to die come from the environment, as for any turn; without a ZooKeeper the
lake is this process's alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from lake_assets.connections.spark import open_spark
from lake_assets.coordination import zookeeper_client
from lake_assets.engagement import maintenance
from lake_assets.engagement.batch import Stream, run_batch
from lake_assets.engagement.lake import StreamName
from lake_assets.engagement.maintenance import maintain, reclaim
from lake_assets.engagement.metrics import Metrics
from lake_assets.engagement.tables import LakeTables, open_tables
from lake_assets.engagement.turn import coordinator, open_stream, take_turn
from lake_assets.engagement.turn_order import MAINTENANCE
from lake_assets.settings import settings
from lake_assets_tests.engagement.scenario import PATIENCE_SECONDS, SESSION_SECONDS, Alone, lake_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECLAIM = "reclaim"
"""Instead of a stream: the lake goes on with another ZooKeeper."""


def turn(argument: str) -> str:
    """`LAKE TOPIC STREAM` → what became of its turn: `ended`, or the name of the error that stopped it."""
    try:
        _turn(*argument.split())
    except Exception as error:  # of ours, of Spark, of Delta
        return type(error).__name__
    return "ended"


def refresh(argument: str) -> str:
    """`LAKE TOPIC`: brings the metrics of a lake up to date."""
    name, topic = argument.split()
    Metrics(open_tables(settings(), lake_of(name, topic)), open_spark(settings())).refresh()
    return "ended"


def _turn(name: str, topic: str, stream_name: str) -> None:
    spark, tables = open_spark(settings()), open_tables(settings(), lake_of(name, topic))
    hosts, retain_hours, wait = settings().zookeeper, settings().retain_hours, PATIENCE_SECONDS
    if hosts is None and stream_name == MAINTENANCE:
        maintain(tables, spark, Alone(), retain_hours=retain_hours)
        return
    if hosts is None:
        run_batch(_stream(stream_name, tables, spark), Alone())
        return
    with zookeeper_client(hosts, session_seconds=SESSION_SECONDS) as zk:
        if stream_name == MAINTENANCE:
            maintenance.take_turn(tables, spark, zk, max_wait=wait, retain_hours=retain_hours)
            return
        if stream_name == RECLAIM:
            reclaim(tables, spark, zk, timeout=wait)
            return
        stream = _stream(stream_name, tables, spark)
        take_turn(stream, coordinator(stream, zk, spark, timeout=wait), max_wait=wait)


def _stream(name: str, tables: LakeTables, spark: SparkSession) -> Stream:
    return open_stream(cast("StreamName", name), tables, spark, str(settings().kafka))
