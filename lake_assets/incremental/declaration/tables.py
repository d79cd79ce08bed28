"""The tables that a pipeline reads, and the subjects whose rows can be erased from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, get_args

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration.names import (
    IDENTIFIER,
    parse_duration,
    require_column,
    require_columns,
    require_described,
    require_name,
    require_renamed,
    require_table,
    require_topic,
)

LANDED = "landed_at"
"""The column of the time when a row landed, in the raw tables that are declared with columns."""

BATCH = "batch_id"
"""The column of the batch that a row landed with, likewise."""

LANDING_COLUMNS: Mapping[str, str] = {
    LANDED: "timestamptz",
    "landing_date": "date",
    "landing_hour": "int",
    BATCH: "string",
}
"""The columns that every raw table has after its own. It is partitioned by all of them but landed_at."""

LANDING_DESCRIPTIONS: Mapping[str, str] = {
    LANDED: "When the row landed in the raw table.",
    "landing_date": "Day of landed_at, UTC.",
    "landing_hour": "Hour of landed_at, 0 to 23, UTC.",
    BATCH: "The batch that the row landed with.",
}
"""What is in each of these columns."""


@dataclass(frozen=True)
class Rule:
    """Rows for which the SQL condition `where` is true are quarantined, with this reason."""

    reason: str
    where: str


Keep = Literal["first", "last", "all"]
"""Which rows of one key count."""


@dataclass(frozen=True)
class Source:
    """An Iceberg table that a target is built from.

    Attributes:
        table: The table, `namespace.name`.
        time_column: The column of the row's own time, which event hours are counted by.
        key: Rows with equal (key, time) are deliveries of one row and count once: the least (landing, batch_id, row
            hash) wins. None: the rows are unique already, as those of a target are.
        rules: Rows to quarantine, besides those with a null key or an impossible time.
        keep: `"first"`: as `key` says. `"last"`: rows of one key are versions of one row, whatever their time, and the
            greatest (order_by, landing, batch_id, row hash) counts. `"all"`: each version counts, once for each
            (key, order_by), and the transform receives the versions of all times; for stateful targets.
        order_by: The column, or the columns, that order the versions of a key. Rows without one of them are
            quarantined, except deletions with `keep="last"`: such a deletion removes what landed until it landed.
        deleted: A SQL condition on the columns. A version for which it is true deletes the key: rows of the key count
            again from a later version on. Such a row needs a key, but no time, and no rule applies to it.
        landed_column: The column of the time when a row landed. Rows without it, and rows dated over an hour after it,
            are quarantined. None: that of the raw table, which is `landed_at` if it is declared with columns; no other
            column is taken for it, whatever its name. A table with `landed_column="landed_at"` is laid out as these
            are: its `landing_date`, `landing_hour` and `batch_id`, if it has them, say the same.
    """

    table: str
    time_column: str
    key: str | None = None
    rules: tuple[Rule, ...] = ()
    keep: Keep = "first"
    order_by: str | Sequence[str] | None = None
    deleted: str | None = None
    landed_column: str | None = None

    def __post_init__(self) -> None:
        require_table(self.table, "The source table")
        if self.landed_column is not None:
            require_column(self.landed_column, f"The landed_column of {self.table}")
        require_column(self.time_column, f"The time column of {self.table}")
        if self.key is not None:
            require_column(self.key, f"The key of {self.table}")
        for column in self.order_columns:
            require_column(column, f"The order of {self.table}")
        if not all(isinstance(rule, Rule) for rule in self.rules):
            raise ConfigurationError(
                f"The rules of {self.table} are {self.rules!r}.",
                remedy='Write rules=(Rule("amount is negative", "amount < 0"),).',
            )
        self._check_versions()

    @property
    def trusted(self) -> bool:
        """Whether its rows are unique and validated, as those of a target are: none is quarantined."""
        return self.key is None and not self.rules and not self.has_versions

    @property
    def arrival_columns(self) -> tuple[str, ...]:
        """The columns that rows of one key and time, or order, are ordered by, as far as the table has them."""
        if self.landed_column is None:
            return ()
        return (LANDED, BATCH) if self.landed_column == LANDED else (self.landed_column,)

    @property
    def has_versions(self) -> bool:
        """Whether rows of one key are versions of one row, whatever their time."""
        return self.keep != "first"

    @property
    def order_columns(self) -> tuple[str, ...]:
        """The columns that order the versions of a key, the most significant first."""
        if self.order_by is None:
            return ()
        return (self.order_by,) if isinstance(self.order_by, str) else tuple(self.order_by)

    @property
    def named_columns(self) -> tuple[str, ...]:
        """The columns that a row needs besides its time: of its key, and of its order."""
        return (() if self.key is None else (self.key,)) + self.order_columns

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns that are equal in the versions of one row, of which one counts."""
        assert self.key is not None
        return (self.key, *self.order_columns) if self.keep == "all" else (self.key,)

    @property
    def takes_unordered_deletions(self) -> bool:
        """Whether a deletion may lack its order: it then removes the versions of its key that landed until it did."""
        return self.keep == "last" and self.deleted is not None and self.landed_column is not None

    def _check_versions(self) -> None:
        if self.keep not in get_args(Keep):
            raise ConfigurationError(
                f"The source {self.table} has keep={self.keep!r}.", remedy="Use 'first', 'last' or 'all'."
            )
        if self.has_versions and not self.order_columns:
            raise ConfigurationError(
                f"The source {self.table} has keep={self.keep!r}, but no order_by.",
                remedy='Name the columns that order the versions of a key: order_by="updated_at".',
            )
        if not self.has_versions and (self.order_columns or self.deleted is not None):
            raise ConfigurationError(
                f"The source {self.table} has order_by or deleted, but keeps the first row of a key.",
                remedy="Add keep='last'; or remove order_by= and deleted=.",
            )


