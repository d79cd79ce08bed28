"""The values of a target: the table that is built, what its transform receives, and its audits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from lake_assets.base.grain import DAY, HOUR, Grain
from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration.modes import Defer, Mode, Stateless
from lake_assets.incremental.declaration.served import Served
from lake_assets.incremental.declaration.tables import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEFAULT_QUARANTINE_LIMIT = 100
"""So many rows may be new to the quarantine in a session by default, or half of those it reads if that is more."""

MOST_QUARANTINED = 100_000
"""The most rows that a share of a session's rows may be: they are in memory together."""

VALID_TO = "valid_to"
"""Column that `SessionContext.versions` adds."""

RowsByHour = Callable[[Collection[int]], Mapping[int, int]]
"""Event hours → rows by hour, for those of the hours that have rows."""


@dataclass(frozen=True)
class SessionContext:
    """What a transform receives about its session.

    Attributes:
        session_id: The session.
        hours: The event hours to build, ascending (numbers of `base.hours`); those of whole days if the grain is a day.
        published: Of a sequential target, its rows before this session; otherwise None. A transform may rely on the
            hour before the first of `hours` only. If the target declares an entity, `published` and the sources may
            contain only some entities. A stateful transform reads earlier rows from its sources, which are complete up
            to the last of `hours`: in the target, an hour may be missing or held back.
        grain: The grain of the target.
    """

    session_id: str
    hours: tuple[int, ...]
    published: DataFrame | None
    grain: Grain = HOUR

    def within(self, rows: DataFrame, time_column: str) -> DataFrame:
        """Return the rows whose time lies in this session's hours."""
        from lake_assets.base.time_filters import within

        return within(rows, time_column, self.hours)

    def at_end_of_day(self, rows: DataFrame, time_column: str) -> DataFrame:
        """Return the rows whose time lies in the last hour of a day, among this session's hours.

        The day is one of the target's time zone.
        """
        from lake_assets.base.time_filters import within

        day = self.grain if self.grain.is_local else DAY
        last_hours = [hour for hour in self.hours if day.last(hour) == hour]
        return within(rows, time_column, last_hours)

    def outside(self, rows: DataFrame, time_column: str) -> DataFrame:
        """Return the rows whose time lies in none of this session's hours: before the first, or in a gap."""
        from lake_assets.base.time_filters import outside

        return outside(rows, time_column, self.hours)

    def versions(
        self,
        rows: DataFrame,
        *,
        key: str,
        valid_from: str,
        deleted: str | None = None,
    ) -> DataFrame:
        """Return the versions of this session's hours, each with the time until which it is valid.

        Args:
            rows: All versions of each key, deletions included: a source with `keep="all"`.
            key: The column that the versions of one row have in common.
            valid_from: The column of the time from which a version is valid, without nulls. A key has each time once.
            deleted: A SQL condition. A version for which it is true ends the one before, and is not returned.

        Returns:
            The columns of `rows`, and `valid_to` (timestamp): `valid_from` of the next version of the key, exclusive;
            null for the last one.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        from lake_assets.base.columns import column
        from lake_assets.base.sql_text import is_true

        if VALID_TO in map(str.casefold, rows.columns):
            raise ConfigurationError(
                f"session.versions() adds the column {VALID_TO}, and the rows have a column of that name.",
                remedy=f'Rename or drop it before: rows.withColumnRenamed("{VALID_TO}", "own_{VALID_TO}").',
            )
        of_key = Window.partitionBy(column(key)).orderBy(column(valid_from))
        found = rows.withColumn(VALID_TO, F.lead(column(valid_from)).over(of_key))
        if deleted is not None:
            found = found.where(~is_true(deleted))
        return self.within(found, valid_from)


Transform = Callable[..., "DataFrame"]


@dataclass(frozen=True)
class Target:
    """A table that is built hour by hour or day by day.

    Attributes:
        table: The table, `namespace.name`.
        mode: How it is built.
        sources: The tables that it is built from.
        key: One or more columns. A row's identity is (key, time).
        time_column: A timestamptz column; the table is partitioned by its `grain`.
        columns: Column → Iceberg type.
        transform: Receives the SessionContext and one DataFrame for each source, in order; returns a DataFrame with
            `columns`.
        audits: Checks of each staged snapshot.
        quarantine_limit: A blocking check fails if a session adds more rows to the quarantine, see `most_quarantined`.
        code_version: What builds the rows, as a hash. If it changes, the hours that are built are those of other code,
            and a session that an audit stopped is tried again.
        code_version_before: The same as the version before computed it: state that it has stored is known by it.
        description: Shown in Dagster.
        owners: Shown in Dagster.
        lineage: Target column → source columns, where names differ; none for a column that comes from no source.
        max_delay: The longest time between the end of an hour or day and its completion; None: no freshness check.
        grain: What one partition contains.
        descriptions: Column → what is in it, for people. Columns may be left out.
        served: How readers see it in the serving part; None: it is not served.
        unknown_lineage: Columns of which it is not known what they come from.
        late: Which hours wait if late rows change them, and how long; None: none waits.
        renamed_from: Column → its former name, under which the table may still have it.
    """

    table: str
    mode: Mode
    sources: tuple[Source, ...]
    key: tuple[str, ...]
    time_column: str
    columns: Mapping[str, str]
    transform: Transform
    audits: tuple[Audit, ...] = ()
    quarantine_limit: float = DEFAULT_QUARANTINE_LIMIT
    code_version: str = ""
    code_version_before: str = ""
    description: str = ""
    owners: tuple[str, ...] = ()
    lineage: Mapping[str, Sequence[str]] = field(default_factory=dict)
    max_delay: timedelta | None = None
    grain: Grain = HOUR
    descriptions: Mapping[str, str] = field(default_factory=dict)
    served: Served | None = None
    unknown_lineage: tuple[str, ...] = ()
    late: Defer | None = None
    renamed_from: Mapping[str, str] = field(default_factory=dict)

    def most_quarantined(self, read: int) -> int:
        """Return how many rows a session may add to the quarantine. read: the rows that it reads."""
        limit = self.quarantine_limit
        if limit == DEFAULT_QUARANTINE_LIMIT:
            return max(DEFAULT_QUARANTINE_LIMIT, min(read // 2, MOST_QUARANTINED))
        return min(int(limit * read), MOST_QUARANTINED) if 0 < limit < 1 else int(limit)

    @property
    def name(self) -> str:
        """The table without its namespace."""
        return self.table.split(".")[1]

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that identify a row: the key and the time.

        The key alone, if the target has a row for each key of a source that keeps its last version.
        """
        source = self.sources[0]
        if isinstance(self.mode, Stateless) and source.keep == "last" and self.key == (source.key,):
            return self.key
        return *self.key, self.time_column

    @property
    def source_tables(self) -> tuple[str, ...]:
        """The tables that it is built from."""
        return tuple(source.table for source in self.sources)


