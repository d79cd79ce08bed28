"""What batches know of requests: those that are settled, their records, and the rows that come after them.

The table `settled_request` is partitioned by org. So a batch reads the requests of its own orgs, and nothing of the
log of attempts but what the last batch wrote there.

A record replaces the rows of its engagement. If ingestion brings the engagement later, that message becomes a dead
letter: a batch of ingestion is either before the one that put the record in place, or reads its request.

Late arrivals are among the rows that the table got between two batches of mutation. So they follow from the intent:
the version that the last batch left, the version that this batch read, the requests applied by then, and those that it
applies.

The outcome of a batch is durable in the log of requests. A commit that is made in the same process as the one before
it takes the rows that this one has kept. Any other reads them again: they follow from the intent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lake_assets.engagement.checkpoint import DATES_BIND, Batch
from lake_assets.engagement.delta_log import is_table, open_table, read_rows
from lake_assets.engagement.grouped import RECORD_IDS, RECORD_PLACE, parts_by_org, place_records_by_org, with_part
from lake_assets.engagement.lake import EngagementLake
from lake_assets.engagement.messages import RECORD, record_format, with_typed_record
from lake_assets.engagement.notifications import DATA_COMMIT
from lake_assets.engagement.pruning import MergeScope
from lake_assets.engagement.requests import PERSON
from lake_assets.engagement.tables import (
    ENGAGEMENT,
    IS_APPLIED,
    MUTATION_REQUEST,
    REPLACED,
    SETTLED_REQUEST,
    SETTLED_REQUEST_COLUMNS,
    SETTLED_REQUEST_PROPERTIES,
    LakeTables,
    applied_requests,
    check_fields,
    row_columns,
    sent,
    spark_tables,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FIRST_VERSION = 0
"""Version of the table that a batch reads whose intent is older than the table: it was built from the log."""


def scoped(requests: DataFrame) -> DataFrame:
    """Return requests, of any version of their table, with the column that each names, and with their dates."""
    from pyspark.sql import functions as F

    known = requests.columns
    column = F.coalesce("column", F.lit(PERSON)) if "column" in known else F.lit(PERSON)
    dated = "engagement_date" in known
    dates = {} if dated else {"engagement_date": F.lit(None).cast("date")}
    return requests.withColumns({"column": column, **dates})


def settled_requests(
    tables: LakeTables, spark: SparkSession, batch: Batch, orgs: Iterable[str] | None = None
) -> DataFrame:
    """Return settled requests as a batch found them: `SETTLED_REQUEST_COLUMNS`.

    Args:
        orgs: Orgs to read; None for all.
    """
    from pyspark.sql import functions as F

    rows = scoped(tables.read(spark, SETTLED_REQUEST, version=_version_of(batch)))
    return rows if orgs is None else rows.where(F.col("org_id").isin(sorted(orgs)))


def _version_of(batch: Batch) -> int:
    return batch.reads.get(SETTLED_REQUEST, FIRST_VERSION)


def pending_requests(tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame | None:
    """Return the pending requests of the log as a batch found it; None if there are none."""
    from pyspark.sql import functions as F

    newest = pending_batch(tables, batch.reads[MUTATION_REQUEST])
    if newest is None:
        return None
    log = scoped(tables.read_for(spark, batch, MUTATION_REQUEST))
    return log.where((F.col("batch_id") == F.lit(newest)) & (F.col("status") == "parked"))


def pending_batch(tables: LakeTables, version: int | None = None) -> int | None:
    """Return the newest batch of the log if it left requests pending. Each batch tries all of them.

    Args:
        version: Version of the log; None for the newest.
    """
    newest = f"SELECT max(batch_id) FROM {MUTATION_REQUEST}"
    pending = f"SELECT batch_id FROM {MUTATION_REQUEST} WHERE status = 'parked' AND batch_id = ({newest}) LIMIT 1"
    rows = tables.query(MUTATION_REQUEST, pending, version)
    return int(rows[0]["batch_id"]) if rows else None


def was_applied(tables: LakeTables, version: int | None = None) -> bool:
    """Return whether a request was ever applied; true for a lake whose settled requests are not built yet.

    Args:
        version: Version of the table of settled requests; None for the newest.
    """
    if not is_table(tables.location(SETTLED_REQUEST)):
        return True
    applied = f"SELECT 1 FROM {SETTLED_REQUEST} WHERE {IS_APPLIED} LIMIT 1"
    return bool(tables.query(SETTLED_REQUEST, applied, version))


def was_applied_before(tables: LakeTables, batch: Batch) -> bool:
    """Return whether a request was applied before a batch."""
    return was_applied(tables, _version_of(batch))


def placed_records(tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame | None:
    """Return the applied requests that carry a record, as a batch found them; None if there are none.

    Those that an erasure has redacted count, too.
    """
    placed = "records = 1 AND status = 'applied'"
    first = f"SELECT 1 FROM {SETTLED_REQUEST} WHERE {placed} LIMIT 1"
    if not tables.query(SETTLED_REQUEST, first, _version_of(batch)):
        return None
    return settled_requests(tables, spark, batch).where(placed)


def orgs_of(rows: DataFrame) -> list[str]:
    """Return the orgs of some rows, sorted."""
    found = rows.select("org_id").distinct().orderBy("org_id").collect()
    return [row["org_id"] for row in found]


RECORD_TIME = "record_engaged_at"
"""Column with the time of the record of a request; null if it carries none."""


def with_record_ids(requests: DataFrame, lake: EngagementLake) -> DataFrame:
    """Return the requests with `RECORD_PLACE` and `RECORD_TIME`, null where they carry no record."""
    from pyspark.sql import functions as F

    record_engagement_id, record_who_id, record_date, record_ids = RECORD_PLACE
    further = [column for column in lake.ids if column != PERSON]
    names = F.array(*map(F.lit, further)).cast("array<string>")
    values = F.array(*[F.col(f"{RECORD}.{column}") for column in further]).cast("array<string>")
    typed = with_typed_record(requests, "insert_record", record_format(lake))
    ids = {
        record_engagement_id: F.col(f"{RECORD}.engagement_id"),
        record_who_id: F.col(f"{RECORD}.who_id"),
        RECORD_TIME: F.col(f"{RECORD}.engaged_at"),
        record_date: F.to_date(f"{RECORD}.engaged_at"),
        record_ids: F.map_from_arrays(names, values),
    }
    return typed.withColumns(ids).drop(RECORD)


def final_records(applied: DataFrame, lake: EngagementLake) -> DataFrame | None:
    """Return the records of requests that are applied together, the current one of each engagement.

    Returns:
        `row_columns`. The ids are those that the record ends under; who_id is null if no row is left. None if there
        are no records.
    """
    from pyspark.sql import functions as F

    from lake_assets.connections.row_checkpoint import checkpoint_rows

    carrying = applied.where("insert_record is not null")
    if carrying.isEmpty():
        return None
    typed = with_typed_record(carrying, "insert_record", record_format(lake))
    values = typed.select("org_id", "request_id", f"{RECORD}.*")
    values = values.drop(*lake.ids, "engagement_id")
    places = place_records_by_org(with_record_ids(applied, lake))
    records = places.join(values, ["org_id", "request_id"])
    ends = {column: F.col("ids")[column] for column in lake.ids if column != PERSON}
    dated = records.withColumns({"engagement_date": F.to_date("engaged_at"), **ends})
    return checkpoint_rows(dated.select(*row_columns(lake)))


def inserted_rows(records: DataFrame, lake: EngagementLake) -> DataFrame:
    """Return the rows that records become: org_id string, engagement_date date, row struct of `row_columns`."""
    from pyspark.sql import functions as F

    left = records.where("who_id is not null")
    return left.select("org_id", "engagement_date", F.struct(*row_columns(lake)).alias("row"))


def reject_replaced(messages: DataFrame, tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame:
    """Give messages of ingestion the reason `REPLACED` if a record has put their engagement in place.

    Args:
        messages: As `validate_messages` returns them.
    """
    from pyspark.sql import functions as F

    carrying = placed_records(tables, spark, batch)
    if carrying is None:
        return messages
    placed = carrying.select(
        F.col("org_id").alias("of_org"),
        F.col(RECORD_IDS[0]).alias("placed"),
    )
    same_engagement = F.expr("org_id = of_org AND engagement_id = placed")
    joined = messages.join(F.broadcast(placed.distinct()), same_engagement, "left")
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
        applied: The requests applied by former batches that are connected with its requests or with new rows, each
            with its part.
        parts: As `parts_by_org` returns them, of the ids of its requests and of new rows.
        names_days: Whether one of the applied requests names a day.
        may_be_late: Whether arrivals may have a row without a sent id. Only an earlier version wrote such rows.
    """

    arrivals: DataFrame | None
    applied: DataFrame
    parts: DataFrame
    names_days: bool
    may_be_late: bool


