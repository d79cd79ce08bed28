"""The Delta tables of a lake: their columns and properties, where they are, how they are created, read and appended to.

Tables have an address, not a catalog name: a lake is a folder that any Spark, or a program without Spark, can read.
Spark creates them; their logs are read without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import QueryBuilder, write_deltalake

from lake_assets.engagement import delta_log
from lake_assets.engagement.checkpoint import Batch, CheckpointStore
from lake_assets.engagement.delta_log import Claims, Commit, is_table, open_table, read_commits, read_rows
from lake_assets.engagement.lake import EMAILS_AND_CALLS, EngagementLake, digest, metrics_columns
from lake_assets.engagement.requests import PERSON, SENT_AT, check_ttl_days
from lake_assets.errors import ConfigurationError, UsageError
from lake_assets.incremental.engine.erasures import KeyedHash, erasure_key
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from deltalake.schema import Field
    from deltalake.table import TableMerger
    from pyspark.sql import DataFrame, SparkSession

ENGAGEMENT = "engagement"
MUTATION_REQUEST = "mutation_request"
SETTLED_REQUEST = "settled_request"
"""In lakes of earlier versions: the requests that were applied or given up. It is gone with their next turn."""
NOTIFICATION = "notification"
DEAD_LETTER = "dead_letter"
ERASURE = "erasure"
REMOVED = "removed"
ORG = "org"
ENGAGEMENT_METRICS = "engagement_metrics"
CHECKPOINT = "checkpoint"

REPEATED = "repeated"
"""Reason of a dead letter whose engagement another message says that counts more: it was sent later, or came before."""

ERASED = "erased"
"""Reason of a dead letter that would have brought an erased person back. Its message is not kept."""

EXPIRED = "expired"
"""Reason of a dead letter whose engagement is from before the cut-off of its org. Its message is not kept."""

REPLACED = "replaced"
"""Reason of a dead letter whose engagement a mutation request has already put in place."""

NO_MISTAKES = (REPEATED, ERASED, EXPIRED, REPLACED)
"""Reasons of messages that are dead letters because all is well."""

ENGAGEMENT_COLUMNS: Mapping[str, str] = {
    "org_id": "string",
    "engagement_date": "date",
    "engagement_id": "string",
    "who_id": "string",
    "kind": "string",
    "template_id": "string",
    "cadence_id": "string",
    "rep_id": "string",
    "outcome": "string",
    "engaged_at": "timestamp",
}
"""Columns of every lake. The struct `engagement` with the fields of the lake follows them, then further id columns that
the lake declares, and then the ids as they were sent."""

SENT_WHO_ID = "sent_who_id"


def sent(column: str) -> str:
    """Return the column with the id that a row was sent with in an id column, whatever it was moved to; string.

    Null if requests act on the row by its present id: in rows of lakes of earlier versions, in those from before the
    column was declared as one of ids, and in records that requests have put in place.
    """
    return f"sent_{column}"


def row_columns(lake: EngagementLake) -> dict[str, str]:
    """Return column → type of what a message says about a row of `engagement`, without the ids as they were sent."""
    struct = ", ".join(f"{name}: {kind}" for name, kind in lake.fields.items())
    ids = dict.fromkeys(lake.further_ids, "string")
    return {**ENGAGEMENT_COLUMNS, ENGAGEMENT: f"struct<{struct}>", **ids, SENT_AT: "timestamp"}


def engagement_columns(lake: EngagementLake) -> dict[str, str]:
    """Return column → type of the table `engagement`."""
    return {**row_columns(lake), **{sent(column): "string" for column in lake.ids}}


NOTIFICATION_COLUMNS: Mapping[str, str] = {
    "org_id": "string",
    "ingestion_hour": "timestamp",
    "table_name": "string",
    "last_modified": "timestamp",
    "inserted": "bigint",
    "updated": "bigint",
    "deleted": "bigint",
    "app_name": "string",
    "version": "bigint",
}
DEAD_LETTER_COLUMNS: Mapping[str, str] = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "reason": "string",
    "message": "string",
    "batch_id": "bigint",
}
MUTATION_REQUEST_COLUMNS: Mapping[str, str] = {
    "org_id": "string",
    "request_id": "string",
    "op": "string",
    "old_id": "string",
    "new_id": "string",
    "executed_at": "timestamp",
    "partition": "int",
    "offset": "bigint",
    "attempts": "int",
    "status": "string",
    "record_engagement_id": "string",
    "record_who_id": "string",
    "record_engaged_at": "timestamp",
    "record_ids": "map<string, string>",
    "records": "int",
    "batch_id": "bigint",
    "engagement_date": "date",
    "column": "string",
}
"""A row for each request, from when it is received.

