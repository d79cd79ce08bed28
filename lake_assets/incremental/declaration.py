"""What a user declares: sources, a target, its mode, key, columns, audits and transform; and the pipeline of them all.

Here belongs what can be said without looking at a table. Nothing here reads, writes or plans, or imports Dagster.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, Literal

from lake_assets.errors import ConfigurationError, InvalidHourKey, UsageError
from lake_assets.incremental.grain import DAY, GRAINS, HOUR, Grain
from lake_assets.incremental.hours import parse_hour

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lake_assets.incremental.audits import Audit

IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*")
TABLE = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")

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
class Stateless:
    """The target depends on each event alone: new rows are appended (etl_pattern_id 1)."""

    pattern_id = 1


@dataclass(frozen=True)
class Stateful:
    """The target depends on the sequence of events: a range of hours is recomputed and overwritten (etl_pattern_id 2).

    load: `"range"`: from the earliest changed hour to the last complete one. `"changed"`: the changed hours alone, for
    targets whose hours do not depend on each other.
    catchup_threshold: how many hours, counted back from the last hour built, a late change may reach; None: no limit.
    chunk_hours: a range that is longer, and reaches back to hours built before, is cut into sessions: new hours first,
        then so many at a time from the earliest on. So fresh data is not late because of old. None: no limit.
    """

    load: Literal["range", "changed"] = "range"
    catchup_threshold: int | None = None
    chunk_hours: int | None = 12
    pattern_id = 2

    def __post_init__(self) -> None:
        if self.load not in ("range", "changed"):
            raise ConfigurationError(f"The load type is {self.load!r}.", remedy="Use 'range' or 'changed'.")
        _require_hours("catch-up threshold", self.catchup_threshold)
        _require_hours("chunk", self.chunk_hours)


@dataclass(frozen=True)
class Sequential:
    """Stateful with memory: hour h needs the target's own rows of h-1 (etl_pattern_id 2).

    catchup_threshold: as for `Stateful`; hours that were never built are always built.
    chunk_hours: more hours that were built before are cut into sessions, from the earliest on. Where one ends in the
        state that is published, nothing follows: the hours behind it are left alone, but for those that changed
        themselves. New hours come last: they stand on the state before them. None: no limit; so it must be where a
        source row acts in another hour than that of its own time, which an equal state in between would not tell of.
    entity: a column of the target and of every source, such as an account's id, that tells which rows hang together:
        those of one entity depend on no row of another. Of hours that were built before, only entities whose source
        rows changed are then recomputed, where that is cheaper. None: all are, always.
    few_rows: a session over hours that hold no more rows than this, in all, recomputes all entities: to tell them apart
        would cost more.
    """

    catchup_threshold: int | None = None
    chunk_hours: int | None = 12
    entity: str | None = None
    few_rows: int = 1_000_000
    pattern_id = 2

    def __post_init__(self) -> None:
        _require_hours("catch-up threshold", self.catchup_threshold)
        _require_hours("chunk", self.chunk_hours)
        if self.entity is not None:
            _require(IDENTIFIER, self.entity, "The entity")
        if self.few_rows < 0:
            raise ConfigurationError(f"Few rows are {self.few_rows}.", remedy="Use 0 or more rows.")


Mode = Stateless | Stateful | Sequential


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
        _require(TABLE, self.table, "The source table")
        _require(IDENTIFIER, self.time_column, f"The time column of {self.table}")
        if self.key is not None:
            _require(IDENTIFIER, self.key, f"The key of {self.table}")

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
        _require(TABLE, self.table, "The raw table")
        _require_columns(self.table, self.columns)

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
        _require(IDENTIFIER, self.name, "The subject")
        for column in self.columns:
            _require(IDENTIFIER, column, f"A column of the subject {self.name}")

    def columns_of(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Those of a table's columns that hold an id of this subject."""
        return tuple(c for c in columns if c in self.columns)