def former(
    tables: LakeTables, spark: SparkSession, batch: Batch, requests: DataFrame, orgs: Iterable[str] | None = None
) -> Former:
    """Return what a batch found. It follows from the intent, like all that the batch writes.

    Args:
        requests: org_id string, column string, old_id string, new_id string.
        orgs: Orgs of the requests; it may contain others. None to find them in the requests.
    """
    from pyspark.sql import functions as F

    from lake_assets.connections.row_checkpoint import checkpoint_and_aggregate, checkpoint_rows

    may_be_late = False
    arrivals = new_rows(tables, spark, batch)
    if arrivals is not None:
        not_as_sent = F.count(F.when(~F.col(IS_AS_SENT), True)).alias("not_as_sent")
        arrivals, counted = checkpoint_and_aggregate(arrivals, [not_as_sent])
        may_be_late = counted["not_as_sent"] > 0
    of_orgs = set(orgs_of(requests) if orgs is None else orgs)
    if arrivals is not None:
        of_orgs.update(orgs_of(arrivals))
    applied = applied_requests(settled_requests(tables, spark, batch, of_orgs))
    links = applied.select(*_LINK, F.lit(False).alias("is_wanted"))
    links = links.union(requests.select(*_LINK, F.lit(True)))
    if arrivals is not None:
        links = links.union(arrivals.select("org_id", "column", "id", F.lit(None), F.lit(True)).distinct())
    parts = checkpoint_rows(parts_by_org(links))
    related = with_part(applied, parts, "old_id")
    related, named = checkpoint_and_aggregate(related, [F.count("engagement_date").alias("days")])
    return Former(arrivals, related, parts, named["days"] > 0, may_be_late)


