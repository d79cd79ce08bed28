"""The retention stream: one MERGE deletes engagements past their retention and those of erased persons.

No id becomes a literal of a statement, because Delta's log stores the conditions of a MERGE.

It also redacts these persons in the other tables and registers them, so that late records about them make no row (see
`erasure`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lake_assets.engagement.batch import BatchMessages, DeadLetterCommit, Stream
from lake_assets.engagement.checkpoint import Batch
from lake_assets.engagement.delta_log import batch_statement, open_table
from lake_assets.engagement.erasure import ErasureRegistry, HashedId, erased_by_org, matchers_by_org, mentions
from lake_assets.engagement.grouped import RECORD_IDS, limits_by_org
from lake_assets.engagement.known_requests import RECORD_TIME, orgs_of, requests_of, upgrade
from lake_assets.engagement.messages import retention_format
from lake_assets.engagement.notifications import DATA_COMMIT, NotificationCommit
from lake_assets.engagement.pruning import DateSpan, merge_scope
from lake_assets.engagement.requests import PERSON
from lake_assets.engagement.tables import (
    DEAD_LETTER,
    ENGAGEMENT,
    ERASURE,
    MUTATION_REQUEST,
    ORG,
    LakeTables,
    linking_requests,
)
from lake_assets.engagement.topics import KafkaTopic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_LINKS = pa.schema(
    [
        ("org_id", pa.string()),
        ("request_id", pa.string()),
        ("op", pa.string()),
        ("old_id", pa.string()),
        ("new_id", pa.string()),
        ("executed_at", pa.timestamp("us", "UTC")),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("engagement_date", pa.date32()),
        ("column", pa.string()),
    ]
)
"""Columns of a mutation request that connect the ids of a person. The time of execution does not matter here."""


@dataclass(frozen=True)
class RetentionLimits:
    """The retention limits of batches.

    They follow from the messages, and from what connects the ids of a person: the mutation requests that the lake held
    when the batch began, whether they were applied or not, and earlier erasures.

    Attributes:
        messages: Messages of the retention topic.
    """

    messages: BatchMessages
    _limits: dict[int, DataFrame] = field(default_factory=dict, repr=False)
    _people: dict[int, list[dict[str, Any]]] = field(default_factory=dict, repr=False)

    def of(self, batch: Batch) -> DataFrame:
        """Return the limits of a batch, computed at once: `RETENTION_LIMITS`."""
        if batch.batch_id not in self._limits:
            self._limits[batch.batch_id] = self._compute(batch)
        return self._limits[batch.batch_id]

    def erased_ids(self, batch: Batch) -> DataFrame:
        """Return the limits that erase an id."""
        return self.of(batch).where("who_id is not null")

    def erased_people(self, batch: Batch) -> list[dict[str, Any]]:
        """Return the rows of `erased_ids` in this process, sorted by org and id."""
        if batch.batch_id not in self._people:
            rows = self.erased_ids(batch).orderBy("org_id", "who_id")
            self._people[batch.batch_id] = rows.toArrow().to_pylist()
        return self._people[batch.batch_id]

    def erased_by_org(self, batch: Batch) -> DataFrame:
        """Return the rows of `erased_ids` as `erasure.erased_by_org` groups them."""
        return erased_by_org(self.erased_ids(batch))

    def _compute(self, batch: Batch) -> DataFrame:
        from lake_assets.connections.row_checkpoint import checkpoint_rows

        spark = self.messages.spark
        requests = self.messages.valid(batch)
        known = requests_of(self.messages.tables, spark, batch, orgs_of(requests))
        links = linking_requests(known).select(_LINKS.names)
        limits = checkpoint_rows(limits_by_org(requests, links))
        orgs = self._orgs_that_erase_again(batch, limits)
        earlier_links = self._links_of_earlier_erasures(batch, links, orgs) if orgs else []
        if not earlier_links:
            return limits
        earlier = spark.createDataFrame(pa.Table.from_pylist(earlier_links, schema=_LINKS))
        all_links = links.select(earlier.columns).unionByName(earlier)
        return checkpoint_rows(limits_by_org(requests, all_links))

    def _orgs_that_erase_again(self, batch: Batch, limits: DataFrame) -> list[str]:
        """Return the orgs that erase a person again. The requests that linked the person's ids were deleted before."""
        registry_table = open_table(self.messages.tables.location(ERASURE), batch.reads[ERASURE])
        if not registry_table.file_uris():
            return []
        named = limits.where("who_id is not null").select("org_id", "who_id").distinct()
        return sorted({org for org, _ in self._by_person(batch, named)})

    def _links_of_earlier_erasures(self, batch: Batch, links: DataFrame, orgs: Collection[str]) -> list[dict[str, str]]:
        """Return merges of the ids that were erased as one person's; empty if nobody has two ids.

        The registry knows hashes only. So all ids in rows, requests and messages of these orgs are hashed.
        """
        from pyspark.sql import functions as F

        rows = self.messages.tables.read_for(self.messages.spark, batch, ENGAGEMENT)
        ids = rows.select("org_id", "who_id")
        ids = ids.union(self.messages.checkpointed(batch).select("org_id", "who_id"))
        ids = ids.union(links.select("org_id", "old_id"))
        ids = ids.union(links.select("org_id", "new_id"))
        named = ids.where("who_id is not null").where(F.col("org_id").isin(list(orgs))).distinct()
        merges = []
        for (org, _), same_person in self._by_person(batch, named).items():
            for old_id, new_id in pairwise(same_person):
                merges.append(_merge_request(org, old_id, new_id))
        return merges

    def _by_person(self, batch: Batch, ids: DataFrame) -> Mapping[HashedId, list[str]]:
        """Group those of some ids that were erased before by person.

        Args:
            ids: org_id string, who_id string, each once.
        """
        registry = ErasureRegistry(self.messages.tables, self.messages.spark)
        rows = ids.orderBy("org_id", "who_id").toArrow().to_pylist()
        pairs = [(row["org_id"], row["who_id"]) for row in rows]
        return registry.by_person(batch.reads[ERASURE], pairs)


