"""The Delta tables of a lake: what they hold, how they are created, and what their logs tell.

Tables have a place, not a name: a lake is a folder, and any Spark, or a program without Spark, reads it there. They are
created through Spark; their logs are read without it, which takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from lake_assets.base.failpoints import CLAIM_CHECKED, reach
from lake_assets.coordination import check_claim
from lake_assets.engagement.model import idempotent
from lake_assets.engagement.model.checkpoint import CheckpointStore, opened
from lake_assets.engagement.model.lake import EngagementLake
from lake_assets.engagement.requests.retention_rules import check_days
from lake_assets.incremental.metadata.erasure_registry import KeyedHash, erasure_key
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from deltalake.table import TableMerger
    from pyspark.sql import DataFrame, SparkSession

ENGAGEMENT = "engagement"
MUTATION_REQUEST = "mutation_request"
NOTIFICATION = "notification"
DEAD_LETTER = "dead_letter"
ERASURE = "erasure"
ORG = "org"
ENGAGEMENT_METRICS = "engagement_metrics"
CHECKPOINT = "checkpoint"

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
"""Of every lake; behind them stands the struct `engagement` with the fields of the lake."""

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
    "engagement_date": "date",
    "insert_record": "string",
    "executed_at": "timestamp",
    "partition": "int",
    "offset": "bigint",
    "attempts": "int",
    "status": "string",
    "first_date": "date",
    "last_date": "date",
    "batch_id": "bigint",
}
"""A log: each batch appends the requests that it tries, so the row with the greatest batch_id counts.

insert_record: the object as the message had it, in JSON. first_date, last_date: of the rows of old_id when the batch
began, both included; null if there were none. Of a request that names somebody erased there may be left that a record
of somebody else was put in place: then old_id and new_id are null, and of the record there is its engagement_id.
"""

ERASURE_COLUMNS: Mapping[str, str] = {
    "org_id": "string",
    "id_hash": "string",
    "person_hash": "string",
    "key_id": "string",
    "erased_until": "timestamp",
    "batch_id": "bigint",
}
"""Who was erased, under each id, as a keyed hash; until when, inclusive; and by which batch. No id is kept.

