"""What became of the messages of a batch: counted in Kafka, and again in what the batch has left. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from lake_assets.engagement.erasure.registry import Memory
from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.lake import StreamName
from lake_assets.engagement.model.messages import RETENTION_FORMAT, mutation_format
from lake_assets.engagement.model.tables import DEAD_LETTER, ENGAGEMENT, ERASURE, MUTATION_REQUEST, LakeTables
from lake_assets.engagement.monitoring.audits import commit_of
from lake_assets.engagement.notifications.notify import Notification, counted
from lake_assets.engagement.requests.pending import Status
from lake_assets.engagement.requests.retention_rules import RETENTION_OPS, RetentionRequest, cut_off
from lake_assets.engagement.streams.message_validation import DeadLetters, Messages
from lake_assets.engagement.streams.mutation import Requests
from lake_assets.engagement.streams.redaction import Erasures

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.engagement.model.messages import Format

_ID, _PLACE = ["org_id", "request_id"], ["partition", "offset"]


@dataclass(frozen=True)
class Tally:
    """The messages of a batch. records: so many Kafka holds. became: what → how many of them."""

    records: int
    became: Mapping[str, int]

    @property
    def balanced(self) -> bool:
        """Whether each message became one thing."""
        return self.records == sum(self.became.values())


def tally(tables: LakeTables, spark: SparkSession, servers: str, stream: StreamName, batch: Batch) -> Tally:
    """Of a finished batch. servers: of Kafka. Raises `TopicReplaced` and `OffsetsMissing`."""
    records = KafkaTopic(servers, batch.messages.topic).read(spark, batch.messages).count()
    dead = _inserted(tables, stream, DEAD_LETTER, DeadLetters.name, batch)
    return Tally(records, {**_BECAME[stream](tables, spark, servers, batch), "dead letters": dead})


def _rows(tables: LakeTables, spark: SparkSession, servers: str, batch: Batch) -> dict[str, int]:
    """Of ingestion: a sound message is a row."""
    return {"rows": _inserted(tables, "ingestion", ENGAGEMENT, Notification.of, batch)}


def _requests(tables: LakeTables, spark: SparkSession, servers: str, batch: Batch) -> dict[str, int]:
    """Of mutation: a sound message is a request that is tried for the first time, or has the id of one."""
    from pyspark.sql import functions as F

    version = _version(tables, "mutation", MUTATION_REQUEST, Requests.name, batch)
    log = tables.read(spark, MUTATION_REQUEST, version)
    new = log.where((F.col("batch_id") == batch.batch_id) & (F.col("attempts") == 1))
    of_batch = (F.col("topic") == batch.messages.topic) & (F.col("batch_id") == batch.batch_id)
    dead = tables.read(spark, DEAD_LETTER).where(of_batch)
    sound = _sound(tables, spark, servers, batch, mutation_format(tables.lake))
    others = sound.join(new.select(_PLACE).unionByName(dead.select(_PLACE)), _PLACE, "left_anti")
    repeated = others.join(log.select(_ID).distinct(), _ID, "left_semi").count()
    counts = Counter({row["status"]: row["count"] for row in new.groupBy("status").count().collect()})
    return {**{status: counts[status] for status in get_args(Status)}, "repeated": repeated}


def _limits(tables: LakeTables, spark: SparkSession, servers: str, batch: Batch) -> dict[str, int]:
    """Of retention: a sound message is a person who is remembered as erased, or an org without rows too old for it."""
    columns = ["org_id", "request_id", "op", "ttl_days", "who_id", "requested_at"]
    found = _sound(tables, spark, servers, batch, RETENTION_FORMAT).select(columns).toArrow().to_pylist()
    requests = [(row.pop("org_id"), RetentionRequest(**row)) for row in found]
    memory = Memory(tables, spark)
    erased = memory.erased(_version(tables, "retention", ERASURE, Erasures.name, batch))
    oldest = _oldest(tables, spark, batch, [(org, at) for org, r in requests if (at := cut_off([r]))])

    def done(org: str, request: RetentionRequest) -> bool:
        limit = cut_off([request])
        if limit is not None:
            return org not in oldest or oldest[org] >= limit
        until = erased.get((org, memory.hash(org, str(request.who_id))))
        return until is not None and until >= request.requested_at

    counts = Counter(request.op for org, request in requests if done(org, request))
    return {op: counts[op] for op in RETENTION_OPS}


def _oldest(
    tables: LakeTables, spark: SparkSession, batch: Batch, cut_offs: list[tuple[str, datetime]]
) -> dict[str, datetime]:
    """Org → when the oldest of its rows engaged that a batch of retention has left, of the days up to all cut-offs."""
    from pyspark.sql import functions as F

    if not cut_offs:
        return {}
    version = _version(tables, "retention", ENGAGEMENT, Notification.of, batch)
    of_org = F.col("org_id").isin(sorted({org for org, _ in cut_offs}))
    in_days = F.col("engagement_date") <= F.lit(max(at for _, at in cut_offs).date())
    left = tables.read(spark, ENGAGEMENT, version).where(of_org & in_days)
    rows: list[dict[str, Any]] = left.groupBy("org_id").agg(F.min("engaged_at").alias("oldest")).toArrow().to_pylist()
    return {row["org_id"]: row["oldest"] for row in rows}


_BECAME: Mapping[StreamName, Callable[[LakeTables, SparkSession, str, Batch], dict[str, int]]] = {
    "ingestion": _rows,
    "mutation": _requests,
    "retention": _limits,
}
"""Stream → what its sound messages became: what → how many."""


def _sound(tables: LakeTables, spark: SparkSession, servers: str, batch: Batch, shape: Format) -> DataFrame:
    """The messages of a batch that nothing is wrong with, as `messages.judged` gives them."""
    topic = KafkaTopic(servers, batch.messages.topic)
    return Messages(tables, spark, topic, shape).of(batch).where("reason is null")


def _inserted(tables: LakeTables, stream: StreamName, table: str, process: str, batch: Batch) -> int:
    commit = commit_of(tables, stream, table, process, batch)
    return counted(commit).inserted if commit else 0


def _version(tables: LakeTables, stream: StreamName, table: str, process: str, batch: Batch) -> int:
    """Of a table as a process of the batch left it."""
    commit = commit_of(tables, stream, table, process, batch)
    return commit.version if commit else tables.version(table)