def _merge_request(org: str, old_id: str, new_id: str) -> dict[str, str]:
    return {
        "org_id": org,
        "request_id": "erased",
        "op": "merge",
        "old_id": old_id,
        "new_id": new_id,
        "column": PERSON,
    }


_LETTER_KEY = ("topic", "partition", "offset", "batch_id")
_ERASURE = pa.schema(
    [
        ("org_id", pa.string()),
        ("id_hash", pa.string()),
        ("person_hash", pa.string()),
        ("key_id", pa.string()),
        ("erased_until", pa.timestamp("us", "UTC")),
        ("batch_id", pa.int64()),
    ]
)


@dataclass(frozen=True)
class ErasureCommit:
    """Registers the erased persons under all their ids, and cut-offs of orgs. It is the first commit: from then on what
    is erased or too old stays away."""

    limits: RetentionLimits
    name: str = "erasure"
    table: str = ERASURE

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        tables, spark = self.limits.messages.tables, self.limits.messages.spark
        registry = ErasureRegistry(tables, spark)
        rows = []
        for person in self.limits.erased_people(batch):
            row = {
                "org_id": person["org_id"],
                "id_hash": registry.hash(person["org_id"], person["who_id"]),
                "person_hash": registry.hash(person["org_id"], person["person"]),
                "key_id": tables.keyed.key_id,
                "erased_until": person["until"],
                "batch_id": batch.batch_id,
            }
            rows.append(row)
        for limit in self.limits.of(batch).where("who_id is null").toArrow().to_pylist():
            until = limit["until"] - timedelta(microseconds=1)
            rows.append({"org_id": limit["org_id"], "erased_until": until, "batch_id": batch.batch_id})
        if not rows:
            return
        erasures = spark.createDataFrame(pa.Table.from_pylist(rows, schema=_ERASURE))
        tables.append(ERASURE, erasures, app_id=app_id, batch_id=batch.batch_id)


