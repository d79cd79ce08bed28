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
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lake_assets.engagement.batch import BatchMessages, DeadLetterCommit, Stream
from lake_assets.engagement.checkpoint import ERASURES_SPREAD, Batch
from lake_assets.engagement.delta_log import batch_statement
from lake_assets.engagement.erasure import ErasureRegistry, erased_by_org, matchers_by_org, mentions
from lake_assets.engagement.grouped import RECORD_IDS, limits_by_org
from lake_assets.engagement.known_requests import (
    RECORD_TIME,
    known_rows,
    orgs_of,
    placed_records,
    requests_of,
    upgrade,
    with_ids,
)
from lake_assets.engagement.messages import TIMES, retention_format
from lake_assets.engagement.notifications import DATA_COMMIT, NotificationCommit
from lake_assets.engagement.pruning import DateSpan, merge_scope
from lake_assets.engagement.removed import IS_BACK, RemovedCommit, removed_rows
from lake_assets.engagement.requests import PERSON, SENT_AT
from lake_assets.engagement.tables import (
    DEAD_LETTER,
    ENGAGEMENT,
    ERASED,
    ERASURE,
    MUTATION_REQUEST,
    ORG,
    SENT_WHO_ID,
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
"""Columns of a mutation request that connect the ids of a person."""

_REQUESTS = pa.schema(
    [
        ("org_id", pa.string()),
        ("request_id", pa.string()),
        ("op", pa.string()),
        ("ttl_days", pa.int32()),
        ("who_id", pa.string()),
        ("requested_at", pa.timestamp("us", "UTC")),
    ]
)


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
    _removals: dict[int, tuple[DataFrame, Column] | None] = field(default_factory=dict, repr=False)

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
        from pyspark.sql import functions as F

        tables, spark = self.messages.tables, self.messages.spark
        registry = ErasureRegistry(tables, spark)
        late = registry.late(batch.reads)
        requests = self.messages.valid(batch).select(_REQUESTS.names)
        known = requests_of(tables, spark, batch, {*self.messages.counted(batch)["orgs"], *(org for org, *_ in late)})
        links = linking_requests(known).select(_LINKS.names)
        if batch.rules < ERASURES_SPREAD:
            links = links.withColumn("executed_at", F.lit(TIMES[0]).cast("timestamp"))
        limits = limits_by_org(requests, links)
        orgs = {org for org, *_ in late}.union(self._orgs_that_erase_again(registry, batch, limits))
        if not orgs:
            return limits
        hashed = registry.links(batch.reads, orgs)
        names = self._names(registry, batch, links, {(org, each) for org, *ids, _ in hashed for each in ids})
        earlier = [
            {
                "org_id": org,
                "request_id": f"{ERASED} {place}",
                "op": "merge",
                "old_id": names[org, old],
                "new_id": names[org, new],
                "executed_at": at,
                "column": PERSON,
            }
            for place, (org, old, new, at) in enumerate(hashed)
        ]
        again = [
            {"org_id": org, "request_id": ERASED, "op": "gdpr", "who_id": names[org, each], "requested_at": until}
            for org, each, until in late
        ]
        if again:  # Spark refuses an empty table
            requests = requests.unionByName(spark.createDataFrame(pa.Table.from_pylist(again, schema=_REQUESTS)))
        links = links.unionByName(spark.createDataFrame(pa.Table.from_pylist(earlier, schema=_LINKS)))
        return limits_by_org(requests, links)

    def removal(self, batch: Batch) -> tuple[DataFrame, Column] | None:
        """Return what rows of `engagement` are joined with, and which of them a batch removes; None if none."""
        if batch.batch_id not in self._removals:
            self._removals[batch.batch_id] = self._removal(batch)
        return self._removals[batch.batch_id]

    def _removal(self, batch: Batch) -> tuple[DataFrame, Column] | None:
        from pyspark.sql import functions as F

        limits = _by_org(self.of(batch))
        last_days = limits.select("of_org", "last_day").orderBy("of_org").collect()
        if not last_days:
            return None
        scope = merge_scope(DateSpan((row["of_org"],), last=row["last_day"]) for row in last_days)
        same_org = F.expr("org_id = of_org")
        is_too_old = F.expr("engaged_at < cut_off")
        who = "who_id" if batch.rules < ERASURES_SPREAD else f"coalesce({SENT_WHO_ID}, who_id)"
        is_erased = F.expr(f"least(engaged_at, {SENT_AT}) <= try_element_at(erased, {who})")
        records = self._records(batch, limits)
        if records is not None:
            limits = limits.join(F.broadcast(records), "of_org", "left")
            of_record = (
                f"{SENT_WHO_ID} IS NULL AND coalesce(array_contains({{}}, struct(engagement_id, {SENT_AT})), false)"
            )
            is_erased = F.expr(of_record.format("gone")) | (is_erased & ~F.expr(of_record.format("kept")))
        return limits, scope.condition & same_org & (is_too_old | is_erased)

    def without_content(self, batch: Batch) -> DataFrame | None:
        """Return the removed engagements whose content goes, as `RemovedCommit` takes them; None if none."""
        from pyspark.sql import functions as F

        removed = removed_rows(self.messages.tables, self.messages.spark, batch)
        removal = None if removed is None else self.removal(batch)
        if removed is None or removal is None:
            return None
        limits, condition = removal
        rows = with_ids(removed, self.messages.tables.lake).join(F.broadcast(limits), condition)
        return rows.select("org_id", "engagement_id", SENT_AT, F.lit(False).alias(IS_BACK))

    def _records(self, batch: Batch, limits: DataFrame) -> DataFrame | None:
        """Return the rows of records that are erased though their present ids are not, or the other way round.

        A record goes by the id that its request gave it, which its row does not have.

        Args:
            limits: As `_by_org` returns them.

        Returns:
            of_org string; gone and kept, arrays of (engagement_id, `SENT_AT`); each org once. None without records.
        """
        from pyspark.sql import functions as F

        from lake_assets.connections.row_checkpoint import checkpoint_rows

        tables, spark = self.messages.tables, self.messages.spark
        if batch.rules < ERASURES_SPREAD or not self.erased_people(batch):
            return None
        carrying = placed_records(tables, spark, batch)
        if carrying is None:
            return None
        engagement_id, who_id = RECORD_IDS
        key = ["org_id", "engagement_id", SENT_AT]
        of_orgs = F.col("org_id").isin(orgs_of(self.erased_ids(batch)))
        named = carrying.where(of_orgs & F.col(who_id).isNotNull())
        named = named.withColumnsRenamed({engagement_id: "engagement_id", "executed_at": SENT_AT})
        first = F.min_by(F.struct(who_id, RECORD_TIME), F.struct("partition", "offset"))
        rows = known_rows(tables, spark, batch).where(of_orgs & F.col(SENT_WHO_ID).isNull()).select(*key, "who_id")
        found = rows.join(named.groupBy(*key).agg(first.alias("record")), key).select(*key, "who_id", "record.*")
        found = found.join(F.broadcast(limits.select("of_org", "erased")), F.expr("org_id = of_org"))
        about = F.least(RECORD_TIME, SENT_AT)
        goes = _is_erased(who_id, about)
        row = F.struct("engagement_id", SENT_AT)
        lists = [F.collect_list(F.when(each, row)).alias(name) for name, each in (("gone", goes), ("kept", ~goes))]
        return checkpoint_rows(found.where(goes | _is_erased("who_id", about)).groupBy("of_org").agg(*lists))

    def _orgs_that_erase_again(self, registry: ErasureRegistry, batch: Batch, limits: DataFrame) -> set[str]:
        """Return the orgs that erase a person again. Earlier requests that linked the person's ids are hashed."""
        erased = registry.erased_hashes(batch.reads[ERASURE])
        if not erased:
            return set()
        named = limits.where("who_id is not null").select("org_id", "who_id").distinct().toArrow().to_pylist()
        named = [(row["org_id"], row["who_id"]) for row in named]
        return {org for org, who_id in named if (org, registry.hash(org, who_id)) in erased}

    def _names(
        self, registry: ErasureRegistry, batch: Batch, links: DataFrame, hashed: Collection[tuple[str, str]]
    ) -> Mapping[tuple[str, str], str]:
        """Return hashed ids, with their orgs → the id, if a row, request or message has it, or a name with the hash.

        The registry knows hashes only. So all ids of these orgs are hashed.
        """
        from pyspark.sql import functions as F

        rows = known_rows(self.messages.tables, self.messages.spark, batch)
        ids = rows.select("org_id", "who_id").union(rows.select("org_id", SENT_WHO_ID))
        ids = ids.union(self.messages.checkpointed(batch).select("org_id", "who_id"))
        ids = ids.union(links.select("org_id", "old_id")).union(links.select("org_id", "new_id"))
        of_orgs = F.col("org_id").isin(sorted({org for org, _ in hashed}))
        names = {(org, each): f"{registry.hashed_name}{each}" for org, each in hashed}
        for row in ids.where("who_id is not null").where(of_orgs).distinct().toArrow().to_pylist():
            key = row["org_id"], registry.hash(row["org_id"], row["who_id"])
            if key in names:
                names[key] = row["who_id"]
        return names


_LETTER_KEY = ("topic", "partition", "offset", "batch_id")


@dataclass(frozen=True)
class ErasureCommit:
    """Registers the erased persons under all their ids, and cut-offs of orgs. It is the first commit: from then on what
    is erased or too old stays away."""

    limits: RetentionLimits
    name: str = "erasure"
    table: str = ERASURE

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        tables = self.limits.messages.tables
        registry = ErasureRegistry(tables, self.limits.messages.spark)
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
        tables.append_few(ERASURE, rows, app_id=app_id, batch_id=batch.batch_id)


@dataclass(frozen=True)
class RequestRedaction:
    """Hashes the ids of mutation requests that name an erased person, up to the time of the erasure.

    They are in force no more, and still tell which ids are of one person. Of a record of an erased person, only its
    engagement_id stays, without which ingestion would bring that engagement again; its request stays in force.
    """

    limits: RetentionLimits
    name: str = "requests"
    table: str = MUTATION_REQUEST

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        if not self.limits.erased_people(batch):
            return
        tables, spark = self.limits.messages.tables, self.limits.messages.spark
        registry = ErasureRegistry(tables, spark)
        found = self._redactions(batch).toArrow().to_pylist()
        if not found:
            return
        rows = []
        for row in found:
            ids = registry.hash_request(row).values() if row["ids_are_erased"] else (None, None)
            rows.append((row["org_id"], row["request_id"], *ids, row["record_is_erased"]))
        redactions = spark.createDataFrame(
            rows, "of_org string, of_request string, of_old_id string, of_new_id string, record_is_erased boolean"
        )
        of_orgs = F.col("org_id").isin(sorted({row["org_id"] for row in found}))
        same_request = F.expr("org_id = of_org AND request_id = of_request")
        ids_stay = F.col("of_old_id").isNull()
        record_goes = F.col("record_is_erased") | (F.col("status") == "dead")
        redacted = {
            **{name: F.when(ids_stay, F.col(name)).otherwise(F.col(f"of_{name}")) for name in ("old_id", "new_id")},
            **{name: F.when(~record_goes, F.col(name)) for name in (RECORD_IDS[1], RECORD_TIME, "record_ids")},
            "records": F.when(F.col("status") != "dead", F.col("records")).otherwise(0),
            "status": F.when(ids_stay, F.col("status")).otherwise(ERASED),
        }
        merge = redactions.mergeInto(tables.identifier(self.table), of_orgs & same_request)
        merge = merge.whenMatched().update(redacted)
        with batch_statement(spark, app_id, batch.batch_id):
            merge.merge()

    def _redactions(self, batch: Batch) -> DataFrame:
        """Return the requests to redact, each once.

        Returns:
            `_REQUEST_IDS`, ids_are_erased boolean, record_is_erased boolean.
        """
        from pyspark.sql import functions as F

        messages, erased = self.limits.messages, F.broadcast(self.limits.erased_by_org(batch))
        known = requests_of(messages.tables, messages.spark, batch, orgs_of(self.limits.erased_ids(batch)))
        joined = known.join(erased, F.expr("org_id = of_org"))
        executed_at = F.col("executed_at")
        record_is_erased = _is_erased(RECORD_IDS[1], F.least(RECORD_TIME, "executed_at"))
        ids_are_erased = _is_erased("old_id", executed_at) | _is_erased("new_id", executed_at)
        ids_are_erased &= (F.col("column") == PERSON) & (F.col("status") != ERASED)
        columns = (ids_are_erased.alias("ids_are_erased"), record_is_erased.alias("record_is_erased"))
        found = joined.where(ids_are_erased | record_is_erased).select(*_REQUEST_IDS, *columns)
        return found.dropDuplicates(["org_id", "request_id"])


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


_REQUEST_IDS = ("org_id", "request_id", "column", "old_id", "new_id")


def _is_erased(who_column: str, time: Column) -> Column:
    """Return whether a column names an erased person, and a time is not after the erasure; false for null."""
    from pyspark.sql import functions as F

    until = F.try_element_at("erased", F.col(who_column))
    return F.coalesce(time <= until, F.lit(False))


def _mentions_erased(column: str, limits: RetentionLimits, batch: Batch) -> Column:
    """Return whether a message mentions a person whom the batch erases, by the rule of the certificate."""
    from pyspark.sql import functions as F

    people = limits.erased_people(batch)
    hashed_name = ErasureRegistry(limits.messages.tables, limits.messages.spark).hashed_name
    named = [(person["org_id"], person["who_id"]) for person in people]
    wanted = matchers_by_org((org, who_id) for org, who_id in named if not who_id.startswith(hashed_name))

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
        RemovedCommit(tables, spark, limits.without_content),
        RequestRedaction(limits),
        DeadLetterRedaction(limits),
        DeadLetterCommit(messages, partial(redact_letters, limits=limits)),
        NotificationCommit(tables, spark, tables.lake.app_name("retention")),
    )
    has_work = partial(_has_work, ErasureRegistry(tables, spark))
    return Stream("retention", tables, topic.state, commits, (ORG,), has_work, partial(upgrade, tables, spark))


