"""The Delta tables of a lake: where they are, how they are created, read and appended to.

Tables have an address, not a catalog name: a lake is a folder that any Spark, or a program without Spark, can read.
Spark creates them; their logs are read without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import QueryBuilder

from lake_assets.engagement.model import idempotent
from lake_assets.engagement.model.checkpoint import Batch, CheckpointStore
from lake_assets.engagement.model.claims import Claims
from lake_assets.engagement.model.delta_log import Commit, is_table, open_table, read_commits, read_rows
from lake_assets.engagement.model.lake import EngagementLake
from lake_assets.engagement.model.table_schemas import (
    CHECKPOINT,
    DEAD_LETTER,
    ENGAGEMENT,
    ORG,
    SETTLED_REQUEST,
    create_statement,
    spark_tables,
)
from lake_assets.engagement.requests.identity import PERSON
from lake_assets.engagement.requests.retention_rules import check_ttl_days
from lake_assets.errors import UsageError
from lake_assets.incremental.engine.erasures import KeyedHash, erasure_key
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from deltalake.table import TableMerger
    from pyspark.sql import DataFrame, SparkSession

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
        """Create the tables that do not exist yet.

        The settled requests of a lake that exists are built from its log, by its next turn.
        """
        is_new = not self.exist()
        for schema in spark_tables(self.lake):
            if schema.name == SETTLED_REQUEST and not is_new:
                continue
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
        writer = writer.options(**idempotent.write_options(app_id, batch_id))
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

    def append_nothing(self, table: str, *, app_id: str, batch_id: int) -> None:
        """Commit no rows as a batch, so that Delta skips every other write of this batch.

        Nothing is committed if the table has seen this batch id or a greater one of the app id. If another process
        commits one meanwhile, delta-rs refuses the commit.
        """
        opened = open_table(self.location(table))
        if (opened.transaction_version(app_id) or 0) >= batch_id:
            return
        used = idempotent.commit_properties(app_id, batch_id)
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
        mark = idempotent.mark(app_id, batch_id)
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


IS_APPLIED = "status = 'applied' and old_id is not null"
"""Whether a request of the log, or a settled one, is applied, and no erasure has redacted it."""


def applied_requests(log: DataFrame) -> DataFrame:
    """Return the applied requests of the log or of settled ones, without those that an erasure has redacted."""
    return log.where(IS_APPLIED)


def linking_requests(log: DataFrame) -> DataFrame:
    """Return the requests that tell which ids are one person's, also pending and dead ones: each one, or attempt.

    Args:
        log: As `scoped` returns it.
    """
    return log.where(f"old_id is not null and `column` = '{PERSON}'")