@dataclass(frozen=True)
class RequestRedaction:
    """Deletes mutation requests that name an erased person, or carry a record of one, up to the time of the erasure.

    If a request put the record of another person in place, the engagement_id of the record stays, without which
    ingestion would bring that engagement again.
    """

    limits: RetentionLimits
    name: str = "requests"
    table: str = MUTATION_REQUEST

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        from lake_assets.connections.row_checkpoint import checkpoint_rows

        if not self.limits.erased_people(batch):
            return
        redactions = checkpoint_rows(self._redactions(batch))
        if redactions.isEmpty():
            return
        identifier = self.limits.messages.tables.identifier(self.table)
        same_request = F.expr("org_id = of_org AND request_id = of_request")
        of_orgs = F.col("org_id").isin(orgs_of(redactions.select(F.col("of_org").alias("org_id"))))
        is_in_place = F.expr("status <> 'dead' AND kept_record IS NOT NULL")
        redacted = dict.fromkeys(("old_id", "new_id", RECORD_IDS[1], RECORD_TIME), F.lit(None))
        merge = redactions.mergeInto(identifier, of_orgs & same_request)
        merge = merge.whenMatched(is_in_place).update(redacted)
        merge = merge.whenMatched().delete()
        with batch_statement(self.limits.messages.spark, app_id, batch.batch_id):
            merge.merge()

    def _redactions(self, batch: Batch) -> DataFrame:
        """Return the requests to redact.

        Returns:
            of_org string, of_request string, kept_record string: the engagement_id of another person's record; null if
            nothing stays.
        """
        from pyspark.sql import functions as F

        messages, erased = self.limits.messages, F.broadcast(self.limits.erased_by_org(batch))
        known = requests_of(messages.tables, messages.spark, batch, orgs_of(self.limits.erased_ids(batch)))
        joined = known.join(erased, F.expr("org_id = of_org"))
        record_engagement_id, record_who_id = RECORD_IDS
        record_is_erased = _is_erased(record_who_id, RECORD_TIME)
        is_of_person = F.col("column") == PERSON
        ids_are_erased = _is_erased("old_id", "executed_at") | _is_erased("new_id", "executed_at")
        names_erased = (is_of_person & ids_are_erased) | record_is_erased
        kept_record = F.when(~record_is_erased, F.col(record_engagement_id))
        columns = ("of_org", F.col("request_id").alias("of_request"), kept_record.alias("kept_record"))
        return joined.where(names_erased).select(*columns).distinct()


@dataclass(frozen=True)
class DeadLetterRedaction:
    """Removes the message of each dead letter that contains an erased id as a word; place and reason stay.

    The message decides its org. If it names none, it may be of any org. The batch's own dead letters are written later,
    already redacted (`redact_letters`).
    """

    limits: RetentionLimits
    name: str = "redaction"
    table: str = DEAD_LETTER

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        from lake_assets.connections.row_checkpoint import checkpoint_rows

        if not self.limits.erased_people(batch):
            return
        tables, spark = self.limits.messages.tables, self.limits.messages.spark
        letters = tables.read_for(spark, batch, DEAD_LETTER)
        to_redact = letters.where(_mentions_erased("message", self.limits, batch))
        key = F.struct(*_LETTER_KEY)
        keys = checkpoint_rows(to_redact.select(key.alias("letter")).distinct())
        merge = keys.mergeInto(tables.identifier(DEAD_LETTER), key == F.col("letter"))
        merge = merge.whenMatched().update({"message": F.lit(None)})
        with batch_statement(spark, app_id, batch.batch_id):
            merge.merge()


