"""The log of a Delta table, read without Spark in milliseconds; and what makes commits idempotent and fenced.

The app id (`txnAppId`) names lake, stream and commit; `txnVersion` is the batch id. A table's history does not contain
them, so the commit also stores them as its user metadata.

A property change conflicts with every commit that began before it. So after a claim, no commit of a former holder can
succeed. Tokens grow from holder to holder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction
from deltalake.exceptions import TableNotFoundError
from pyarrow.fs import FileSystem

from lake_assets.base.failpoints import CLAIM_CHECKED, reach
from lake_assets.coordination import check_claim
from lake_assets.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MILLISECONDS = 1000


@dataclass(frozen=True)
class Commit:
    """One commit of a Delta table.

    Attributes:
        metrics: Delta's operation metrics by name, such as `numOutputRows`.
        operation: Delta's operation, such as `MERGE`.
        mark: User metadata that names the batch, as `idempotent.mark` formats it; None without user metadata.
    """

    version: int
    committed_at: datetime
    metrics: Mapping[str, str]
    operation: str = ""
    mark: str | None = None


def file_system(location: str) -> tuple[FileSystem, str]:
    """Return the file system of a table's address, and the path of its folder there. Names may have blanks."""
    found: tuple[FileSystem, str] = FileSystem.from_uri(quote(location, safe=":/%"))
    return found


def open_table(location: str, version: int | None = None) -> DeltaTable:
    """Open a Delta table at a version.

    Args:
        version: Version to open; None for the newest.

    Raises:
        UsageError: There is no Delta table at this location.
    """
    try:
        return DeltaTable(location, version)
    except TableNotFoundError:
        raise UsageError(
            f"There is no Delta table at {location}.",
            remedy="Create the lake's tables: `lake engagement init LAKE`.",
        ) from None


def read_rows(
    table: DeltaTable, columns: Sequence[str] = (), filters: Sequence[tuple[str, str, object]] = ()
) -> pa.Table:
    """Return rows of a table, in memory.

    Not by `to_pyarrow_table`: threads of Arrow, which call Python for each file, may still run when a short command
    exits, and then abort it.

    Args:
        columns: Empty for all columns.
        filters: Each a column, an operator of SQL, and a text, a number, or a list of these; all must hold.
    """
    names = ", ".join(f'"{name}"' for name in columns) or "*"
    where = " AND ".join(f'"{name}" {operator} {sql_literal(value)}' for name, operator, value in filters) or "true"
    query = QueryBuilder().register("t", table).execute(f"SELECT {names} FROM t WHERE {where}")
    rows = pa.table(query.read_all())
    schema = pa.schema(table.schema().to_arrow())
    return rows.cast(pa.schema([schema.field(name) for name in rows.column_names]))


def sql_literal(value: object) -> str:
    """Return a text, a number or a list of these in SQL, as delta-rs reads it."""
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(sql_literal, value))})"
    return str(value) if isinstance(value, int) else "'{}'".format(str(value).replace("'", "''"))


def is_table(location: str) -> bool:
    """Return whether there is a Delta table at a location."""
    return bool(DeltaTable.is_deltatable(location))


def read_commits(location: str, *, since: int = -1) -> list[Commit]:
    """Return the commits after a version, newest first, as far back as the log reaches.

    Args:
        since: Version before the first commit to return; -1 for all commits.
    """
    table = open_table(location)
    entries = table.history(limit=table.version() - since)
    return [_commit(entry) for entry in entries]


def _commit(entry: Mapping[str, Any]) -> Commit:
    return Commit(
        version=int(entry["version"]),
        committed_at=datetime.fromtimestamp(entry["timestamp"] / MILLISECONDS, UTC),
        metrics=entry.get("operationMetrics", {}),
        operation=entry.get("operation", ""),
        mark=entry.get("userMetadata"),
    )


_CONF = "spark.databricks.delta."


def mark(app_id: str, batch_id: int) -> str:
    """Return the user metadata of a batch's commit."""
    return f"{app_id}:{batch_id}"