@dataclass(frozen=True)
class SessionContext:
    """What a transform may know of its session.

    hours: the event hours being built, ascending (numbers of `incremental.hours`); of whole days, if the grain is.
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
        from lake_assets.incremental.stage import within

        return within(rows, time_column, self.hours)

    def at_end_of_day(self, rows: DataFrame, time_column: str) -> DataFrame:
        """The rows whose time lies in the last hour of a day, among this session's hours."""
        from lake_assets.incremental.stage import within

        return within(rows, time_column, [hour for hour in self.hours if DAY.last(hour) == hour])

    def outside(self, rows: DataFrame, time_column: str) -> DataFrame:
        """The rows whose time lies in none of this session's hours: before the first, or in a gap between them."""
        from lake_assets.incremental.stage import outside

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


def incremental_asset(
    *,
    mode: Mode,
    sources: Sequence[Source],
    key: str | Sequence[str],
    time_column: str,
    columns: Mapping[str, str],
    audits: Sequence[Audit] = (),
    namespace: str = "core",
    quarantine_limit: int = 100,
    code_version: str | None = None,
    owners: Sequence[str] = (),
    lineage: Mapping[str, Sequence[str]] | None = None,
    max_delay: timedelta | None = None,
    grain: Literal["hour", "day"] = "hour",
) -> Callable[[Transform], Target]:
    """Declare the table `namespace.<function name>`; the function's docstring describes it.

    code_version: default, a hash of the function's module, the sources with their rules, the audits and the limit: an
        edit of any lets an audit-blocked session try again. What the module imports is not in it.
    lineage: target column → source columns (`raw.signups.event_ts`), where names differ; equal ones are found anyway.
    max_delay: the target's freshness check fails when its next hour or day has ended so long ago and is not complete.
    grain: what one partition holds. A day is built as a whole: when any of its hours changed, once all are complete;
        chunks and the catch-up threshold are rounded up to days. A stateless target takes rows as they come.
    Raises `ConfigurationError`, naming what is wrong.
    """

    def declare(transform: Transform) -> Target:
        table = f"{namespace}.{transform.__name__}"
        keyed = tuple(_with_default_key(s, mode, key) for s in sources)
        target = Target(
            table=table,
            mode=mode,
            sources=keyed,
            key=(key,) if isinstance(key, str) else tuple(key),
            time_column=time_column,
            columns=dict(columns),
            transform=transform,
            audits=tuple(audits),
            quarantine_limit=quarantine_limit,
            code_version=code_version or _code_hash(transform, keyed, audits, quarantine_limit),
            description=inspect.getdoc(transform) or "",
            owners=tuple(owners),
            lineage=dict(lineage or {}),
            max_delay=max_delay,
            grain=_grain(table, grain),
        )
        _check(target)
        return target

    return declare


@dataclass(frozen=True)
class Pipeline:
    """Raw tables and targets that belong together. `start` is the first event hour, a key.

    subjects: whose rows can be erased.
    Raises `ConfigurationError`, naming what does not fit together.
    """

    raw: tuple[RawTable, ...]
    targets: tuple[Target, ...]
    start: str
    subjects: tuple[Subject, ...] = ()

    def __post_init__(self) -> None:
        try:
            parse_hour(self.start)
        except InvalidHourKey:
            raise ConfigurationError(
                f"The pipeline starts at {self.start!r}.", remedy="Name its first event hour, such as 2026-01-01-00:00."
            ) from None
        raw = {r.table: r for r in self.raw}
        for table, times in Counter([*(r.table for r in self.raw), *(t.table for t in self.targets)]).items():
            if times > 1:
                raise ConfigurationError(f"{table} is declared {times} times.", remedy="Declare each table once.")
        for target in self.targets:
            for source in target.sources:
                if source.table in raw:
                    _check_raw_source(target, source, raw[source.table])
            _check_entity(target, {t.table: t.columns for t in self.targets})
        self.in_order()
        for subject in self.subjects:
            _check_subject(self, subject)

    @property
    def start_hour(self) -> int:
        return parse_hour(self.start, where="The pipeline's start")

    def target(self, name: str) -> Target:
        """A target by its table or its bare name; `UsageError`, with the names there are, if there is none."""
        for target in self.targets:
            if name.replace("/", ".") in (target.table, target.name):
                return target
        names = ", ".join(t.name for t in self.targets)
        raise UsageError(f"There is no target {name!r}.", remedy=f"Name one of: {names}.")

    def subject(self, name: str) -> Subject:
        """A subject by its name; `UsageError`, with the names there are, if there is none."""
        for subject in self.subjects:
            if subject.name == name:
                return subject
        names = ", ".join(s.name for s in self.subjects)
        remedy = f"Name one of: {names}." if names else "None is declared: add `subjects=` to the Pipeline."
        raise UsageError(f"There is no subject {name!r}.", remedy=remedy)

    def in_order(self) -> list[Target]:
        """The targets, each after all it is built from."""
        by_table = {t.table: t for t in self.targets}
        graph = {t.table: [s.table for s in t.sources if s.table in by_table] for t in self.targets}
        try:
            return [by_table[table] for table in TopologicalSorter(graph).static_order()]
        except CycleError as error:
            raise ConfigurationError(
                f"Targets are built from each other in a circle: {' → '.join(error.args[1])}.",
                remedy="A target that needs its own earlier hours is Sequential, and does not name itself as a source.",
            ) from None

    def upstream_of(self, target: Target) -> list[Target]:
        """The targets that this one is built from, however indirectly, in topological order."""
        wanted, found = {s.table for s in target.sources}, []
        for candidate in reversed(self.in_order()):
            if candidate.table in wanted:
                found.append(candidate)
                wanted |= {s.table for s in candidate.sources}
        return found[::-1]


