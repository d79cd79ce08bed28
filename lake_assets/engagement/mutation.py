"""The mutation stream: requests to convert, merge and delete ids, collapsed to one map and applied in one MERGE.

A request acts on rows that are there when it is executed: that engaged or were sent until then. So the map has an id
for each span of time, also for the day that a request names. Late arrivals follow the requests of their id in the same
MERGE (see `known_requests`). Its source is each row that changes, with its final ids: columns of ids are independent,
but any of them deletes the row.

A request is in force from when it is received, whether it meets a row then or later, or never. What a batch does
follows from its intent: it is computed once in a process, and again by another one that finishes the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from lake_assets.engagement.batch import IS_VALID, BatchMessages, DeadLetterCommit, Stream, batch_id_column
from lake_assets.engagement.checkpoint import DATES_BIND, REMOVED_COUNT, Batch
from lake_assets.engagement.delta_log import batch_statement
from lake_assets.engagement.erasure import ErasureRegistry
from lake_assets.engagement.grouped import RECORD_IDS, RECORD_PLACE, aliases_by_org, changed_aliases_by_org, with_part
from lake_assets.engagement.known_requests import (
    RECORD_TIME,
    Former,
    final_records,
    former,
    ids_as_sent,
    ingested_versions,
    inserted_rows,
    known_rows,
    orgs_of,
    requests_of,
    there_within,
    upgrade,
    was_asked,
    with_ids,
    with_record_ids,
)
from lake_assets.engagement.messages import RECORD, mutation_format
from lake_assets.engagement.notifications import DATA_COMMIT, NotificationCommit
from lake_assets.engagement.pruning import DateSpan, MergeScope, day_ranges, merge_scope, spans_of_days
from lake_assets.engagement.removed import IS_BACK, WAS_REMOVED, RemovedCommit, removed_rows
from lake_assets.engagement.requests import PERSON, SENT_AT
from lake_assets.engagement.tables import (
    ENGAGEMENT,
    ERASED,
    ERASURE,
    MUTATION_REQUEST,
    MUTATION_REQUEST_COLUMNS,
    ORG,
    LakeTables,
    engagement_columns,
    sent,
)
from lake_assets.engagement.topics import KafkaTopic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, MergeIntoWriter, SparkSession

    from lake_assets.engagement.lake import EngagementLake

_REQUEST_KEY = ["org_id", "request_id"]


def mutation(tables: LakeTables, spark: SparkSession, servers: str) -> Stream:
    """Return the stream.

    Args:
        servers: Kafka's `host:port`, comma-separated.
    """
    topic = KafkaTopic(servers, tables.lake.topic("mutation"))
    messages = MutationMessages(tables, spark, topic, mutation_format(tables.lake))
    plans = Plans(messages)
    commits = (
        RequestCommit(plans),
        MutationCommit(plans),
        RemovedCommit(tables, spark, plans.removed, keeps_content=True),
        DeadLetterCommit(messages),
        NotificationCommit(tables, spark, tables.lake.app_name("mutation")),
    )
    has_work = partial(_has_work, tables)
    return Stream("mutation", tables, topic.state, commits, (ORG, ERASURE), has_work, partial(upgrade, tables, spark))


@dataclass(frozen=True)
class MutationMessages(BatchMessages):
    """The messages of a batch of mutation."""

    def aggregates(self) -> Mapping[str, Column]:
        """Return those of every stream, and records: the number of messages that carry one."""
        from pyspark.sql import functions as F

        return {**super().aggregates(), "records": F.count("insert_record")}

    def accepted(self, messages: DataFrame, batch: Batch) -> DataFrame:
        """Return the messages; those whose own ids are of an erased person are invalid.

        A record of an erased person is reduced to its engagement_id. Its request is in force.
        """
        from pyspark.sql import functions as F

        if batch.rules < REMOVED_COUNT:
            return super().accepted(messages, batch)
        registry = ErasureRegistry(self.tables, self.spark)
        of_record = f"{RECORD}.{PERSON}"
        people = {who: time for who, time in self.format.people.items() if who != of_record}
        name = F.col(f"{RECORD}.engagement_id").alias(self.format.key("engagement_id"))
        reduced = {"insert_record": F.to_json(F.struct(name))}
        records = ({of_record: self.format.people[of_record]}, reduced)
        return registry.reject_erased(messages, people, batch, also=[records])


@dataclass(frozen=True)
class Plan:
    """What a batch does.

    Attributes:
        requests: The rows that it appends to `mutation_request`.
        changes: The rows that change, as `_merge` takes them; None if none do.
        placed: The records of the batch and the rows that come back, as `RemovedCommit` takes them; None if none do.
    """

    requests: DataFrame
    changes: DataFrame | None
    placed: DataFrame | None


@dataclass(frozen=True)
class Plans:
    """What batches do, computed once for all commits of a batch.

    Attributes:
        messages: Messages of the topic of mutation.
    """

    messages: BatchMessages
    _kept: list[tuple[Batch, Plan]] = field(default_factory=list, init=False, repr=False, compare=False)

    def of(self, batch: Batch, *, keep: bool) -> Plan:
        """Return the plan of a batch: the one that was kept, if it is of this batch.

        Args:
            keep: Whether the next commit of the batch gets the same. A commit that is repeated computes it again.
        """
        kept = [plan for known, plan in self._kept if known == batch]
        plan = kept[0] if kept else self._plan(batch)
        self._kept[:] = [(batch, plan)] if keep else []
        return plan

    def _plan(self, batch: Batch) -> Plan:
        from pyspark.sql import functions as F

        from lake_assets.connections.row_checkpoint import checkpoint_and_aggregate, checkpoint_rows

        tables, spark = self.messages.tables, self.messages.spark
        lake = tables.lake
        valid = self.messages.checkpointed(batch).where(IS_VALID)
        counted = self.messages.counted(batch)
        orgs, carry_records = sorted(counted["orgs"]), counted["records"] > 0
        new = checkpoint_rows(with_record_ids(self._new(valid, batch, orgs), lake, carry_records=carry_records))
        requests = new.where("reason is null").drop("reason")
        columns = ", ".join(f"`{name}` {kind}" for name, kind in MUTATION_REQUEST_COLUMNS.items())
        has_invalid = not self.messages.all_valid(batch)
        erased = self._erased(new.where(f"reason = '{ERASED}'"), batch) if has_invalid else []
        hashed = spark.createDataFrame(erased, columns) if erased else None
        carrying = requests
        if hashed is not None and batch.rules >= REMOVED_COUNT:  # records of others than the erased person
            named = new.where("insert_record is not null").drop("old_id", "new_id", "reason")
            of_erased = named.join(hashed.select(*_REQUEST_KEY, "old_id", "new_id"), _REQUEST_KEY)
            carrying = checkpoint_rows(requests.unionByName(of_erased.select(*requests.columns)))
        found = former(tables, spark, batch, carrying, orgs)
        records = final_records(carrying, found, lake, carry_records=carry_records)
        new_ids = _arrived_ids(spark, found.arrivals)
        if found.deleted is not None:  # as if they came now
            new_ids = new_ids.union(ids_as_sent(found.deleted, lake).select("org_id", "column", "id")).distinct()
        arrived = with_part(new_ids, found.parts, "id")
        asked = with_part(requests, found.parts, "old_id")
        spans = changed_aliases_by_org(found.applied, asked, arrived)
        rows = self._rows(batch, requests, spans, found)
        if records is not None:
            rows = rows.join(F.broadcast(records[1]), ["org_id", "engagement_id", SENT_AT], "left_anti")
        changes = _changes(rows, spans, aliases_by_org(asked), lake)
        if records is not None:
            inserted, moved = records
            changes = changes.unionByName(self._moved(batch, moved))
            stored = checkpoint_rows(self._stored(batch, inserted))
            replaced = stored.where("not is_later").drop("is_later")
            inserted = inserted.join(stored.where("is_later"), ["org_id", "engagement_id"], "left_anti")
            changes = changes.join(replaced, ["org_id", "engagement_id"], "left_anti")
            replaced = replaced.where(f"not {WAS_REMOVED}").drop(WAS_REMOVED)
            changes = changes.unionByName(replaced, allowMissingColumns=True)
            cut_offs = ErasureRegistry(tables, spark).cut_offs(batch.reads[ERASURE])
            if cut_offs is not None:
                is_expired = F.expr("org_id = of_org AND engaged_at <= expired_until")
                of_org = inserted.join(F.broadcast(cut_offs), is_expired, "left")
                kept = {name: F.when(F.col("of_org").isNull(), F.col(name)) for name in ("who_id", "engaged_at")}
                inserted = of_org.withColumns(kept).select(*inserted.columns)
            changes = changes.unionByName(inserted_rows(inserted, lake), allowMissingColumns=True)
        counts = [F.count(F.lit(1)).alias("changes"), F.count("row").alias("placed")]
        changes, of_changes = checkpoint_and_aggregate(changes, counts)
        placed = changes.where("row is not null").select("row.*", (~F.col("gone")).alias(IS_BACK))
        met = with_part(_ids_of(changes, lake), found.parts, "id").select("component").distinct()
        stored = _stored(asked, found.applied, F.broadcast(met), batch, lake)
        if hashed is not None:
            stored = stored.unionByName(hashed)
        return Plan(stored, changes if of_changes["changes"] else None, placed if of_changes["placed"] else None)

    def removed(self, batch: Batch) -> DataFrame | None:
        """Return the records of a batch that have no row, and the removed engagements that have one again."""
        placed = self.of(batch, keep=False).placed
        if placed is None:
            return None
        gone = placed.where(f"not {IS_BACK}")
        removed = removed_rows(self.messages.tables, self.messages.spark, batch)
        if removed is None:
            return gone
        key = ["org_id", "engagement_id"]
        return gone.unionByName(placed.where(IS_BACK).join(removed.select(key), key, "left_semi"))

    def _erased(self, requests: DataFrame, batch: Batch) -> list[list[Any]]:
        """Return requests that name an erased person as rows of `mutation_request`: hashed, and not in force.

        Retention erases also the ids that they connect with this person.
        """
        registry = ErasureRegistry(self.messages.tables, self.messages.spark)
        values = {"attempts": 1, "status": ERASED, "batch_id": batch.batch_id}
        found = requests.drop("insert_record", "record_date").toArrow().to_pylist()
        if batch.rules < REMOVED_COUNT:
            found = [{**row, RECORD_TIME: None, **dict.fromkeys(RECORD_PLACE)} for row in found]
        rows = []
        for row in found:
            ids = row["record_ids"] and dict(row["record_ids"])
            records = int(row[RECORD_IDS[0]] is not None)
            rows.append({**row, **registry.hash_request(row), "record_ids": ids, "records": records, **values})
        return [[row.get(name) for name in MUTATION_REQUEST_COLUMNS] for row in rows]

    def _new(self, valid: DataFrame, batch: Batch, orgs: Iterable[str]) -> DataFrame:
        """Return the requests of the batch that are not known, each id once, the one at the first place.

        Args:
            valid: The messages that are valid by themselves. Their reason is `ERASED` if they name an erased person.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        tables = self.messages.tables
        by_place = Window.partitionBy(_REQUEST_KEY).orderBy("partition", "offset")
        numbered = valid.withColumn("nth", F.row_number().over(by_place))
        known = requests_of(tables, self.messages.spark, batch, orgs).select(_REQUEST_KEY).distinct()
        rows = numbered.where("nth = 1").join(known, _REQUEST_KEY, "left_anti")
        rows = rows.withColumn("column", F.coalesce("column", F.lit(tables.lake.ids[0])))
        if batch.rules < DATES_BIND:
            rows = rows.withColumns({"column": F.lit(PERSON), "engagement_date": F.lit(None).cast("date")})
        names = [name for name in MUTATION_REQUEST_COLUMNS if name in rows.columns]
        return rows.select(*names, "insert_record", "reason")

    def _rows(self, batch: Batch, requests: DataFrame, spans: DataFrame, found: Former) -> DataFrame:
        """Return the rows that may change, as the batch found them, with `_IS_NEW` and all ids.

        Args:
            spans: As `changed_aliases_by_org` returns them.
        """
        from pyspark.sql import functions as F

        tables = self.messages.tables
        read = _spans_of(requests)
        if found.arrivals is not None:
            led = spans.select("org_id", "column", F.col("old_id").alias("id")).distinct()
            moved = found.arrivals.join(led, led.columns, "left_semi")
            read += spans_of_days(moved.withColumn("engagement_date", F.to_date("engaged_at")))
        scope = merge_scope(read)
        rows = tables.read_for(self.messages.spark, batch, ENGAGEMENT).where(scope.condition)
        rows = with_ids(rows, tables.lake).withColumns({_IS_NEW: F.lit(False), WAS_REMOVED: F.lit(False)})
        if found.arrivals is not None and found.may_be_late:
            key = ["org_id", "engagement_id", "engaged_at"]
            new = found.arrivals.select(*key, F.lit(True).alias("came")).distinct()
            rows = rows.join(new, key, "left").withColumn(_IS_NEW, F.col("came").isNotNull()).drop("came")
        if found.deleted is not None:
            deleted = found.deleted.withColumns({_IS_NEW: F.lit(False), WAS_REMOVED: F.lit(True)})
            rows = rows.unionByName(deleted.select(*rows.columns))
        return rows

    def _moved(self, batch: Batch, records: DataFrame) -> DataFrame:
        """Return the rows of records of former batches that change, as `_changes` does.

        Args:
            records: As `final_records` returns them.
        """
        from pyspark.sql import functions as F

        tables = self.messages.tables
        scope = merge_scope(spans_of_days(records))
        rows = known_rows(tables, self.messages.spark, batch).where(scope.condition)
        ends = records.withColumnRenamed("who_id", "end").drop("request_id", "engagement_date")
        found = rows.where(sent(PERSON) + " is null").join(F.broadcast(ends), ["org_id", "engagement_id", SENT_AT])
        new_ids = {f"new_{PERSON}": F.col("end")}
        for column in tables.lake.ids:
            if column != PERSON:
                is_told = F.coalesce(F.map_contains_key("ids", column), F.lit(False))
                new_ids[f"new_{column}"] = F.when(is_told, F.col("ids")[column]).otherwise(F.col(column))
        moved = F.col("end").isNull()
        for column in tables.lake.ids:
            moved |= ~new_ids[f"new_{column}"].eqNullSafe(F.col(column))
        changed = found.withColumns({"moved": moved, "gone": F.col("end").isNull(), **new_ids})
        return _changed(changed, tables.lake)

    def _stored(self, batch: Batch, records: DataFrame) -> DataFrame:
        """Return the rows that records replace, as changes that delete them, also removed ones, with `WAS_REMOVED` and
        is_later: the row was sent later."""
        from pyspark.sql import functions as F

        tables = self.messages.tables
        lake = tables.lake
        rows = known_rows(tables, self.messages.spark, batch).where(F.col("org_id").isin(orgs_of(records)))
        records = records.select("org_id", "engagement_id", F.col(SENT_AT).alias("asked_at"))
        found = rows.join(F.broadcast(records), ["org_id", "engagement_id"])
        is_later = F.coalesce(F.col(SENT_AT) > F.col("asked_at"), F.lit(False)).alias("is_later")
        found = found.select(*_key(lake), "engagement_date", F.lit(True).alias("gone"), is_later, WAS_REMOVED)
        return found.dropDuplicates(_key(lake))


