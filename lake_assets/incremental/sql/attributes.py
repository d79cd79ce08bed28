"""The attributes of the YAML declarations, as their authors write them. They say which are there and of which kind."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

INCREMENTAL_TABLE = "lake_assets.IncrementalTable"
SOURCE_TABLE = "lake_assets.SourceTable"
"""The `type:` of a table that is built, and of a raw table that another program writes."""


class Attributes(BaseModel):
    """Attributes of YAML. An unknown one is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceAttributes(Attributes):
    """A table that the SQL reads."""

    table: str = Field(description="The table, namespace.name.")
    time_column: str = Field(description="The column of the row's own time; a timestamptz.")
    key: str | None = Field(None, description="The column that, with the time, identifies a row of a raw table.")
    landed_column: str | None = Field(
        None, description="The column of the time when a row landed, of a table that another program has made."
    )
    rules: dict[str, str] = Field({}, description="Reason → SQL condition. Rows for which it is true are quarantined.")
    name: str | None = Field(None, description="Its name in the SQL; default: the table without its namespace.")
    keep: Literal["first", "last", "all"] = Field("first", description="Which rows of one key count.")
    order_by: str | list[str] | None = Field(None, description="The columns that order the versions of a key.")
    deleted: str | None = Field(None, description="SQL condition. A version for which it is true deletes the key.")
    columns: dict[str, str] = Field(
        {}, description="Column → Iceberg type. Declares the raw table here, without its four landing columns."
    )
    renamed_from: dict[str, str] = Field({}, description="Column → its former name, which lake migrate renames.")
    description: str = Field("", description="Of the raw table, if columns declare it here.")

    @property
    def sql_name(self) -> str:
        """The name of its rows in the SQL."""
        return self.name or self.table.rpartition(".")[2]


class LateAttributes(Attributes):
    """Which hours of a table wait if late rows change them, and how long."""

    older_than: str = Field(description="An hour may wait if it ended so long before the last complete one: 6 hours.")
    at_most: str = Field(description="The longest time that late rows wait: 4 hours.")
    or_rows: int | None = Field(None, description="The number of waiting rows at which they are built earlier.")


class TableAttributes(Attributes):
    """A table that is built by SQL: the attributes of `lake_assets.IncrementalTable`."""

    table: str = Field(description="The table, namespace.name.")
    mode: str | dict[str, dict[str, Any] | None] = Field(
        description="stateless, stateful or sequential; with options: {stateful: {chunk_hours: 24}}."
    )
    sources: list[SourceAttributes] = Field(description="The tables that the SQL reads, the driving one first.")
    key: str | list[str] = Field(description="The columns that, with the time, identify a row.")
    time_column: str = Field(description="The column of the event time; a timestamptz.")
    sql: str = Field(description="The file of the query, ending in .sql, relative to this file; or the query itself.")
    audits: list[str | dict[str, Any]] = Field([], description="Checks of what is built, before it is published.")
    columns: dict[str, str] = Field(
        {}, description="Column → Iceberg type; only a table whose SQL reads `previous` needs it."
    )
    description: str = Field("", description="Shown in Dagster.")
    descriptions: dict[str, str] = Field({}, description="Column → what is in it.")
    owners: list[str] = Field([], description="Shown in Dagster: email addresses, or team:name.")
    grain: Literal["hour", "day"] = Field("hour", description="What one partition contains.")
    timezone: str = Field("UTC", description="The IANA time zone of the days, if the grain is day.")
    quarantine_limit: int = Field(100, description="A check fails if a session quarantines more rows.")
    max_delay_minutes: int | None = Field(None, description="Minutes after which an incomplete hour or day is late.")
    late: LateAttributes | None = Field(None, description="Hours that wait if late rows change them; default: none.")
    renamed_from: dict[str, str] = Field({}, description="Column → its former name, which lake migrate renames.")
    subjects: dict[str, list[str]] = Field({}, description="Subject of erasure → the columns that contain its id.")

    @property
    def name(self) -> str:
        """The table without its namespace."""
        return self.table.rpartition(".")[2]

    @property
    def mode_name(self) -> str:
        """The mode without its options."""
        return self.mode if isinstance(self.mode, str) else next(iter(self.mode), "")


class SourceTableAttributes(Attributes):
    """A raw table that another program writes: the attributes of `lake_assets.SourceTable`."""

    table: str = Field(description="The table, namespace.name.")
    columns: dict[str, str] = Field(description="Column → Iceberg type, without the four landing columns.")
    renamed_from: dict[str, str] = Field({}, description="Column → its former name, which lake migrate renames.")
    time_column: str = Field(description="The column of the row's own time; a timestamptz.")
    description: str = Field("", description="Shown in Dagster.")
    descriptions: dict[str, str] = Field({}, description="Column → what is in it.")
    subjects: dict[str, list[str]] = Field({}, description="Subject of erasure → the columns that contain its id.")


ATTRIBUTES: dict[str, type[TableAttributes] | type[SourceTableAttributes]] = {
    INCREMENTAL_TABLE: TableAttributes,
    SOURCE_TABLE: SourceTableAttributes,
}
"""Type of a declaration → its attributes."""