def with_ids(rows: DataFrame, lake: EngagementLake) -> DataFrame:
    """Return rows of `engagement`, of any version of the table, with all id columns and all ids as they were sent."""
    from pyspark.sql import functions as F

    names = [name for column in lake.ids for name in (column, sent(column))]
    missing = [F.lit(None).cast("string").alias(name) for name in names if name not in rows.columns]
    return rows.select("*", *missing)


def by_id(rows: DataFrame, lake: EngagementLake) -> DataFrame:
    """Return each row of `engagement` once for each of its ids, with column, id and `IS_AS_SENT`, as in `ROW_ID`."""
    from pyspark.sql import functions as F

    ids = []
    for column in lake.ids:
        as_sent = F.col(sent(column))
        ids.append(
            F.struct(
                F.lit(column).alias("column"),
                F.coalesce(as_sent, column).alias("id"),
                as_sent.isNotNull().alias(IS_AS_SENT),
            )
        )
    each = with_ids(rows, lake).withColumn("of_id", F.explode(F.array(*ids)))
    return each.select("org_id", "engagement_date", "engagement_id", "engaged_at", "of_id.*").where("id is not null")


def engaged_within(after: Column, until: Column) -> Column:
    """Return whether a row engaged in the span of an alias: after its start (null for no bound), until its end."""
    from pyspark.sql import functions as F

    engaged_at = F.col("engaged_at")
    return (after.isNull() | (engaged_at > after)) & (engaged_at <= until)