@dataclass(frozen=True)
class Topic:
    """The Kafka topic that a raw table is landed from.

    Attributes:
        id_column: The column with the id of the person or account of a message. A message without it is a dead letter.
            If the table has columns of a subject, it is one of them.
        name: The topic, without any prefix; None for the name of the raw table after `LAKE_LANDING_PREFIX`.
        retention_hours: Time, in hours, for which Kafka keeps messages after both zones have landed them. None:
            `LAKE_LANDING_RETENTION_HOURS` applies to topics that `lake landing init` creates; for other topics, the
            retention that Kafka is configured with.
    """

    id_column: str
    name: str | None = None
    retention_hours: int | None = None

    def __post_init__(self) -> None:
        if self.retention_hours is not None and self.retention_hours < 1:
            raise ConfigurationError(
                f"retention_hours of a topic is {self.retention_hours}.",
                remedy="Name the hours for which Kafka keeps landed messages, such as 168, or leave it out.",
            )
        require_name(IDENTIFIER, self.id_column, "The id column of a topic")
        if self.name is not None:
            require_topic(self.name)


VALID_THROUGH = "valid-through"
"""`complete_after` of a table that the Kafka Connect sink of Iceberg writes."""


@dataclass(frozen=True)
class RawTable:
    """A table that another program writes, or that is landed from Kafka.

    Attributes:
        table: The table, `namespace.name`.
        columns: Column → Iceberg type, without `LANDING_COLUMNS`. Left out for a table that exists: it is read as it
            is, needs none of the `LANDING_COLUMNS`, and is never created or altered.
        time_column: The column of the row's own time: a timestamptz, or a timestamp, which is taken as UTC, in a table
            that exists.
        complete_after: An hour is complete once the table has an event that is at least this much later than the end of
            the hour, such as `30 minutes`; or `valid-through`: as the Kafka Connect sink of Iceberg says in its
            snapshots. None: only the table's property `lake.complete-through` counts.
        description: Shown in Dagster.
        descriptions: Column → what is in it, for people; without `LANDING_COLUMNS`. Columns may be left out.
        landed_column: The column of the time when a row landed, of a table that exists. None: it has none. Of other
            tables it is `landed_at`.
        renamed_from: Column → its former name, under which the table may still have it: `lake migrate` renames it.
        feed: The Kafka topic that the table is landed from. False: it is not landed from Kafka. None: it is if it has
            the column of a subject.
    """

    table: str
    columns: Mapping[str, str] = field(default_factory=dict)
    time_column: str = ""
    description: str = ""
    descriptions: Mapping[str, str] = field(default_factory=dict)
    complete_after: str | None = None
    feed: Topic | Literal[False] | None = None
    landed_column: str | None = None
    renamed_from: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_table(self.table, "The raw table")
        if not isinstance(self.columns, Mapping):
            raise ConfigurationError(
                f"columns= of {self.table} is {self.columns!r}, which is no dict.",
                remedy='Write columns={"event_ts": "timestamptz", ...}, or leave it out for a table that exists.',
            )
        if not self.time_column:
            raise ConfigurationError(
                f"{self.table} has no time column.",
                remedy='Name the column of the rows\' own time: time_column="event_ts".',
            )
        require_column(self.time_column, f"The time column of {self.table}")
        require_columns(self.table, self.columns)
        require_renamed(self.table, self.columns, self.renamed_from)
        self._check_landing()
        if not self.exists_already:
            object.__setattr__(self, "landed_column", LANDED)
            require_described(self.table, self.columns, self.descriptions)
            found = self.all_columns.get(self.time_column)
            if found is None:
                raise ConfigurationError(
                    f"{self.table} has the time column {self.time_column!r}, which is not among its columns.",
                    remedy=f"Add it to columns=, or name one of: {', '.join(self.columns)}.",
                )
            if found != "timestamptz":
                raise ConfigurationError(
                    f"{self.table} has the time column {self.time_column!r}, which is {found}.",
                    remedy="Declare it as timestamptz, or name another column as time_column=.",
                )
        self._check_feed()
        if self.complete_after not in (None, VALID_THROUGH):
            parse_duration(str(self.complete_after), where=f"complete_after= of {self.table}")

    @property
    def exists_already(self) -> bool:
        """Whether another program has created the table: no columns are declared, and those of the table count."""
        return not self.columns

    @property
    def lag(self) -> timedelta | None:
        """How much later than the end of a complete hour an event must be, as declared by `complete_after`."""
        if self.complete_after in (None, VALID_THROUGH):
            return None
        return parse_duration(str(self.complete_after), where=f"complete_after= of {self.table}")

    @property
    def all_columns(self) -> dict[str, str]:
        """Column → Iceberg type, with `LANDING_COLUMNS`; empty for a table that exists: only the catalog knows them."""
        if self.exists_already:
            return {}
        return {**self.columns, **LANDING_COLUMNS}

    @property
    def all_descriptions(self) -> dict[str, str]:
        """Column → what is in it, with `LANDING_COLUMNS`."""
        if self.exists_already:
            return dict(self.descriptions)
        return {**self.descriptions, **LANDING_DESCRIPTIONS}

    def _check_landing(self) -> None:
        if self.landed_column is not None:
            require_column(self.landed_column, f"The landed_column of {self.table}")
        taken = [column for column in self.columns if column.casefold() in LANDING_COLUMNS]
        if taken:
            raise ConfigurationError(
                f"{self.table} declares {' and '.join(taken)}, which every raw table has: it says how a row landed.",
                remedy=f"Rename the column in columns= and in the files, such as own_{taken[0]}. A table that another"
                " program has made may have any columns: declare it without columns=.",
            )
        if not self.exists_already and self.landed_column not in (None, LANDED):
            raise ConfigurationError(
                f"{self.table} has landed_column={self.landed_column!r}, but declares columns: it has {LANDED}.",
                remedy="Leave landed_column= out, or leave columns= out for a table that exists.",
            )

    def _check_feed(self) -> None:
        if self.feed is None or self.feed is False:
            return
        if not isinstance(self.feed, Topic):
            raise ConfigurationError(
                f"feed= of {self.table} is {self.feed!r}, which is no Topic.",
                remedy='Write feed=Topic("id_column"), or feed=Topic("id_column", name="the.topic").',
            )
        if self.feed.id_column not in self.columns:
            raise ConfigurationError(
                f"The feed of {self.table} has the id column {self.feed.id_column!r}, which is not among its columns.",
                remedy=f"Add it to columns=, or name one of: {', '.join(self.columns)}.",
            )


@dataclass(frozen=True)
class Subject:
    """A kind of person or account whose rows can be erased by an id.

    Attributes:
        name: The subject's name.
        columns: The columns that contain such an id, in any raw table or target: string, int, long or decimal.
    """

    name: str
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        require_name(IDENTIFIER, self.name, "The subject")
        for column in self.columns:
            require_name(IDENTIFIER, column, f"A column of the subject {self.name}")

    def columns_of(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Return those of a table's columns that contain an id of this subject."""
        return tuple(c for c in columns if c in self.columns)