person_hash: that of the least id of the person, so ids that were erased as one person's are known to be.
"""

ORG_COLUMNS: Mapping[str, str] = {"org_id": "string", "ttl_days": "int"}
ENGAGEMENT_METRICS_COLUMNS: Mapping[str, str] = {
    "org_id": "string",
    "engagement_date": "date",
    "rep_id": "string",
    "cadence_id": "string",
    "template_id": "string",
    **dict.fromkeys(("sent", "opened", "replied", "bounced"), "bigint"),
    **dict.fromkeys(("calls", "meaningful_contact", "not_interested", "left_voicemail"), "bigint"),
    **dict.fromkeys(("open_rate", "reply_rate", "bounce_rate"), "double"),
    **dict.fromkeys(("meaningful_contact_rate", "not_interested_rate", "left_voicemail_rate"), "double"),
}

_ENGAGEMENT_PROPERTIES = {
    "delta.enableChangeDataFeed": "true",
    "delta.enableDeletionVectors": "true",
    # The log keeps least and greatest values: of no column that tells who somebody is.
    "delta.dataSkippingStatsColumns": "engagement_date",
}
_MUTATION_REQUEST_PROPERTIES = {"delta.dataSkippingStatsColumns": "batch_id"}
_NO_STATISTICS = {"delta.dataSkippingNumIndexedCols": "0"}


EPOCH = "coordinator.epoch"
"""Property of the engagement table: the token of the last holder that claimed it."""


@dataclass(frozen=True)
class Commit:
    """One commit of a table. metrics, operation: Delta's own, by their names: `numOutputRows`, ...; `MERGE`, ...

    mark: the batch that made it, as `idempotent.mark` has it; None if none did.
    """

    version: int
    committed_at: datetime
    metrics: Mapping[str, str]
    operation: str = ""
    mark: str | None = None


def folder(settings: Settings) -> str:
    """The folder of all lakes in the warehouse that the settings name, as an address."""
    return f"{settings.warehouse_address}/engagement"


def open_tables(settings: Settings, lake: EngagementLake) -> LakeTables:
    """The tables of a lake in the warehouse that the settings name. Nothing is created."""
    keyed = KeyedHash(partial(erasure_key, settings))
    return LakeTables(lake, folder(settings), keyed)


@dataclass(frozen=True)
class LakeTables:
    """The tables of one lake. root: the folder, as an address, that holds those of all lakes.

    keyed: what the ids of those erased are hashed with.
    """

    lake: EngagementLake
    root: str
    keyed: KeyedHash = field(default_factory=KeyedHash)

    def location(self, table: str) -> str:
        return f"{self.root}/{self.lake.name}/{table}"

    def identifier(self, table: str) -> str:
        """How a statement of SQL names a table."""
        return f"delta.`{self.location(table).replace('`', '``')}`"

    @property
    def checkpoints(self) -> CheckpointStore:
        return CheckpointStore(self.location(CHECKPOINT))

    def exist(self) -> bool:
        """Whether all tables were created: the checkpoint's is the last."""
        return self.checkpoints.exists()

    def create(self, spark: SparkSession) -> None:
        """Create the tables that are not there yet."""
        fields = ", ".join(f"{name}: {kind}" for name, kind in self.lake.fields.items())
        engagement = {**ENGAGEMENT_COLUMNS, "engagement": f"struct<{fields}>"}
        by_org = ("org_id",)
        self._create(spark, ENGAGEMENT, engagement, by_org, _ENGAGEMENT_PROPERTIES)
        self._create(spark, MUTATION_REQUEST, MUTATION_REQUEST_COLUMNS, (), _MUTATION_REQUEST_PROPERTIES)
        self._create(spark, NOTIFICATION, NOTIFICATION_COLUMNS, (*by_org, "ingestion_hour"), {})
        self._create(spark, DEAD_LETTER, DEAD_LETTER_COLUMNS, (), _NO_STATISTICS)
        self._create(spark, ERASURE, ERASURE_COLUMNS, (), _NO_STATISTICS)
        self._create(spark, ORG, ORG_COLUMNS, (), {})
        self._create(spark, ENGAGEMENT_METRICS, ENGAGEMENT_METRICS_COLUMNS, by_org, {})
        self.checkpoints.create()

    def read(self, spark: SparkSession, table: str, version: int | None = None) -> DataFrame:
        """A table as it stands, or stood at a version."""
        options = {} if version is None else {"versionAsOf": str(version)}
        return spark.read.format("delta").options(**options).load(self.location(table))

    def version(self, table: str) -> int:
        """The newest version of a table."""
        return int(self._log(table).version())

    def last_batch(self, table: str, app_id: str) -> int:
        """The last batch that was committed to a table under a transaction id; 0 if none was."""
        return int(self._log(table).transaction_version(app_id) or 0)

    def claim(self, spark: SparkSession, token: int) -> None:
        """Write the coordinator's token to the engagement table: no commit that began before can be made any more.

        `ClaimRefused` if a later holder's token is there, or came between the look and the write: then it is put back.
        """
        read = self.version(ENGAGEMENT)
        self.check_claimed(token)
        reach(CLAIM_CHECKED)
        check_claim(self.location(ENGAGEMENT), self._put_epoch(spark, token, since=read), token)

    def reclaim(self, spark: SparkSession, token: int) -> bool:
        """Write a token over a greater one, which is of another ZooKeeper: whether there was one.

        Nobody else may be at work on the lake: whoever still holds the other lock would not be refused.
        """
        found = self.epoch()
        if found is None or found <= token:
            return False
        self._write_epoch(spark, token)
        return True

    def _write_epoch(self, spark: SparkSession, token: int) -> None:
        spark.sql(f"ALTER TABLE {self.identifier(ENGAGEMENT)} SET TBLPROPERTIES ('{EPOCH}' = '{int(token)}')")

    def _put_epoch(self, spark: SparkSession, token: int, *, since: int) -> int:
        """Write a token, and again the greatest that was written after a version, if that is another; the greatest."""
        self._write_epoch(spark, token)
        found = [self.epoch(version) or 0 for version in range(since + 1, self.version(ENGAGEMENT) + 1)]
        latest = max(found)
        return latest if found[-1] == latest else self._put_epoch(spark, latest, since=since)

    def check_claimed(self, token: int) -> None:
        """Return while no later holder's token is on the engagement table; else `ClaimRefused`."""
        check_claim(self.location(ENGAGEMENT), self.epoch(), token)

    def epoch(self, version: int | None = None) -> int | None:
        """The token on the engagement table, as it stands or stood at a version; None if nobody has claimed it."""
        found = opened(self.location(ENGAGEMENT), version).metadata().configuration.get(EPOCH)
        return None if found is None else int(found)

    def append(self, table: str, rows: DataFrame, *, app_id: str, batch_id: int) -> None:
        """Append rows as a batch: Delta does nothing if it has seen this batch, or a later one, under the id."""
        writer = rows.write.format("delta").mode("append")
        writer.options(**idempotent.options(app_id, batch_id)).save(self.location(table))

    def commit_of(self, table: str, *, app_id: str, batch_id: int, since: int) -> Commit | None:
        """The commit that a batch made; None if it made none. since: a version before it."""
        mark = idempotent.mark(app_id, batch_id)
        return next((commit for commit in self.history(table, since=since) if commit.mark == mark), None)

    def history(self, table: str, *, since: int = -1) -> list[Commit]:
        """The commits after a version that the log still tells of, newest first."""
        log = self._log(table)
        return [_commit(entry) for entry in log.history(limit=log.version() - since)]

    def commit_at(self, table: str, version: int) -> Commit:
        """The commit that made a version of a table."""
        return next(commit for commit in self.history(table, since=version - 1) if commit.version == version)

    def changes(self, spark: SparkSession, table: str, version: int, last: int | None = None) -> DataFrame:
        """The rows that one commit changed, with `_change_type`, of the change data feed.

        last: those of all commits from `version` to this one, both included.
        """
        end = version if last is None else last
        only = {"readChangeFeed": "true", "startingVersion": str(version), "endingVersion": str(end)}
        return spark.read.format("delta").options(**only).load(self.location(table))

    def orgs(self) -> list[str]:
        """The orgs that are known, sorted."""
        return sorted(self._log(ORG).to_pyarrow_table(columns=["org_id"])["org_id"].to_pylist())

    def register_orgs(self, ttl_days: Mapping[str, int | None]) -> None:
        """Make orgs known, or change how long their engagements are kept, in days; None: without end.

        It holds for each `ttl` request that says no days. `UsageError` for days beyond `TTL_DAYS`.
        """
        for org, days in ttl_days.items():
            if days is not None:
                check_days(org, days)
        self._given(ttl_days).when_matched_update_all().when_not_matched_insert_all().execute()

    def add_orgs(self, orgs: Iterable[str]) -> None:
        """Make orgs known; for those that are, nothing changes."""
        self._given(dict.fromkeys(orgs)).when_not_matched_insert_all().execute()

    def _given(self, ttl_days: Mapping[str, int | None]) -> TableMerger:
        import pyarrow as pa

        schema = pa.schema([("org_id", pa.string()), ("ttl_days", pa.int32())])
        rows = [{"org_id": org, "ttl_days": days} for org, days in ttl_days.items()]
        return self._log(ORG).merge(
            pa.Table.from_pylist(rows, schema=schema),
            predicate="known.org_id = given.org_id",
            source_alias="given",
            target_alias="known",
        )

    def _log(self, table: str) -> DeltaTable:
        return opened(self.location(table))

    def _create(
        self,
        spark: SparkSession,
        table: str,
        columns: Mapping[str, str],
        partitions: tuple[str, ...],
        properties: Mapping[str, str],
    ) -> None:
        listed = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
        by = f"PARTITIONED BY ({', '.join(partitions)})" if partitions else ""
        told = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        with_properties = f"TBLPROPERTIES ({told})" if told else ""
        spark.sql(f"CREATE TABLE IF NOT EXISTS {self.identifier(table)} ({listed}) USING delta {by} {with_properties}")


def applied(log: DataFrame) -> DataFrame:
    """Those requests of `mutation_request` that were carried out, and not forgotten since."""
    return log.where("status = 'applied' and old_id is not null")


def _commit(entry: Mapping[str, Any]) -> Commit:
    at = datetime.fromtimestamp(entry["timestamp"] / 1000, UTC)
    told = entry.get("operationMetrics", {}), entry.get("operation", ""), entry.get("userMetadata")
    return Commit(int(entry["version"]), at, *told)