@dataclass(frozen=True)
class RequestCommit:
    """Appends the requests of the batch that are new, and a copy of each earlier one that has met its first row."""

    plans: Plans
    name: str = "request"
    table: str = MUTATION_REQUEST

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        rows = self.plans.of(batch, keep=True).requests
        self.plans.messages.tables.append(MUTATION_REQUEST, rows, app_id=app_id, batch_id=batch.batch_id)


@dataclass(frozen=True)
class MutationCommit:
    """Applies the collapsed map of the batch's requests: the rows of an id go to its final id at once.

    Late rows go where they would be if they had been there before.
    """

    plans: Plans
    name: str = DATA_COMMIT
    table: str = ENGAGEMENT

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        tables, changes = self.plans.messages.tables, self.plans.of(batch, keep=True).changes
        if changes is None:
            return
        scope = merge_scope(spans_of_days(changes))
        merge = _merge(changes, tables.identifier(ENGAGEMENT), scope, tables.lake)
        with batch_statement(self.plans.messages.spark, app_id, batch.batch_id):
            merge.merge()


def _ids_of(changes: DataFrame, lake: EngagementLake) -> DataFrame:
    """Return the ids by which requests act on rows that change: org_id string, column string, id string."""
    from pyspark.sql import functions as F

    ids = [F.struct(F.lit(column).alias("column"), F.coalesce(sent(column), column).alias("id")) for column in lake.ids]
    each = changes.select("org_id", F.explode(F.array(*ids)).alias("of_id"))
    return each.select("org_id", "of_id.*").where("id is not null").distinct()


