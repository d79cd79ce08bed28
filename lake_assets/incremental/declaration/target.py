"""A target: a table that this platform builds; and the audits that it declares, as values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from lake_assets.base.grain import DAY, HOUR, Grain
from lake_assets.incremental.declaration.modes import Mode
from lake_assets.incremental.declaration.tables import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RowsByHour = Callable[[Collection[int]], Mapping[int, int]]
"""Event hours → rows of each of them that has any."""


@dataclass(frozen=True)
class SessionContext:
    """What a transform may know of its session.

    hours: the event hours being built, ascending (numbers of `base.hours`); of whole days, if the grain is.
    published: the target's rows as they stand before this session, of a sequential target, else None; a transform may
        rely on the hour before the first of `hours`, and on no other. A stateful one takes all that came before from
        its sources, which are given up to the last of `hours`: in the target an hour may be missing, or held back.
        Where a target declares an entity, it and the sources may be limited to the rows of some entities.
    """

    session_id: str
    hours: tuple[int, ...]
    published: DataFrame | None

    def within(self, rows: DataFrame, time_column: str) -> DataFrame:
        """The rows whose time lies in this session's hours."""
        from lake_assets.base.time_filters import within

        return within(rows, time_column, self.hours)

    def at_end_of_day(self, rows: DataFrame, time_column: str) -> DataFrame:
        """The rows whose time lies in the last hour of a day, among this session's hours."""
        from lake_assets.base.time_filters import within

        return within(rows, time_column, [hour for hour in self.hours if DAY.last(hour) == hour])

    def outside(self, rows: DataFrame, time_column: str) -> DataFrame:
        """The rows whose time lies in none of this session's hours: before the first, or in a gap between them."""
        from lake_assets.base.time_filters import outside

        return outside(rows, time_column, self.hours)


Transform = Callable[..., "DataFrame"]


@dataclass(frozen=True)
class Target:
    """A table that this platform builds, hour by hour or day by day. Its process has the same name.

    table: `namespace.name`. columns: name → Iceberg type. time_column: a timestamptz column, partitioned by `grain`.
    key: one or more columns; a row's identity is (key, time).
    transform: (SessionContext, one DataFrame per source, in order) → DataFrame with `columns`.
    quarantine_limit: more rows than this that one session has to quarantine, and none before it had, fail a blocking
        check.
    max_delay: how long after its end an hour or a day may be not complete yet; None: no freshness check.
    """

    table: str
    mode: Mode
    sources: tuple[Source, ...]
    key: tuple[str, ...]
    time_column: str
    columns: Mapping[str, str]
    transform: Transform
    audits: tuple[Audit, ...] = ()
    quarantine_limit: int = 100
    code_version: str = ""
    description: str = ""
    owners: tuple[str, ...] = ()
    lineage: Mapping[str, Sequence[str]] = field(default_factory=dict)
    max_delay: timedelta | None = None
    grain: Grain = HOUR

    @property
    def name(self) -> str:
        return self.table.split(".")[1]


@dataclass(frozen=True)
class Verdict:
    """counts: what was counted, by name. sample: keys of offending rows, at most `SAMPLE`.

    hours: event hour → what offends in it; empty where that cannot be told.
    """

    passed: bool
    counts: Mapping[str, int] = field(default_factory=dict)
    sample: tuple[str, ...] = ()
    hours: Mapping[int | None, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Offenders:
    """The rows that should not be, not counted yet: an audit passes if there are none.

    rows: `k`, the key of each, a string; `h`, its event hour (long), null where that cannot be told, which then holds
        for the whole audit. counted: what their number is called.
    """

    rows: DataFrame
    counted: str


@dataclass(frozen=True)
class AuditScope:
    """What an audit may look at.

    staged: the staged snapshot's rows within `hours` (columns of the target).
    kept: the driving (first) source's rows that should show in `staged`: no quarantined row, no repeated delivery
        (columns of the source).
    counts: rows of the driving source by fate: `read`, `duplicates`, `quarantined`; and `written`, the rows staged.
    table: any other table by name, as this session reads it.
    staged_rows, earlier_rows: of the staged snapshot, and of the target before this session; any hours.
    few: whether staged and kept are few rows, each one partition.
    """

    target: Target
    hours: tuple[int, ...]
    staged: DataFrame
    kept: DataFrame
    counts: Mapping[str, int]
    table: Callable[[str], DataFrame]
    staged_rows: RowsByHour
    earlier_rows: RowsByHour
    few: bool = False


@dataclass(frozen=True)
class Audit:
    """A named check of a staged snapshot. blocking: if it fails, the hours that it fails in are not published."""

    name: str
    run: Callable[[AuditScope], Verdict | Offenders]
    description: str
    blocking: bool = True