def _require(pattern: re.Pattern[str], value: str, what: str) -> None:
    if not pattern.fullmatch(value):
        raise ConfigurationError(
            f"{what} is called {value!r}.", remedy="Use lower-case letters, digits and _; a table is namespace.name."
        )


def _require_columns(table: str, columns: Mapping[str, Any]) -> None:
    from pyiceberg.exceptions import ValidationError
    from pyiceberg.types import NestedField

    for column, iceberg_type in columns.items():
        _require(IDENTIFIER, column, f"A column of {table}")
        try:
            NestedField(1, column, iceberg_type, required=False)
        except (ValueError, ValidationError):
            raise ConfigurationError(
                f"{table}.{column} is declared as {iceberg_type!r}, which is no Iceberg type.",
                remedy="Use a type such as string, int, long, double, boolean, date, timestamptz or decimal(9, 2).",
            ) from None


def _require_hours(name: str, hours: int | None) -> None:
    if hours is not None and hours < 1:
        raise ConfigurationError(f"The {name} is {hours} hours.", remedy="Use 1 or more, or None for no limit.")


def _check_raw_source(target: Target, source: Source, raw: RawTable) -> None:
    """Rows that others land are judged, and told from their deliveries, by a key."""
    for column in (source.time_column, source.key):
        if column is not None and column not in raw.all_columns:
            raise ConfigurationError(
                f"{target.table} reads {column!r} of {raw.table}, which declares no such column.",
                remedy=f"Name one of: {', '.join(raw.all_columns)}.",
            )
    if source.key is None:
        raise ConfigurationError(
            f"{target.table} reads {raw.table} without a key.",
            remedy=f"Add key= to its Source({raw.table!r}, ...): rows may be landed more than once.",
        )


def _check_entity(target: Target, columns: Mapping[str, Mapping[str, str]]) -> None:
    """Rows of an entity are told by one column everywhere; and no delivery of one entity may beat one of another."""
    entity = target.mode.entity if isinstance(target.mode, Sequential) else None
    if entity is None:
        return
    read = {s.table: columns[s.table] for s in target.sources if s.table in columns}
    for table, there in {target.table: target.columns, **read}.items():
        if entity not in there:
            raise ConfigurationError(
                f"{table} has no column {entity!r}, which is the entity of {target.table}.",
                remedy="Name a column that the target and all its sources have, or drop entity=.",
            )
    for source in target.sources:
        if not source.trusted:
            raise ConfigurationError(
                f"{target.table} has the entity {entity!r}, and judges the rows of {source.table} itself.",
                remedy="Read a fact that is built from them, or drop entity=.",
            )