def _stored(asked: DataFrame, known: DataFrame, met: DataFrame, batch: Batch, lake: EngagementLake) -> DataFrame:
    """Return the rows that a batch appends to `mutation_request`: `MUTATION_REQUEST_COLUMNS`.

    Args:
        asked: The new requests of the batch, with the component of each.
        known: Requests of former batches, with the component of each.
        met: component long, once: those of which rows change.
    """
    from pyspark.sql import functions as F

    is_met = met.withColumn("is_met", F.lit(True))
    new = asked.join(is_met, "component", "left")
    has_row = F.col("is_met").isNotNull() | F.col("insert_record").isNotNull()
    has_record = F.col(RECORD_IDS[0]).isNotNull().cast("int")
    status = F.when(has_row, "applied").otherwise("parked")
    new = new.withColumns({"attempts": F.lit(1), "status": status, "records": has_record})
    told = known.where("status = 'met'")
    later = known.where("status = 'parked'").join(met, "component", "left_semi").join(told, _REQUEST_KEY, "left_anti")
    rows = new.unionByName(later.withColumn("status", F.lit("met")), allowMissingColumns=True)
    return rows.withColumn("batch_id", batch_id_column(batch)).select(*MUTATION_REQUEST_COLUMNS).repartition("org_id")


_IS_NEW = "is_new"
"""Whether a row came since the last batch of mutation; only told if some of these may have no sent id."""


