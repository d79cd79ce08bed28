"""The tables that a pipeline reads, and whose rows can be erased from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lake_assets.incremental.declaration.names import IDENTIFIER, TABLE, require_columns, require_name

LANDED = "landed_at"
"""The column that says when a row landed; of raw tables always, of targets if they take it over."""

LANDING_COLUMNS: Mapping[str, str] = {
    LANDED: "timestamptz",
    "landing_date": "date",
    "landing_hour": "int",
    "batch_id": "string",
}
"""What every raw table carries behind its own columns, and (but for landed_at) is partitioned by."""


@dataclass(frozen=True)
class Rule:
    """Rows for which the SQL condition `where` is true go to quarantine, for this reason."""

    reason: str
    where: str


@dataclass(frozen=True)
class Source:
    """An Iceberg table that a target is built from.

    time_column: the row's own time; what event hours are counted by.
    key: rows with equal (key, time) are deliveries of one row, and count once: the least (landed_at, batch_id, row
        hash) wins. None: the rows are unique already (a target of this platform is).
    rules: rows that are set aside in quarantine, beside those with a null key or an absurd time.
    """

    table: str
    time_column: str
    key: str | None = None
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        require_name(TABLE, self.table, "The source table")
        require_name(IDENTIFIER, self.time_column, f"The time column of {self.table}")
        if self.key is not None:
            require_name(IDENTIFIER, self.key, f"The key of {self.table}")

    @property
    def trusted(self) -> bool:
        """Whether its rows are unique and were judged before, as those of a target are: none is set aside."""
        return self.key is None and not self.rules


@dataclass(frozen=True)
class RawTable:
    """A table that somebody else lands: `columns` (name → Iceberg type) plus `LANDING_COLUMNS`."""

    table: str
    columns: Mapping[str, str]
    time_column: str
    description: str = ""

    def __post_init__(self) -> None:
        require_name(TABLE, self.table, "The raw table")
        require_columns(self.table, self.columns)

    @property
    def all_columns(self) -> dict[str, str]:
        return {**self.columns, **LANDING_COLUMNS}


@dataclass(frozen=True)
class Subject:
    """Somebody whose rows can be erased, told by an id.

    columns: the string columns that hold such an id, in whatever raw tables and targets they are.
    """

    name: str
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        require_name(IDENTIFIER, self.name, "The subject")
        for column in self.columns:
            require_name(IDENTIFIER, column, f"A column of the subject {self.name}")

    def columns_of(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Those of a table's columns that hold an id of this subject."""
        return tuple(c for c in columns if c in self.columns)