- status: `applied`, or `parked` while it has met no row. When one comes, a copy of the request is appended with `met`.
  Lakes of earlier versions also have `dead`: these are in force no more. `erased`: it names an erased person, and was
  executed before the erasure; old_id and new_id are keyed hashes, which tell later whose ids it has connected.
- attempts: 1; in rows of earlier versions the number of batches that had tried the request.
- engagement_date: The request acts on rows of this day alone; null: on all.
- column: The id column that the request names; null in rows of earlier versions: `who_id`.
- record_*: Of the record that the request carries; null if it carries none. record_ids: further id column → id; null
  without such columns, and in rows of earlier versions.
- records: 1 if it carries a record, else 0. The log has its maximum for each file, so readers of records skip others.

Of a record of an erased person, record_engagement_id stays alone. In lakes of earlier versions it does so of any record
of a request that names an erased person, whose old_id and new_id are null then.
"""

IS_ONE_TABLE = "records"
"""Column of `MUTATION_REQUEST`. Without it the lake is of an earlier version, which had a second table."""

ERASURE_COLUMNS: Mapping[str, str] = {
    "org_id": "string",
    "id_hash": "string",
    "person_hash": "string",
    "key_id": "string",
    "erased_until": "timestamp",
    "batch_id": "bigint",
}
"""Erased ids as keyed hashes, the time until which they are erased (inclusive), and the batch. No id is stored.

A row without hashes is a cut-off: engagements of the org until this time, inclusive, are gone, also those that come
later. The greatest one counts.

- person_hash: Hash of the least id of the person. Ids that were erased as one person's share it.
"""

_DELTA_NAMES = {"int": "integer", "bigint": "long"}
"""Types of fields that Delta calls otherwise than Spark's SQL."""

ORG_COLUMNS: Mapping[str, str] = {"org_id": "string", "ttl_days": "int"}
METRICS_DIGEST = "lake.metrics"
"""Property of the table of metrics: the digest of the metrics that it shows. Without it they are `EMAILS_AND_CALLS`."""

_ENGAGEMENT_PROPERTIES = {
    "delta.enableChangeDataFeed": "true",
    "delta.enableDeletionVectors": "true",
    # The log stores minimum and maximum values of these columns, so none of them may identify a person.
    "delta.dataSkippingStatsColumns": "engagement_date",
}
MUTATION_REQUEST_PROPERTIES = {"delta.dataSkippingStatsColumns": "records,batch_id,executed_at"}
_REMOVED_PROPERTIES = {"delta.dataSkippingStatsColumns": "removed_at"}
_NO_STATISTICS = {"delta.dataSkippingNumIndexedCols": "0"}


@dataclass(frozen=True)
class TableSchema:
    """The declaration of a Delta table.

    Attributes:
        columns: Column → Spark SQL type, in order.
        partitions: Columns that the table is partitioned by.
        properties: Delta table properties.
    """

    name: str
    columns: Mapping[str, str]
    partitions: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