def _key(lake: EngagementLake) -> list[str]:
    """Return the columns that tell rows apart whose ids change."""
    return ["org_id", "engagement_id", "engaged_at", *lake.ids, *(sent(column) for column in lake.ids)]


def _changes(rows: DataFrame, spans: DataFrame, present_spans: DataFrame, lake: EngagementLake) -> DataFrame:
    """Return the rows that change.

    Args:
        rows: Of `engagement`, with `_IS_NEW` and `WAS_REMOVED`.
        spans: As `changed_aliases_by_org` returns them.
        present_spans: As `aliases_by_org` returns them. Rows without a sent id follow them.

    Returns:
        As `_changed` returns them.
    """
    from pyspark.sql import functions as F

    key = ["of_org", "of_id"]
    collected = F.sort_array(F.collect_list(F.struct("after", "until", "new_id", "day")))
    named, gone, moved, new_ids = F.lit(False), F.lit(False), F.lit(False), {}
    for column in lake.ids:
        of_column = [
            found.where(F.col("column") == column)
            .groupBy(F.col("org_id").alias("of_org"), F.col("old_id").alias("of_id"))
            .agg(collected.alias(f"{name}_{column}"))
            for name, found in (("spans", spans), ("present", present_spans))
        ]
        both = of_column[0].join(of_column[1], key, "full_outer")
        same_id = F.col("org_id").eqNullSafe(F.col("of_org")) & (F.coalesce(sent(column), column) == F.col("of_id"))
        rows = rows.join(both, same_id, "left").drop(*key)
        is_as_sent = F.col(sent(column)).isNotNull() | F.col(_IS_NEW)
        of_id = F.when(is_as_sent, F.col(f"spans_{column}")).otherwise(F.col(f"present_{column}"))
        of_day = F.filter(of_id, lambda span: span["day"] == F.col("engagement_date"))
        of_row = F.when(F.size(of_day) > 0, of_day).otherwise(F.filter(of_id, lambda span: span["day"].isNull()))
        of_row = F.filter(of_row, lambda span: there_within(span["after"], span["until"]))
        span = F.get(of_row, F.lit(0))
        stays = F.when(F.col(WAS_REMOVED), F.coalesce(sent(column), column)).otherwise(F.col(column))
        new_id = F.when(span.isNotNull(), span["new_id"]).otherwise(stays)
        named |= F.col(f"spans_{column}").isNotNull() | F.col(f"present_{column}").isNotNull()
        gone |= span.isNotNull() & new_id.isNull()
        moved |= ~new_id.eqNullSafe(F.col(column))
        new_ids[f"new_{column}"] = new_id
    return _changed(rows.where(named).withColumns({"gone": gone, "moved": moved, **new_ids}), lake)


