"""Reading the log of a Delta table without Spark, which takes milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from lake_assets.errors import UsageError

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