def spark_tables(lake: EngagementLake) -> tuple[TableSchema, ...]:
    """Return the tables of a lake that Spark creates: all but the checkpoint table."""
    return (
        TableSchema(ENGAGEMENT, engagement_columns(lake), ("org_id",), _ENGAGEMENT_PROPERTIES),
        TableSchema(MUTATION_REQUEST, MUTATION_REQUEST_COLUMNS, ("org_id",), MUTATION_REQUEST_PROPERTIES),
        TableSchema(NOTIFICATION, NOTIFICATION_COLUMNS, ("org_id", "ingestion_hour")),
        TableSchema(DEAD_LETTER, DEAD_LETTER_COLUMNS, properties=_NO_STATISTICS),
        TableSchema(ERASURE, ERASURE_COLUMNS, properties=_NO_STATISTICS),
        TableSchema(REMOVED, {**engagement_columns(lake), "removed_at": "timestamp"}, ("org_id",), _REMOVED_PROPERTIES),
        TableSchema(ORG, ORG_COLUMNS),
        _metrics_table(lake),
    )


def check_fields(lake: EngagementLake, columns: Iterable[Field]) -> None:
    """Check that a table has the fields of a lake, which do not change once it has tables.

    Args:
        lake: The lake, as its file declares it.
        columns: The columns of its table `engagement`.

    Raises:
        ConfigurationError: A field is missing, or has another type.
    """
    from deltalake.schema import StructType

    (struct,) = (column.type for column in columns if column.name == ENGAGEMENT)
    assert isinstance(struct, StructType)
    found = {each.name: str(getattr(each.type, "type", each.type)) for each in struct.fields}
    for name, kind in lake.fields.items():
        if found.get(name) != _DELTA_NAMES.get(kind, kind):
            state = f"has it as {found[name]}" if name in found else "has no such field"
            raise ConfigurationError(
                f"The lake {lake.name} declares the field {name} ({kind}), but its table {state}.",
                remedy="Restore the fields in the file of the lake, or give it a new name: a lake that has tables keeps"
                f" its fields. They are: {', '.join(found)}.",
            )


def _metrics_table(lake: EngagementLake) -> TableSchema:
    properties = {} if lake.metrics == EMAILS_AND_CALLS else {METRICS_DIGEST: digest(lake.metrics)}
    return TableSchema(ENGAGEMENT_METRICS, metrics_columns(lake.metrics), ("org_id",), properties)


def create_statement(schema: TableSchema, identifier: str) -> str:
    """Return the SQL that creates a table unless it exists.

    Args:
        identifier: Name of the table in SQL.
    """
    columns = ", ".join(f"`{name}` {kind}" for name, kind in schema.columns.items())
    statement = f"CREATE TABLE IF NOT EXISTS {identifier} ({columns}) USING delta"
    if schema.partitions:
        statement += f" PARTITIONED BY ({', '.join(schema.partitions)})"
    if schema.properties:
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in schema.properties.items())
        statement += f" TBLPROPERTIES ({properties})"
    return statement


PAUSED = "lake.paused"
"""Property of the table of orgs, which is written without the lock: since when the lake is paused; empty if it runs."""

_ORG_SCHEMA = pa.schema([("org_id", pa.string()), ("ttl_days", pa.int32())])


def folder(settings: Settings) -> str:
    """Return the address of the folder of all lakes in the configured warehouse."""
    return f"{settings.warehouse_address}/engagement"


def open_tables(settings: Settings, lake: EngagementLake) -> LakeTables:
    """Return the tables of a lake in the configured warehouse, without creating them."""
    keyed = KeyedHash(partial(erasure_key, settings))
    return LakeTables(lake, folder(settings), keyed)


