"""What batches know of requests: those that are in force, their records, and the rows that come after them.

The table `mutation_request` is partitioned by org, so a batch reads the requests of its own orgs. A request is in force
from when it is received: also on rows that come later.

A record replaces the rows of its engagement. If ingestion brings the engagement later, that message becomes a dead
letter: a batch of ingestion is either before the one that put the record in place, or reads its request.

Late arrivals are among the rows that the table got between two batches of mutation. So they follow from the intent:
the version that the last batch left, the version that this batch read, the requests known by then, and those that it
brings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.engagement.checkpoint import Batch
from lake_assets.engagement.delta_log import file_system, is_table, open_table
from lake_assets.engagement.grouped import (
    RECORD_IDS,
    RECORD_PLACE,
    REPLAYED,
    parts_by_org,
    place_records_by_org,
    with_part,
)
from lake_assets.engagement.lake import STREAMS, EngagementLake
from lake_assets.engagement.messages import RECORD, record_format, with_typed_record
from lake_assets.engagement.notifications import DATA_COMMIT
from lake_assets.engagement.removed import WAS_REMOVED, removed_rows
from lake_assets.engagement.requests import PERSON, SENT_AT
from lake_assets.engagement.tables import (
    ENGAGEMENT,
    IN_FORCE,
    IS_ONE_TABLE,
    MUTATION_REQUEST,
    MUTATION_REQUEST_COLUMNS,
    MUTATION_REQUEST_PROPERTIES,
    REMOVED,
    REPLACED,
    SETTLED_REQUEST,
    LakeTables,
    check_fields,
    create_statement,
    row_columns,
    sent,
    spark_tables,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def scoped(requests: DataFrame) -> DataFrame:
    """Return requests, of any version of their table, with all columns, and the id column that each names."""
    from pyspark.sql import functions as F

    missing = {name: kind for name, kind in MUTATION_REQUEST_COLUMNS.items() if name not in requests.columns}
    found = requests.select("*", *(F.lit(None).cast(kind).alias(name) for name, kind in missing.items()))
    return found.withColumn("column", F.coalesce("column", F.lit(PERSON)))


def requests_of(tables: LakeTables, spark: SparkSession, batch: Batch, orgs: Iterable[str] | None = None) -> DataFrame:
    """Return the requests as a batch found them: `MUTATION_REQUEST_COLUMNS`.

    Args:
        orgs: Orgs to read; None for all.
    """
    from pyspark.sql import functions as F

    rows = tables.read(spark, MUTATION_REQUEST, version=batch.reads.get(MUTATION_REQUEST))
    if IS_ONE_TABLE not in rows.columns:
        rows = _of_two_tables(tables, spark, rows, batch.reads.get(SETTLED_REQUEST))
    rows = scoped(rows)
    return rows if orgs is None else rows.where(F.col("org_id").isin(sorted(orgs)))


def was_asked(tables: LakeTables, version: int | None = None) -> bool:
    """Return whether a request is in force; true for a lake whose requests are in two tables.

    Args:
        version: Version of the table of requests; None for the newest.
    """
    if is_table(tables.location(SETTLED_REQUEST)):
        return True
    return bool(tables.query(MUTATION_REQUEST, f"SELECT 1 FROM {MUTATION_REQUEST} WHERE {IN_FORCE} LIMIT 1", version))


def placed_records(tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame | None:
    """Return the requests that carry a record, as a batch found them; None if there are none.

    Those that an erasure has redacted count, too.
    """
    placed = "records = 1 AND status <> 'dead'"
    version = batch.reads.get(MUTATION_REQUEST)
    if has_one_table(tables, version):
        first = f"SELECT 1 FROM {MUTATION_REQUEST} WHERE {placed} LIMIT 1"
        if not tables.query(MUTATION_REQUEST, first, version):
            return None
    return requests_of(tables, spark, batch).where(placed)


def has_one_table(tables: LakeTables, version: int | None = None) -> bool:
    """Return whether a version of the table of requests has all of them. Lakes of earlier versions have two tables."""
    fields = open_table(tables.location(MUTATION_REQUEST), version).schema().fields
    return IS_ONE_TABLE in {field.name for field in fields}


def orgs_of(rows: DataFrame) -> list[str]:
    """Return the orgs of some rows, sorted."""
    found = rows.select("org_id").distinct().orderBy("org_id").collect()
    return [row["org_id"] for row in found]


RECORD_TIME = "record_engaged_at"
"""Column with the time of the record of a request; null if it carries none."""


def with_record_ids(requests: DataFrame, lake: EngagementLake, *, carry_records: bool = True) -> DataFrame:
    """Return the requests with `RECORD_PLACE` and `RECORD_TIME`, null where they carry no record.

    Args:
        carry_records: Whether some may carry one; else nothing is parsed.
    """
    from pyspark.sql import functions as F

    if not carry_records:
        kinds = {**MUTATION_REQUEST_COLUMNS, "record_date": "date"}
        return requests.withColumns({name: F.lit(None).cast(kinds[name]) for name in (*RECORD_PLACE, RECORD_TIME)})
    record_engagement_id, record_who_id, record_date, record_ids = RECORD_PLACE
    further = [column for column in lake.ids if column != PERSON]
    ids_of = F.create_map(*[value for column in further for value in (F.lit(column), F.col(f"{RECORD}.{column}"))])
    typed = with_typed_record(requests, "insert_record", record_format(lake))
    ids = {
        record_engagement_id: F.col(f"{RECORD}.engagement_id"),
        record_who_id: F.col(f"{RECORD}.who_id"),
        RECORD_TIME: F.col(f"{RECORD}.engaged_at"),
        record_date: F.to_date(f"{RECORD}.engaged_at"),
        record_ids: ids_of if further else F.lit(None).cast("map<string, string>"),
    }
    return typed.withColumns(ids).drop(RECORD)


def final_records(
    requests: DataFrame, found: Former, lake: EngagementLake, *, carry_records: bool
) -> tuple[DataFrame, DataFrame] | None:
    """Return where the records of requests end, the current one of each engagement, of a batch and of former ones.

    Args:
        requests: The new requests of the batch, with `with_record_ids`.
        carry_records: Whether some of them may carry a record.

    Returns:
        The records of the batch as `row_columns`, with the ids that they end under; who_id is null if no row is left.
        Those of former batches: org_id, engagement_id, `SENT_AT`, engagement_date, who_id, and the map ids of further
        ids. None if there are no records.
    """
    from pyspark.sql import functions as F

    from lake_assets.connections.row_checkpoint import checkpoint_rows

    if found.records is None and not carry_records:
        return None
    carrying = requests.where("insert_record is not null")
    known = found.applied.drop("part", "component")
    known = known if found.records is None else known.unionByName(found.records)
    known = known.withColumn("record_date", F.to_date(RECORD_TIME))
    names = [*REPLAYED, RECORD_TIME]
    replayed = requests.select(names).unionByName(known.select(names))
    places = place_records_by_org(replayed)
    typed = with_typed_record(carrying, "insert_record", record_format(lake))
    values = typed.select("org_id", "request_id", f"{RECORD}.*", F.col("executed_at").alias(SENT_AT))
    values = values.drop(*lake.ids, "engagement_id")
    records = places.join(values, ["org_id", "request_id"])
    ends = {column: F.col("ids")[column] for column in lake.ids if column != PERSON}
    dated = records.withColumns({"engagement_date": F.to_date("engaged_at"), **ends})
    of_former = known.where("record_date is not null").select(
        "org_id", "request_id", F.col("executed_at").alias(SENT_AT), F.col("record_date").alias("engagement_date")
    )
    moved = places.join(of_former.dropDuplicates(["org_id", "request_id"]), ["org_id", "request_id"])
    return checkpoint_rows(dated.select(*row_columns(lake))), checkpoint_rows(moved)


def inserted_rows(records: DataFrame, lake: EngagementLake) -> DataFrame:
    """Return the rows that records become: org_id string, engagement_date date, gone boolean, row struct of
    `engagement_columns`.

    If it is gone, requests have deleted it, or its person was erased, or it has expired. Then engaged_at is null, and
    the row has no content, so that no request brings it back.
    """
    from pyspark.sql import functions as F

    stays = F.col("engaged_at").isNotNull()
    named = ("org_id", "engagement_id", SENT_AT)
    known = [F.col(name) if name in named else F.when(stays, F.col(name)).alias(name) for name in row_columns(lake)]
    not_sent = [F.lit(None).cast("string").alias(sent(column)) for column in lake.ids]
    row = F.struct(*known, *not_sent).alias("row")
    return records.select("org_id", "engagement_date", F.col("who_id").isNull().alias("gone"), row)


def reject_replaced(messages: DataFrame, tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame:
    """Give messages of ingestion the reason `REPLACED` if a record has put their engagement in place, and later.

    Args:
        messages: As `validate_messages` returns them.
    """
    from pyspark.sql import functions as F

    carrying = placed_records(tables, spark, batch)
    if carrying is None:
        return messages
    by_engagement = carrying.groupBy(F.col("org_id").alias("of_org"), F.col(RECORD_IDS[0]).alias("placed"))
    placed = by_engagement.agg(F.max("executed_at").alias("placed_at"))
    is_later = f"org_id = of_org AND engagement_id = placed AND coalesce({SENT_AT} <= placed_at, true)"
    joined = messages.join(F.broadcast(placed), F.expr(is_later), "left")
    replaced = F.when(F.col("placed").isNotNull(), REPLACED)
    marked = joined.withColumn("reason", F.coalesce("reason", replaced))
    return marked.select(*messages.columns)


ROW_ID = ["org_id", "column", "id", "engagement_id", "engaged_at"]
"""id: The id by which requests of a column act on a row: the one that it was sent with; its present one if `IS_AS_SENT`
is false."""
IS_AS_SENT = "is_as_sent"
_LINK = ["org_id", "column", "old_id", "new_id"]


@dataclass(frozen=True)
class Former:
    """What a batch of mutation found that concerns its requests.

    Attributes:
        arrivals: As `new_rows` returns them.
        deleted: The deleted rows with an id that has a part, as they were; None if none can come back.
        applied: The requests of former batches that are connected with its requests or with new rows, each with its
            part and component.
        parts: As `parts_by_org` returns them, of the ids of its requests and of new rows.
        records: Requests of former batches with a record of an id that has a part, or of an engagement of which its
            requests carry a record; None if no former request has a record.
        may_be_late: Whether arrivals may have a row without a sent id. Only an earlier version wrote such rows.
    """

    arrivals: DataFrame | None
    deleted: DataFrame | None
    applied: DataFrame
    parts: DataFrame
    records: DataFrame | None
    may_be_late: bool


def former(tables: LakeTables, spark: SparkSession, batch: Batch, requests: DataFrame, orgs: Iterable[str]) -> Former:
    """Return what a batch found. It follows from the intent, like all that the batch writes.

    Args:
        requests: org_id string, column string, old_id string, new_id string, and `with_record_ids`.
        orgs: Orgs of the requests; it may contain others.
    """
    from pyspark.sql import functions as F

    from lake_assets.connections.row_checkpoint import checkpoint_and_aggregate, checkpoint_rows

    may_be_late = False
    of_orgs = set(orgs)
    arrivals = new_rows(tables, spark, batch)
    if arrivals is not None:
        not_as_sent = F.count(F.when(~F.col(IS_AS_SENT), True)).alias("not_as_sent")
        arrivals, counted = checkpoint_and_aggregate(arrivals, [not_as_sent, F.collect_set("org_id").alias("orgs")])
        may_be_late = counted["not_as_sent"] > 0
        of_orgs.update(counted["orgs"])
    applied = requests_of(tables, spark, batch, of_orgs).where(IN_FORCE)
    links = applied.select(*_LINK, F.lit(False).alias("is_wanted"))
    links = links.union(requests.select(*_LINK, F.lit(True)))
    of_records = _ids_of_records(requests)
    records = placed_records(tables, spark, batch)
    if records is not None:
        records = records.where(F.col("org_id").isin(sorted(of_orgs)) & F.col(RECORD_IDS[1]).isNotNull())
        same = records.join(of_records, ["org_id", RECORD_IDS[0]], "left_semi")
        of_records = of_records.union(_ids_of_records(same))
    links = links.union(of_records.select("org_id", "column", "id", F.lit(None), F.lit(True)))
    if arrivals is not None:
        links = links.union(arrivals.select("org_id", "column", "id", F.lit(None), F.lit(True)).distinct())
    parts = parts_by_org(links)
    deleted = removed_rows(tables, spark, batch)
    if deleted is not None:
        deleted = with_ids(deleted, tables.lake).where(F.col("org_id").isin(sorted(of_orgs)))
        of_parts = with_part(ids_as_sent(deleted, tables.lake), parts, "id").select("org_id", "engagement_id")
        deleted = checkpoint_rows(deleted.join(of_parts.distinct(), ["org_id", "engagement_id"], "left_semi"))
        if len(tables.lake.ids) > 1:  # where they are in the other columns follows from all requests of these
            of_rows = ids_as_sent(deleted, tables.lake).select("org_id", "column", "id", F.lit(None), F.lit(True))
            parts = parts_by_org(links.union(of_rows))
    if records is not None:
        keys = with_part(_ids_of_records(records), parts, "id").select("org_id", RECORD_IDS[0])
        records = checkpoint_rows(records.join(keys.distinct(), ["org_id", RECORD_IDS[0]], "left_semi"))
    applied = checkpoint_rows(with_part(applied, parts, "old_id"))
    return Former(arrivals, deleted, applied, parts, records, may_be_late)


def ids_as_sent(rows: DataFrame, lake: EngagementLake) -> DataFrame:
    """Return the ids that rows were sent with: org_id, engagement_id, column string, id string."""
    from pyspark.sql import functions as F

    ids = [F.struct(F.lit(column).alias("column"), F.col(sent(column)).alias("id")) for column in lake.ids]
    each = rows.select("org_id", "engagement_id", F.explode(F.array(*ids)).alias("of_id"))
    return each.select("org_id", "engagement_id", "of_id.*").where("id is not null")


def _ids_of_records(requests: DataFrame) -> DataFrame:
    """Return the ids of the records of requests: org_id, record_engagement_id, column string, id string."""
    from pyspark.sql import functions as F

    engagement_id, who_id = RECORD_IDS
    further = F.coalesce("record_ids", F.create_map().cast("map<string, string>"))
    ids = F.map_concat(F.create_map(F.lit(PERSON), F.col(who_id)), further)
    carrying = requests.where(F.col(engagement_id).isNotNull())
    each = carrying.select("org_id", engagement_id, F.explode(ids).alias("column", "id"))
    return each.where("id is not null")


def with_ids(rows: DataFrame, lake: EngagementLake) -> DataFrame:
    """Return rows of `engagement`, of any version of the table, with `SENT_AT`, all ids, and all as they were sent."""
    from pyspark.sql import functions as F

    names = [name for column in lake.ids for name in (column, sent(column))]
    kinds = {**dict.fromkeys(names, "string"), SENT_AT: "timestamp"}
    missing = [F.lit(None).cast(kind).alias(name) for name, kind in kinds.items() if name not in rows.columns]
    return rows.select("*", *missing)


def known_rows(tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame:
    """Return the rows that a batch found, as `with_ids` does, with `WAS_REMOVED`: of `engagement` and `removed`."""
    from pyspark.sql import functions as F

    rows = with_ids(tables.read_for(spark, batch, ENGAGEMENT), tables.lake).withColumn(WAS_REMOVED, F.lit(False))
    removed = removed_rows(tables, spark, batch)
    if removed is None:
        return rows
    removed = with_ids(removed, tables.lake).withColumn(WAS_REMOVED, F.lit(True))
    return rows.unionByName(removed.select(*rows.columns))


def there_within(after: Column, until: Column) -> Column:
    """Return whether a row is there since a time of an alias: after its start (null for no bound), until its end."""
    from pyspark.sql import functions as F

    since = F.least("engaged_at", SENT_AT)
    return (after.isNull() | (since > after)) & (since <= until)


def new_rows(tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame | None:
    """Return the rows that arrived since the last batch: `ROW_ID` and `IS_AS_SENT`, each once.

    Returns:
        None if ingestion committed nothing since. Also None if no request was known before: then no row can be late,
        and maintenance may have removed the change data feed before this batch.
    """
    from pyspark.sql import functions as F

    last = batch.reads[ENGAGEMENT]
    versions = [version for version in ingested_versions(tables, batch.since.get(ENGAGEMENT)) if version <= last]
    if not versions or not was_asked(tables, batch.reads.get(MUTATION_REQUEST)):
        return None
    feed = tables.changes(spark, ENGAGEMENT, min(versions), max(versions))
    feed = feed.where("_change_type IN ('insert', 'update_postimage')")
    ids = []
    for column in tables.lake.ids:
        as_sent = F.col(sent(column))
        identity = F.coalesce(as_sent, column).alias("id")
        ids.append(F.struct(F.lit(column).alias("column"), identity, as_sent.isNotNull().alias(IS_AS_SENT)))
    each = with_ids(feed, tables.lake).select("*", F.explode(F.array(*ids)).alias("of_id"))
    found = each.select("org_id", "of_id.*", "engagement_id", "engaged_at").where("id is not null")
    return found.select(*ROW_ID, IS_AS_SENT).distinct()


def ingested_versions(tables: LakeTables, since: int | None) -> list[int]:
    """Return the versions of the engagement table that ingestion committed after a version, newest first.

    Only these are read, because maintenance may have removed the feed of versions that mutation has processed.

    Args:
        since: None returns no versions.
    """
    if since is None:
        return []
    mark_prefix = f"{tables.lake.app_id('ingestion', DATA_COMMIT)}:"
    versions = []
    for commit in tables.history(ENGAGEMENT, since=since):
        if commit.mark is not None and commit.mark.startswith(mark_prefix):
            versions.append(commit.version)
    return versions


def upgrade(tables: LakeTables, spark: SparkSession) -> None:
    """Add what a lake lacks that was made by an earlier version. It may be called again after any stop.

    Raises:
        ConfigurationError: The file of the lake declares fields that its table does not have.
    """
    check_fields(tables.lake, open_table(tables.location(ENGAGEMENT)).schema().fields)
    if not has_one_table(tables):
        _join_requests(tables, spark)
    if is_table(tables.location(SETTLED_REQUEST)) and not _is_read(tables, SETTLED_REQUEST):
        files, path = file_system(tables.location(SETTLED_REQUEST))
        files.delete_dir(path)
    for schema in spark_tables(tables.lake):
        if schema.name == REMOVED and not is_table(tables.location(REMOVED)):
            spark.sql(create_statement(schema, tables.identifier(REMOVED)))
        elif schema.name in (ENGAGEMENT, MUTATION_REQUEST, REMOVED):
            known = {column.name for column in open_table(tables.location(schema.name)).schema().fields}
            added = ", ".join(f"`{name}` {kind}" for name, kind in schema.columns.items() if name not in known)
            if added:
                spark.sql(f"ALTER TABLE {tables.identifier(schema.name)} ADD COLUMNS ({added})")


def _join_requests(tables: LakeTables, spark: SparkSession) -> None:
    """Put all requests of a lake of an earlier version in one table: those of its log, and those that it had settled.

    Pending ones are in force then. Those that were given up stay so.
    """
    from lake_assets.connections.row_checkpoint import checkpoint_rows

    rows = checkpoint_rows(_of_two_tables(tables, spark, tables.read(spark, MUTATION_REQUEST)))
    writer = rows.repartition("org_id").writeTo(tables.identifier(MUTATION_REQUEST)).using("delta")
    for name, value in MUTATION_REQUEST_PROPERTIES.items():
        writer = writer.tableProperty(name, value)
    writer.partitionedBy("org_id").createOrReplace()


def _is_read(tables: LakeTables, table: str) -> bool:
    """Return whether a batch is open that reads a table."""
    for name in STREAMS:
        last = tables.checkpoints.read(tables.lake.app_name(name))
        if last is not None and not last.finished and table in last.batch.reads:
            return True
    return False


def _of_two_tables(
    tables: LakeTables, spark: SparkSession, log: DataFrame, settled_version: int | None = None
) -> DataFrame:
    """Return the requests of a lake of an earlier version, each once: `MUTATION_REQUEST_COLUMNS`.

    Args:
        log: A version of its log of attempts.
        settled_version: Version of its table of settled requests; None for the newest.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    # Before requests named columns, their dates did not bind.
    date = F.when(F.col("column").isNotNull(), F.col("engagement_date")) if "column" in log.columns else F.lit(None)
    found = with_record_ids(scoped(log.withColumn("engagement_date", date.cast("date"))), tables.lake)
    found = found.withColumn("records", F.col(RECORD_IDS[0]).isNotNull().cast("int"))
    found = found.select(*MUTATION_REQUEST_COLUMNS, F.lit(0).alias("is_settled"))
    if is_table(tables.location(SETTLED_REQUEST)):
        settled = scoped(tables.read(spark, SETTLED_REQUEST, version=settled_version)).withColumn("attempts", F.lit(1))
        found = found.unionByName(settled.select(*MUTATION_REQUEST_COLUMNS, F.lit(1).alias("is_settled")))
    newest = Window.partitionBy("org_id", "request_id").orderBy(F.desc("batch_id"), F.desc("is_settled"))
    numbered = found.withColumn("nth", F.row_number().over(newest)).where("nth = 1")
    return numbered.select(*MUTATION_REQUEST_COLUMNS)