def redact_letters(letters: DataFrame, batch: Batch, limits: RetentionLimits) -> DataFrame:
    """Return dead letters with a null message where it mentions a person whom the batch erases."""
    from pyspark.sql import functions as F

    if not limits.erased_people(batch):
        return letters
    mentions_erased = _mentions_erased("message", limits, batch)
    return letters.withColumn("message", F.when(~mentions_erased, F.col("message")))


def _is_erased(who_column: str, time_column: str) -> Column:
    """Return whether a column names an erased person, and a time is not after the erasure; false for null."""
    from pyspark.sql import functions as F

    until = F.try_element_at("erased", F.col(who_column))
    return F.coalesce(F.col(time_column) <= until, F.lit(False))


def _mentions_erased(column: str, limits: RetentionLimits, batch: Batch) -> Column:
    """Return whether a message mentions a person whom the batch erases, by the rule of the certificate."""
    from pyspark.sql import functions as F

    people = limits.erased_people(batch)
    wanted = matchers_by_org((person["org_id"], person["who_id"]) for person in people)

    def mentions_erased(message: str | None) -> bool:
        return mentions(message, wanted)

    return F.udf(mentions_erased, "boolean", useArrow=False)(F.col(column))


def retention(tables: LakeTables, spark: SparkSession, servers: str) -> Stream:
    """Return the stream.

    Args:
        servers: Kafka's `host:port`, comma-separated.
    """
    topic = KafkaTopic(servers, tables.lake.topic("retention"))
    messages = BatchMessages(tables, spark, topic, retention_format(tables.lake))
    limits = RetentionLimits(messages)
    commits = (
        ErasureCommit(limits),
        DeletionCommit(limits),
        RequestRedaction(limits),
        DeadLetterRedaction(limits),
        DeadLetterCommit(messages, partial(redact_letters, limits=limits)),
        NotificationCommit(tables, spark, tables.lake.app_name("retention")),
    )
    return Stream("retention", tables, topic.state, commits, reads=(ORG,), upgrade=partial(upgrade, tables, spark))


@dataclass(frozen=True)
class DeletionCommit:
    """Deletes the engagements that the batch's requests remove, of all orgs in one commit."""

    limits: RetentionLimits
    name: str = DATA_COMMIT
    table: str = ENGAGEMENT

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        tables, spark = self.limits.messages.tables, self.limits.messages.spark
        limits = _by_org(self.limits.of(batch))
        last_days = limits.select("of_org", F.to_date("until").alias("last_day")).orderBy("of_org").collect()
        if not last_days:
            return
        scope = merge_scope(DateSpan((row["of_org"],), last=row["last_day"]) for row in last_days)
        same_org = F.expr("org_id = of_org")
        is_too_old = F.expr("engaged_at < cut_off")
        is_erased = F.expr("engaged_at <= try_element_at(erased, who_id)")
        condition = scope.condition & same_org & (is_too_old | is_erased)
        merge = limits.mergeInto(tables.identifier(ENGAGEMENT), condition)
        with batch_statement(spark, app_id, batch.batch_id):
            merge.whenMatched().delete().merge()


def _by_org(limits: DataFrame) -> DataFrame:
    """Return one row for each org with a request.

    Args:
        limits: `RETENTION_LIMITS`.

    Returns:
        of_org string; cut_off timestamp, exclusive, null if the org has none; erased map of id → time until which its
        engagements are erased, inclusive; until timestamp, the latest of all these times.
    """
    from pyspark.sql import functions as F

    is_erasure = F.col("who_id").isNotNull()
    erased_entry = F.when(is_erasure, F.struct("who_id", "until"))
    return limits.groupBy(F.col("org_id").alias("of_org")).agg(
        F.max(F.when(~is_erasure, F.col("until"))).alias("cut_off"),
        F.map_from_entries(F.collect_list(erased_entry)).alias("erased"),
        F.max("until").alias("until"),
    )