@dataclass(frozen=True)
class LakeTables:
    """The tables of one lake.

    Attributes:
        root: Address of the folder of all lakes.
        keyed: Keyed hash for the ids of erased persons.
    """

    lake: EngagementLake
    root: str
    keyed: KeyedHash = field(default_factory=KeyedHash)

    def location(self, table: str) -> str:
        """Return the address of a table."""
        return f"{self.root}/{self.lake.name}/{table}"

    def identifier(self, table: str) -> str:
        """Return the name of a table in SQL."""
        escaped = self.location(table).replace("`", "``")
        return f"delta.`{escaped}`"

    @property
    def checkpoints(self) -> CheckpointStore:
        return CheckpointStore(self.location(CHECKPOINT))

    @property
    def claims(self) -> Claims:
        return Claims(self.location(ENGAGEMENT), self.identifier(ENGAGEMENT))

    def exist(self) -> bool:
        """Return whether all tables were created. The checkpoint table is created last."""
        return self.checkpoints.exists()

    def create(self, spark: SparkSession) -> None:
        """Create the tables that do not exist yet."""
        for schema in spark_tables(self.lake):
            spark.sql(create_statement(schema, self.identifier(schema.name)))
        self.checkpoints.create()

    def read(self, spark: SparkSession, table: str, version: int | None = None) -> DataFrame:
        """Return the rows of a table.

        Args:
            version: Version to read; None for the newest.
        """
        reader = spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", str(version))
        return reader.load(self.location(table))

    def read_for(self, spark: SparkSession, batch: Batch, table: str) -> DataFrame:
        """Return the rows of a table at the version that is part of a batch's intent."""
        return self.read(spark, table, version=batch.reads[table])

    def rows_for(self, batch: Batch, table: str) -> pa.Table:
        """Return the rows of `read_for` without Spark, for tables that are small in every lake."""
        return read_rows(open_table(self.location(table), batch.reads[table]))

    def query(self, table: str, statement: str, version: int | None = None) -> list[dict[str, Any]]:
        """Return the few rows that a statement of SQL selects from a table, without Spark.

        Args:
            statement: It names the table as it is named here.
            version: Version to read; None for the newest.
        """
        opened = QueryBuilder().register(table, open_table(self.location(table), version))
        rows: list[dict[str, Any]] = pa.table(opened.execute(statement).read_all()).to_pylist()
        return rows

    def append(self, table: str, rows: DataFrame, *, app_id: str, batch_id: int) -> None:
        """Append rows as a batch. Delta skips the write if it has seen this batch id or a greater one of the app id."""
        writer = rows.write.format("delta").mode("append")
        writer = writer.options(**delta_log.write_options(app_id, batch_id))
        writer.save(self.location(table))

    def changes(self, spark: SparkSession, table: str, version: int, last: int | None = None) -> DataFrame:
        """Return rows of the change data feed, with `_change_type`.

        Args:
            version: First version to read.
            last: Last version to read, inclusive; None for `version` alone.
        """
        options = {
            "readChangeFeed": "true",
            "startingVersion": str(version),
            "endingVersion": str(version if last is None else last),
        }
        return spark.read.format("delta").options(**options).load(self.location(table))

    def version(self, table: str) -> int:
        """Return the newest version of a table."""
        return int(open_table(self.location(table)).version())

    def append_few(self, table: str, rows: Sequence[Mapping[str, Any]], *, app_id: str, batch_id: int) -> None:
        """Append rows as a batch, without Spark. Delta skips every other write of this batch, also if there are none.

        Nothing is committed if the table has seen this batch id or a greater one of the app id. If another process
        commits one meanwhile, delta-rs refuses the commit.
        """
        opened = open_table(self.location(table))
        if (opened.transaction_version(app_id) or 0) >= batch_id:
            return
        used = delta_log.commit_properties(app_id, batch_id)
        if rows:
            given = pa.Table.from_pylist([*rows], schema=pa.schema(opened.schema().to_arrow()))
            write_deltalake(opened, given, mode="append", commit_properties=used)
        else:
            opened.create_write_transaction([], "append", opened.schema(), commit_properties=used)

    def last_batch(self, table: str, app_id: str) -> int:
        """Return the last batch id that was committed to a table under an app id; 0 if none was."""
        return int(open_table(self.location(table)).transaction_version(app_id) or 0)

    def history(self, table: str, *, since: int = -1) -> list[Commit]:
        """Return the commits of a table after a version, newest first, as far back as the log reaches."""
        return read_commits(self.location(table), since=since)

    def commit_of(self, table: str, *, app_id: str, batch_id: int, since: int) -> Commit | None:
        """Return the commit that a batch made; None if it made none.

        Args:
            since: A version before the commit.
        """
        mark = delta_log.mark(app_id, batch_id)
        for commit in self.history(table, since=since):
            if commit.mark == mark:
                return commit
        return None

    def dead_letters(self, batch: Batch) -> Counter[str]:
        """Return reason → number of the dead letters that a batch has written."""
        of_batch = [("batch_id", "=", batch.batch_id), ("topic", "=", batch.messages.topic)]
        letters = read_rows(open_table(self.location(DEAD_LETTER)), ["reason"], of_batch)
        return Counter(letters["reason"].to_pylist())

    def commit_at(self, table: str, version: int) -> Commit:
        """Return the commit that made a version of a table."""
        commits = self.history(table, since=version - 1)
        return next(commit for commit in commits if commit.version == version)

    @property
    def paused_since(self) -> str | None:
        """When the lake was paused, in ISO 8601; None if it runs, or has no tables."""
        location = self.location(ORG)
        return (open_table(location).metadata().configuration.get(PAUSED) or None) if is_table(location) else None

    def set_paused(self, since: str | None) -> None:
        """Let no turn begin, since a time; or let turns begin again. The turn that has begun is not affected."""
        open_table(self.location(ORG)).alter.set_table_properties({PAUSED: since or ""}, raise_if_not_exists=False)

    def refuse_if_paused(self) -> None:
        """Raise `UsageError` if the lake is paused."""
        since, name = self.paused_since, self.lake.name
        if since is not None:
            raise UsageError(
                f"The lake {name} is paused since {since}.",
                remedy=f"Let its turns begin again: `lake engagement resume {name}`.",
            )

    def orgs(self) -> list[str]:
        """Return the registered orgs, sorted."""
        registered = read_rows(open_table(self.location(ORG)), ["org_id"])
        return sorted(registered["org_id"].to_pylist())

    def require_org(self, org: str) -> None:
        """Raise `UsageError` if an org is not registered."""
        if org not in self.orgs():
            name = self.lake.name
            raise UsageError(
                f"The lake {name} has no org {org!r}.",
                remedy=f"Name a registered org, or register it: `lake engagement init {name} --org ORG`.",
            )

    def register_orgs(self, ttl_days: Mapping[str, int | None]) -> None:
        """Register orgs, or change the retention of registered ones.

        Args:
            ttl_days: Org → days that its engagements are kept, used for `ttl` requests without days; None: no limit.

        Raises:
            UsageError: A number of days is outside `TTL_DAYS`.
        """
        for org, days in ttl_days.items():
            if days is not None:
                check_ttl_days(org, days)
        merge = self._merge_orgs(ttl_days)
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def add_orgs(self, orgs: Iterable[str]) -> None:
        """Register orgs that are not registered yet, with the lake's `ttl_days`, and change nothing for the others."""
        merge = self._merge_orgs(dict.fromkeys(orgs, self.lake.ttl_days))
        merge.when_not_matched_insert_all().execute()

    def _merge_orgs(self, ttl_days: Mapping[str, int | None]) -> TableMerger:
        rows = [{"org_id": org, "ttl_days": days} for org, days in ttl_days.items()]
        return open_table(self.location(ORG)).merge(
            pa.Table.from_pylist(rows, schema=_ORG_SCHEMA),
            predicate="known.org_id = given.org_id",
            source_alias="given",
            target_alias="known",
        )


IN_FORCE = f"status not in ('dead', '{ERASED}') and old_id is not null"
"""Whether a request is in force, and no erasure has redacted it."""


def linking_requests(log: DataFrame) -> DataFrame:
    """Return the requests that tell which ids are one person's, also dead ones.

    Args:
        log: As `requests_of` returns it.
    """
    return log.where(f"old_id is not null and status <> '{ERASED}' and `column` = '{PERSON}'")