def _check_subject(pipeline: Pipeline, subject: Subject) -> None:
    """Its rows begin in a raw table, and its ids are strings: as such they are looked for, everywhere."""
    if not any(subject.columns_of(raw.columns) for raw in pipeline.raw):
        raise ConfigurationError(
            f"No raw table holds the subject {subject.name}: none has a column {' or '.join(subject.columns)!r}.",
            remedy="Name the columns that hold its id.",
        )
    declared = {t.table: t.columns for t in pipeline.raw} | {t.table: t.columns for t in pipeline.targets}
    for table, columns in declared.items():
        for column in subject.columns_of(columns):
            if columns[column] != "string":
                raise ConfigurationError(
                    f"{table}.{column}, an id of the subject {subject.name}, is {columns[column]}.",
                    remedy="The id of a subject is a string.",
                )


def _check(target: Target) -> None:
    _require(TABLE, target.table, "The target")
    _require_columns(target.table, target.columns)
    if not target.key:
        raise ConfigurationError(
            f"{target.table} has no key.", remedy="Name the columns that, with the time, tell a row."
        )
    if not target.sources:
        raise ConfigurationError(f"{target.table} has no source.", remedy="Name at least one Source.")
    for column in (*target.key, target.time_column):
        if column not in target.columns:
            raise ConfigurationError(
                f"{target.table} has no column {column!r}, which is its key or time.", remedy="Add it to columns=."
            )
    if target.columns[target.time_column] != "timestamptz":
        raise ConfigurationError(
            f"{target.table}.{target.time_column} is {target.columns[target.time_column]}.",
            remedy=f"The time column is partitioned by {target.grain.name} and must be timestamptz.",
        )
    if isinstance(target.mode, Stateless) and len(target.sources) != 1:
        raise ConfigurationError(
            f"{target.table} is stateless and has {len(target.sources)} sources.",
            remedy="A stateless target is built from each row of one source; use Stateful() for more.",
        )
    _check_options(target)
    _check_transform(target)


def _check_options(target: Target) -> None:
    if target.quarantine_limit < 0:
        raise ConfigurationError(
            f"{target.table} has a quarantine limit of {target.quarantine_limit}.", remedy="Use 0 or more rows."
        )
    if target.max_delay is not None and target.max_delay < timedelta(0):
        raise ConfigurationError(
            f"{target.table} has a max_delay of {target.max_delay}.", remedy="Use a timedelta of 0 or more, or None."
        )
    if unknown := sorted(target.lineage.keys() - target.columns.keys()):
        raise ConfigurationError(
            f"{target.table} has a lineage for {', '.join(unknown)}, which it has not.", remedy="Add them to columns=."
        )


def _check_transform(target: Target) -> None:
    """It is called with the session and one DataFrame per source."""
    given = 1 + len(target.sources)
    try:
        inspect.signature(target.transform).bind(*range(given))
    except TypeError:
        raise ConfigurationError(
            f"The transform of {target.table} cannot be called with a session and {given - 1} source(s).",
            remedy=f"Give it {given} parameters: the session, then one for each of"
            f" {', '.join(s.table for s in target.sources)}.",
        ) from None


def _grain(table: str, name: str) -> Grain:
    if name not in GRAINS:
        raise ConfigurationError(f"{table} has the grain {name!r}.", remedy=f"Use one of: {', '.join(GRAINS)}.")
    return GRAINS[name]


def _with_default_key(source: Source, mode: Mode, key: str | Sequence[str]) -> Source:
    from dataclasses import replace

    if source.key is None and isinstance(mode, Stateless) and isinstance(key, str):
        return replace(source, key=key)
    return source


def _code_hash(transform: Transform, sources: Sequence[Source], audits: Sequence[Audit], quarantine_limit: int) -> str:
    """A hash of what decides which rows come out, and which are let through; the same in every process."""
    judged = [(audit.name, audit.description, audit.blocking) for audit in audits]
    code = inspect.getsource(inspect.getmodule(transform) or transform)
    return hashlib.sha256(repr((code, [*sources], judged, quarantine_limit)).encode()).hexdigest()[:12]


def merge(pipelines: Iterable[Pipeline]) -> Pipeline:
    """Several pipelines as one; the earliest start counts."""
    pipelines = list(pipelines)
    return Pipeline(
        raw=tuple(r for p in pipelines for r in p.raw),
        targets=tuple(t for p in pipelines for t in p.targets),
        start=min(p.start for p in pipelines),
        subjects=tuple(dict.fromkeys(s for p in pipelines for s in p.subjects)),
    )