def new_rows(tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame | None:
    """Return the rows that arrived since the last batch: `ROW_ID` and `IS_AS_SENT`, each once.

    Returns:
        None if ingestion committed nothing since. Also None if no request was applied before: then no row can be late,
        and maintenance may have removed the change data feed before this batch.
    """
    last = batch.reads[ENGAGEMENT]
    versions = [version for version in ingested_versions(tables, batch.since.get(ENGAGEMENT)) if version <= last]
    if not versions or not was_applied_before(tables, batch):
        return None
    feed = tables.changes(spark, ENGAGEMENT, min(versions), max(versions))
    inserted = by_id(feed.where("_change_type = 'insert'"), tables.lake)
    return inserted.select(*ROW_ID, IS_AS_SENT).distinct()


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


@dataclass(frozen=True)
class Outcome:
    """The outcome of a batch of mutation.

    Attributes:
        tried: The rows that the batch has appended to `mutation_request`.
        found: What the batch found that concerns them, and perhaps what concerns only those of them that are not
            applied, where the applied ones change nothing; None if it was not kept.
        scope: The rows that its requests may act on; None if it was not kept.
    """

    tried: DataFrame
    found: Former | None = None
    scope: MergeScope | None = None


@dataclass(frozen=True)
class Outcomes:
    """Hands the outcome of a batch from one commit to the next."""

    tables: LakeTables
    spark: SparkSession
    _kept: list[tuple[Batch, Outcome]] = field(default_factory=list, init=False, repr=False, compare=False)

    def keep(self, batch: Batch, outcome: Outcome) -> None:
        """Keep the outcome for the next commit of the batch."""
        self._kept[:] = [(batch, outcome)]

    def take(self, batch: Batch, done: Mapping[str, int | None]) -> Outcome:
        """Return the outcome that the commit before has kept, once: a commit that is repeated reads it from the log.

        Args:
            done: As for `BatchCommit.write`.
        """
        from pyspark.sql import functions as F

        kept = [outcome for known, outcome in self._kept if known == batch]
        self._kept.clear()
        if kept:
            return kept[0]
        log = scoped(self.tables.read(self.spark, MUTATION_REQUEST, version=done["request"]))
        if batch.rules < DATES_BIND:
            log = log.withColumn("engagement_date", F.lit(None).cast("date"))
        return Outcome(log.where(F.col("batch_id") == batch.batch_id))


@dataclass(frozen=True)
class SettledCommit:
    """Appends the requests that the batch has applied, and those that are dead now.

    It comes after the data commit, so a batch that is withdrawn has none.
    """

    outcomes: Outcomes
    name: str = "settled"
    table: str = SETTLED_REQUEST

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        tables = self.outcomes.tables
        settled = _settled(self.outcomes.take(batch, done).tried, tables.lake)
        tables.append(SETTLED_REQUEST, settled, app_id=app_id, batch_id=batch.batch_id)


def upgrade(tables: LakeTables, spark: SparkSession) -> None:
    """Add what a lake lacks that was made by an earlier version. It may be called again after any stop.

    Raises:
        ConfigurationError: The file of the lake declares fields that its table does not have.
    """
    check_fields(tables.lake, open_table(tables.location(ENGAGEMENT)).schema().fields)
    _ensure_settled(tables, spark)
    for schema in spark_tables(tables.lake):
        if schema.name in (ENGAGEMENT, MUTATION_REQUEST, SETTLED_REQUEST):
            known = {column.name for column in open_table(tables.location(schema.name)).schema().fields}
            added = ", ".join(f"`{name}` {kind}" for name, kind in schema.columns.items() if name not in known)
            if added:
                spark.sql(f"ALTER TABLE {tables.identifier(schema.name)} ADD COLUMNS ({added})")


def _ensure_settled(tables: LakeTables, spark: SparkSession) -> None:
    """Build the table of settled requests from the log, if the lake was made by a version that had none.

    It is created together with its rows. The requests of an open batch of mutation are left to its own commit.
    """
    from pyspark.sql import functions as F

    location = tables.location(SETTLED_REQUEST)
    if is_table(location):
        return
    last = tables.checkpoints.read(tables.lake.app_name("mutation"))
    is_open = last is not None and not last.finished
    version = last.batch.reads[MUTATION_REQUEST] if last is not None and is_open else None
    log = scoped(tables.read(spark, MUTATION_REQUEST, version=version)).withColumn(
        "engagement_date",
        F.lit(None).cast("date"),  # no request of that version was bound to its date
    )
    writer = _settled(log, tables.lake).write.format("delta").mode("error").partitionBy("org_id")
    writer.options(**SETTLED_REQUEST_PROPERTIES).save(location)


def prune_log(tables: LakeTables) -> None:
    """Remove the requests of former batches of mutation from the log. No batch may be open.

    Those that were applied or are dead are settled, and the last batch has tried the pending ones.
    """
    log = open_table(tables.location(MUTATION_REQUEST))
    batches = read_rows(log, ["batch_id"]).column("batch_id").unique().to_pylist()
    if len(batches) > 1:
        log.delete(f"batch_id < {max(batches):d}")


def _settled(log: DataFrame, lake: EngagementLake) -> DataFrame:
    """Return the requests of the log that are applied or dead: `SETTLED_REQUEST_COLUMNS`, in one task for each org."""
    from pyspark.sql import functions as F

    settled = with_record_ids(log.where("status <> 'parked'"), lake)
    counted = settled.withColumn("records", F.col(RECORD_IDS[0]).isNotNull().cast("int"))
    return counted.select(*SETTLED_REQUEST_COLUMNS).repartition("org_id")