@dataclass(frozen=True)
class Verdict:
    """The result of one audit.

    Attributes:
        passed: Whether it passed.
        counts: What was counted, by name.
        sample: Keys of offending rows, at most `SAMPLE`.
        hours: Event hour → number of offending rows; empty if the hours are unknown.
    """

    passed: bool
    counts: Mapping[str, int] = field(default_factory=dict)
    sample: tuple[str, ...] = ()
    hours: Mapping[int | None, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Offenders:
    """The offending rows of an audit, not counted yet. The audit passes if there are none.

    Attributes:
        rows: `k` (string), the key of each row; `h` (long), its event hour. If `h` is null in one row, the hours of the
            whole audit count as unknown.
        counted: The name of their count.
    """

    rows: DataFrame
    counted: str


RowsWith = Callable[[str, str, "DataFrame"], "DataFrame | None"]
"""Table, column, and rows with a column of that name → the values that the table has; None if no index finds them."""


def no_rows_with(table: str, column: str, wanted: DataFrame) -> DataFrame | None:
    """Return None: there is no index."""
    return None


@dataclass(frozen=True)
class AuditScope:
    """What an audit can read.

    Attributes:
        target: The target.
        hours: The event hours that the session builds.
        staged: The rows of the staged snapshot within `hours` (columns of the target).
        kept: The rows of the driving (first) source that should be in `staged`: neither quarantined rows nor repeated
            deliveries (columns of the source).
        valid: The valid rows of the driving source that the session covers, each as often as it was delivered (columns
            of the source). The audits read them by a query of their own: a fault in how `kept` was read or filtered
            does not change them. Of a source with versions, each version that counts, and none that deletes its key.
        staged_everywhere: The rows of the staged snapshot in all hours that rows of `valid` may lie in. They are more
            than `staged` if an append brings a row once more that was published before.
        rows_in_source: Counts the rows that the session covers, by the metadata of the source if these contain the
            number, else by a query.
        counts: Rows of the driving source by outcome: `read`, `duplicates`, `quarantined`; and `written`, the rows
            staged.
        table: Returns another table by name, as this session reads it.
        staged_rows: Rows of the staged snapshot by hour; of any hours.
        earlier_rows: Rows of the target before this session by hour; of any hours.
        few: Whether `staged` and `kept` are few rows, in one Spark partition each.
        rows_with: Returns the values of a column of another table that occur in rows with a column of that name, one
            row for each row that has one, as this session reads the table; None if no index finds them.
    """

    target: Target
    hours: tuple[int, ...]
    staged: DataFrame
    kept: DataFrame
    valid: DataFrame
    staged_everywhere: DataFrame
    rows_in_source: Callable[[], int]
    counts: Mapping[str, int]
    table: Callable[[str], DataFrame]
    staged_rows: RowsByHour
    earlier_rows: RowsByHour
    few: bool = False
    rows_with: RowsWith = no_rows_with


@dataclass(frozen=True)
class Audit:
    """A named check of a staged snapshot.

    Attributes:
        name: The audit's name.
        run: Evaluates it.
        description: What it checks.
        blocking: Whether the hours that it fails in are not published.
        columns: The columns of the target that it names. A declaration without one of them is refused.
        query: The SQL that a user has written for it; None if it has none.
        check: Raises `ConfigurationError` if a target cannot have it; None if any can.
    """

    name: str
    run: Callable[[AuditScope], Verdict | Offenders]
    description: str
    blocking: bool = True
    columns: tuple[str, ...] = ()
    query: str | None = None
    check: Callable[[Target], None] | None = None