def _changed(rows: DataFrame, lake: EngagementLake) -> DataFrame:
    """Return the rows that change.

    Args:
        rows: Of `engagement`, with `WAS_REMOVED`, moved, gone, and the ids that they get as `new_<column>`.

    Returns:
        `_key`, engagement_date date, gone boolean, for each id column `new_<column>`, and row struct of
        `engagement_columns`, of those that come back; each row once.
    """
    from pyspark.sql import functions as F

    changed = rows.where(f"case when {WAS_REMOVED} then not gone else gone or moved end")
    new_ids = {column: f"new_{column}" for column in lake.ids}
    row = F.struct(*(F.col(new_ids.get(name, name)).alias(name) for name in engagement_columns(lake)))
    back = F.when(F.col(WAS_REMOVED), row).alias("row")
    found = changed.select(*_key(lake), "engagement_date", "gone", *new_ids.values(), back)
    return found.dropDuplicates(_key(lake))


def _merge(changes: DataFrame, table: str, scope: MergeScope, lake: EngagementLake) -> MergeIntoWriter:
    """Return the MERGE that moves and deletes rows, and puts records in place.

    Args:
        changes: As `_changes` returns them, and the records as `inserted_rows` does.
        table: Name of the engagement table in SQL.
    """
    from pyspark.sql import functions as F

    key = _key(lake)
    source = changes.drop("engagement_date").withColumnsRenamed({name: f"of_{name}" for name in key})
    same_row = scope.condition
    for name in ("org_id", "engagement_id", "engaged_at"):
        same_row &= F.col(name) == F.col(f"of_{name}")
    for name in key[3:]:
        same_row &= F.col(name).eqNullSafe(F.col(f"of_{name}"))
    merge = source.mergeInto(table, same_row)
    merge = merge.whenMatched(F.col("gone")).delete()
    merge = merge.whenMatched().update({column: F.col(f"new_{column}") for column in lake.ids})
    values = {name: F.col(f"row.{name}") for name in engagement_columns(lake)}
    return merge.whenNotMatched(F.col("row").isNotNull() & ~F.col("gone")).insert(values)


def _spans_of(requests: DataFrame) -> list[DateSpan]:
    """Return the spans of rows on which requests may act: on the days that they name, else on any, because rows may be
    sent before they happen."""
    from pyspark.sql import functions as F

    is_undated = F.count_if(F.col("engagement_date").isNull()).alias("undated")
    by_org = requests.groupBy("org_id").agg(is_undated, F.collect_set("engagement_date").alias("days"))
    found = list[DateSpan]()
    for row in by_org.collect():
        of_org = [()] if row["undated"] else day_ranges(row["days"], 0)
        found += [DateSpan((row["org_id"],), *days) for days in of_org]
    return found


def _arrived_ids(spark: SparkSession, arrivals: DataFrame | None) -> DataFrame:
    """Return the ids with new rows: org_id string, column string, id string."""
    if arrivals is None:
        return spark.createDataFrame([], "org_id string, column string, id string")
    return arrivals.select("org_id", "column", "id").distinct()


def _has_work(tables: LakeTables, since: Mapping[str, int]) -> bool:
    """Return whether new rows may be late."""
    return bool(ingested_versions(tables, since.get(ENGAGEMENT))) and was_asked(tables)