def parse_mark(mark: str | None) -> tuple[str, int]:
    """Return the app id and the batch id of a commit's user metadata; ("", 0) if it is not a `mark`."""
    app_id, _, batch_id = (mark or "").rpartition(":")
    if not batch_id.isdecimal():
        return "", 0
    return app_id, int(batch_id)


def write_options(app_id: str, batch_id: int) -> dict[str, str]:
    """Return the options of a DataFrame write. They apply to that write only."""
    return {
        "txnAppId": app_id,
        "txnVersion": str(batch_id),
        "userMetadata": mark(app_id, batch_id),
    }


def commit_properties(app_id: str, batch_id: int) -> CommitProperties:
    """Return the properties of a commit that delta-rs makes. It does not skip a repeated id as Spark does."""
    return CommitProperties(
        custom_metadata={"userMetadata": mark(app_id, batch_id)},
        app_transactions=[Transaction(app_id, batch_id)],
    )


@contextmanager
def batch_statement(spark: SparkSession, app_id: str, batch_id: int) -> Iterator[None]:
    """Run one SQL statement as a commit of the batch.

    The ids stand in the session's configuration, and would make Delta skip the next statement. So they are always
    removed on exit.
    """
    conf = {
        f"{_CONF}write.txnAppId": app_id,
        f"{_CONF}write.txnVersion": str(batch_id),
        f"{_CONF}commitInfo.userMetadata": mark(app_id, batch_id),
    }
    try:
        for name, value in conf.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name in conf:
            spark.conf.unset(name)


TOKEN_PROPERTY = "coordinator.epoch"
"""Property of the engagement table: the token of the last holder that claimed it."""


@dataclass(frozen=True)
class Claims:
    """Reads and writes the fencing token of one lake.

    Attributes:
        location: Address of the engagement table.
        identifier: Name of the engagement table in SQL.
    """

    location: str
    identifier: str

    def token(self, version: int | None = None) -> int | None:
        """Return the token at a version of the table.

        Args:
            version: Version to read; None for the newest.

        Returns:
            The token; None if nobody had claimed the table.
        """
        properties = open_table(self.location, version).metadata().configuration
        found = properties.get(TOKEN_PROPERTY)
        return None if found is None else int(found)

    def check(self, token: int) -> None:
        """Check that no later holder has claimed the table.

        Raises:
            CoordinationError: The table has a greater token.
        """
        check_claim(self.location, self.token(), token)

    def claim(self, spark: SparkSession, token: int) -> None:
        """Write the token of the lock holder. Commits that began before can no longer succeed.

        Raises:
            CoordinationError: A later holder's token is there, or was written during this call; it is restored.
        """
        version = open_table(self.location).version()
        self.check(token)
        reach(CLAIM_CHECKED)
        greatest = self._write_greatest(spark, token, since=version)
        check_claim(self.location, greatest, token)

    def lower(self, spark: SparkSession, token: int) -> bool:
        """Replace a greater token, which another ZooKeeper has issued.

        Nobody else may work on the lake: a holder of a lock in the other ZooKeeper would not be refused.

        Returns:
            Whether a greater token was replaced.
        """
        found = self.token()
        if found is None or found <= token:
            return False
        self._write(spark, token)
        return True

    def _write(self, spark: SparkSession, token: int) -> None:
        spark.sql(f"ALTER TABLE {self.identifier} SET TBLPROPERTIES ('{TOKEN_PROPERTY}' = '{int(token)}')")

    def _write_greatest(self, spark: SparkSession, token: int, *, since: int) -> int:
        """Write a token; if a greater one was written after version `since`, write that one again. Return the last."""
        self._write(spark, token)
        newest = open_table(self.location).version()
        tokens = [self.token(version) or 0 for version in range(since + 1, newest + 1)]
        greatest = max(tokens)
        if tokens[-1] == greatest:
            return greatest
        return self._write_greatest(spark, greatest, since=since)
