"""Reconciliation of a batch with Kafka: its messages are counted in Kafka, and again in what the batch has written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from lake_assets.engagement.erasure.registry import ErasedUntil, ErasureRegistry
from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.lake import StreamName
from lake_assets.engagement.model.messages import mutation_format, retention_format
from lake_assets.engagement.model.table_schemas import (
    DEAD_LETTER,
    ENGAGEMENT,
    ERASURE,
    MUTATION_REQUEST,
    REPEATED,
    SETTLED_REQUEST,
)
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.monitoring.audits import commit_of
from lake_assets.engagement.notifications.notify import DATA_COMMIT, total_counts
from lake_assets.engagement.requests.pending import Status
from lake_assets.engagement.requests.retention_rules import RETENTION_OPS, RetentionRequest, cut_off
from lake_assets.engagement.streams.batch_messages import BatchMessages, DeadLetterCommit
from lake_assets.engagement.streams.mutation import RequestCommit
from lake_assets.engagement.streams.redaction import ErasureCommit
from lake_assets.engagement.streams.settled.settling import SettledCommit

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.engagement.model.messages import Format

_REQUEST_KEY = ["org_id", "request_id"]
_PLACE = ["partition", "offset"]
_RETENTION_COLUMNS = ("request_id", "op", "ttl_days", "who_id", "requested_at")


@dataclass(frozen=True)
class Reconciliation:
    """The messages of a batch.

    Attributes:
        records: Number of messages in Kafka.
        outcomes: Outcome → number of messages.
    """

    records: int
    outcomes: Mapping[str, int]

    @property
    def balanced(self) -> bool:
        """Whether each message has one outcome."""
        return self.records == sum(self.outcomes.values())


def reconcile(
    tables: LakeTables, spark: SparkSession, servers: str, stream: StreamName, batch: Batch
) -> Reconciliation:
    """Count the messages of a finished batch, and their outcomes.

    Args:
        servers: Kafka's `host:port`, comma-separated.

    Raises:
        MessagesLost: The topic was deleted and created again, or Kafka has removed messages of the batch.
    """
    return _BatchReconciler(tables, spark, servers, stream, batch).reconcile()


@dataclass(frozen=True)
class _BatchReconciler:
    tables: LakeTables
    spark: SparkSession
    servers: str
    stream: StreamName
    batch: Batch

    def reconcile(self) -> Reconciliation:
        topic = KafkaTopic(self.servers, self.batch.messages.topic)
        records = topic.read(self.spark, self.batch.messages).count()
        outcomes = _OUTCOMES_OF_VALID[self.stream](self)
        letters = self._inserted(DEAD_LETTER, DeadLetterCommit.name)
        outcomes["dead letters"] = letters - self._repeated_engagements()
        return Reconciliation(records, outcomes)

    def count_rows(self) -> dict[str, int]:
        """Count the outcomes of ingestion: a valid message is a row, or repeats an engagement."""
        return {"rows": self._inserted(ENGAGEMENT, DATA_COMMIT), "repeated": self._repeated_engagements()}

    def count_requests(self) -> dict[str, int]:
        """Count the outcomes of mutation: a valid message is a request in its first attempt, or repeats a request."""
        from pyspark.sql import functions as F

        is_of_batch = F.col("batch_id") == self.batch.batch_id
        is_of_topic = F.col("topic") == self.batch.messages.topic
        log = self._read(MUTATION_REQUEST, RequestCommit.name)
        first_attempts = log.where(is_of_batch).where("attempts = 1")
        dead_letters = self.tables.read(self.spark, DEAD_LETTER).where(is_of_topic & is_of_batch)
        accounted_for = first_attempts.select(_PLACE).unionByName(dead_letters.select(_PLACE))
        valid = self._valid(mutation_format(self.tables.lake))
        others = valid.join(accounted_for, _PLACE, "left_anti")
        settled = self._read(SETTLED_REQUEST, SettledCommit.name)
        known_requests = log.select(_REQUEST_KEY).unionByName(settled.select(_REQUEST_KEY)).distinct()
        repeated = others.join(known_requests, _REQUEST_KEY, "left_semi")
        rows = first_attempts.groupBy("status").count().collect()
        count_of = {row["status"]: row["count"] for row in rows}
        outcomes = {status: count_of.get(status, 0) for status in get_args(Status)}
        outcomes["repeated"] = repeated.count()
        return outcomes

    def count_retention(self) -> dict[str, int]:
        """Count the outcomes of retention: a valid message is a registered erasure, or an org without older rows."""
        messages = self._valid(retention_format(self.tables.lake)).select("org_id", *_RETENTION_COLUMNS)
        requests = []
        for row in messages.toArrow().to_pylist():
            org = row.pop("org_id")
            requests.append((org, RetentionRequest(**row)))
        registry = ErasureRegistry(self.tables, self.spark)
        erased = registry.erased_hashes(self._version(ERASURE, ErasureCommit.name))
        oldest = self._oldest_rows(requests)
        counts: Counter[str] = Counter()
        for org, request in requests:
            limit = cut_off([request])
            if limit is None:
                is_done = _is_registered(registry, erased, org, request)
            else:
                is_done = org not in oldest or oldest[org] >= limit
            counts[request.op] += is_done
        return {op: counts[op] for op in RETENTION_OPS}

    def _oldest_rows(self, requests: Sequence[tuple[str, RetentionRequest]]) -> dict[str, datetime]:
        """Return org → engaged_at of the oldest row that the batch has left, up to the day of the last cut-off."""
        from pyspark.sql import functions as F

        cut_offs: dict[str, datetime] = {}
        for org, request in requests:
            limit = cut_off([request])
            if limit is not None:
                cut_offs[org] = max(limit, cut_offs.get(org, limit))
        if not cut_offs:
            return {}
        last_day = max(cut_offs.values()).date()
        is_of_org = F.col("org_id").isin(sorted(cut_offs))
        is_in_days = F.col("engagement_date") <= F.lit(last_day)
        rows = self._read(ENGAGEMENT, DATA_COMMIT).where(is_of_org & is_in_days)
        oldest = rows.groupBy("org_id").agg(F.min("engaged_at").alias("oldest"))
        found: list[dict[str, Any]] = oldest.toArrow().to_pylist()
        return {row["org_id"]: row["oldest"] for row in found}

    def _valid(self, message_format: Format) -> DataFrame:
        """Return the valid messages of the batch."""
        topic = KafkaTopic(self.servers, self.batch.messages.topic)
        messages = BatchMessages(self.tables, self.spark, topic, message_format)
        return messages.validated(self.batch).where("reason is null")

    def _read(self, table: str, name: str) -> DataFrame:
        """Return the rows of a table as a named commit of the batch left them."""
        return self.tables.read(self.spark, table, version=self._version(table, name))

    def _inserted(self, table: str, name: str) -> int:
        commit = commit_of(self.tables, self.stream, table, name, self.batch)
        return total_counts(commit).inserted if commit else 0

    def _repeated_engagements(self) -> int:
        return self.tables.dead_letters(self.batch)[REPEATED]

    def _version(self, table: str, name: str) -> int:
        """Return the version that a named commit of the batch left of a table."""
        commit = commit_of(self.tables, self.stream, table, name, self.batch)
        return commit.version if commit else self.tables.version(table)


_OUTCOMES_OF_VALID: Mapping[StreamName, Callable[[_BatchReconciler], dict[str, int]]] = {
    "ingestion": _BatchReconciler.count_rows,
    "mutation": _BatchReconciler.count_requests,
    "retention": _BatchReconciler.count_retention,
}
"""Stream → function that counts the outcomes of its valid messages."""


def _is_registered(registry: ErasureRegistry, erased: ErasedUntil, org: str, request: RetentionRequest) -> bool:
    """Return whether the registry has the person of a gdpr request, up to the time of the request."""
    id_hash = registry.hash(org, str(request.who_id))
    until = erased.get((org, id_hash))
    return until is not None and until >= request.requested_at