def _has_work(registry: ErasureRegistry, since: Mapping[str, int]) -> bool:
    """Return whether requests that came since the last batch have connected further ids with an erased person."""
    reads = {name: registry.tables.version(name) for name in (ERASURE, MUTATION_REQUEST)}
    return reads[MUTATION_REQUEST] != since.get(MUTATION_REQUEST) and bool(registry.late(reads))


@dataclass(frozen=True)
class DeletionCommit:
    """Deletes the engagements that the batch's requests remove, of all orgs in one commit."""

    limits: RetentionLimits
    name: str = DATA_COMMIT
    table: str = ENGAGEMENT

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        tables, spark = self.limits.messages.tables, self.limits.messages.spark
        removal = self.limits.removal(batch)
        if removal is None:
            return
        limits, condition = removal
        merge = limits.mergeInto(tables.identifier(ENGAGEMENT), condition)
        with batch_statement(spark, app_id, batch.batch_id):
            merge.whenMatched().delete().merge()


def _by_org(limits: DataFrame) -> DataFrame:
    """Return one row for each org with a request.

    Args:
        limits: `RETENTION_LIMITS`.

    Returns:
        of_org string; cut_off timestamp, exclusive, null if the org has none; erased map of id → time until which its
        engagements are erased, inclusive; last_day date, the last one of rows that go, null if rows of erased ids do:
        these may be sent before they happen.
    """
    from pyspark.sql import functions as F

    is_erasure = F.col("who_id").isNotNull()
    erased_entry = F.when(is_erasure, F.struct("who_id", "until"))
    return limits.groupBy(F.col("org_id").alias("of_org")).agg(
        F.max(F.when(~is_erasure, F.col("until"))).alias("cut_off"),
        F.map_from_entries(F.collect_list(erased_entry)).alias("erased"),
        F.when(F.count("who_id") == 0, F.to_date(F.max("until"))).alias("last_day"),
    )
