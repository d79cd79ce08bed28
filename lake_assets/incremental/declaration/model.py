"""What a user declares, as values: names and durations, modes and grains, tables, subjects, served tables, targets.

Each value is checked by itself; none of the checks needs a table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import yaml

from lake_assets.base.columns import PREFIX, is_own
from lake_assets.base.hours import (
    DAY,
    GRAINS,
    HOUR,
    UTC_ZONE,
    Grain,
    days_in,
    hour_text,
    is_known,
    known_zones,
    parse_hour,
    uneven_day,
)
from lake_assets.base.values import parts_of
from lake_assets.errors import ConfigurationError, closest
from lake_assets.settings import SERVED_TABLE
from lake_assets.settings import TABLE as TABLE

if TYPE_CHECKING:
    from pyiceberg.types import IcebergType
    from pyspark.sql import DataFrame

IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*")
NOT_IN_TABLES = "/\\`'\"#%?"
"""Signs that no table has in its name: they would end a name in SQL, or mean something else in the path of a file."""

TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
"""The names of topics that Kafka accepts."""


def require_name(pattern: re.Pattern[str], value: str, what: str) -> None:
    """Check a name. what: what has the name, for the message. Raises `ConfigurationError`."""
    if not pattern.fullmatch(value):
        raise ConfigurationError(
            f"{what} is called {value!r}.", remedy="Use lower-case letters, digits and _; a table is namespace.name."
        )


def is_name_of(name: str, table: str) -> bool:
    """Whether a table has a name, with or without its namespace; a slash stands for the dot, as in asset keys."""
    return name.replace("/", ".") in (table, table.rpartition(".")[2])


def require_column(value: object, what: str) -> None:
    """Check the name of a column of a table that another program may have created. Raises `ConfigurationError`."""
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{what} is {value!r}.", remedy="Name a column of the table.")
    require_free(value, what)


def require_key(table: str, key: object) -> None:
    """Check that the key of a source is the name of one column. Raises `ConfigurationError`."""
    if isinstance(key, list | tuple) and len(key) > 1:
        named = ", ".join(map(str, key))
        raise ConfigurationError(
            f"The source {table} has a key of {len(key)} columns: {named}. It has to be one.",
            remedy="Add a column to the table that joins them, as concat_ws('/', ...) does, and name that one.",
        )
    require_column(key, f"The key of {table}")


def require_free(value: str, what: str) -> None:
    """Check that a name is none of the engine's own. Raises `ConfigurationError`."""
    if is_own(value):
        raise ConfigurationError(
            f"{what} is called {value!r}. Names that begin with {PREFIX} belong to lake-assets, which adds such columns"
            " to rows while it works.",
            remedy=f"Give it a name that does not begin with {PREFIX}.",
        )


def require_table(value: str, what: str) -> None:
    """Check the name of a table that may belong to another program. Raises `ConfigurationError`."""
    parts = value.split(".") if isinstance(value, str) else []
    if len(parts) < 2 or not all(map(_is_part_of_table, parts)):
        raise ConfigurationError(
            f"{what} is called {value!r}.",
            remedy=f"Write namespace.name, without any of {' '.join(NOT_IN_TABLES)} and without spaces around a name.",
        )


def _is_part_of_table(name: str) -> bool:
    return bool(name) and name == name.strip() and name.isprintable() and not set(name) & set(NOT_IN_TABLES)


def require_topic(value: str) -> None:
    """Check the name of a Kafka topic. Raises `ConfigurationError`."""
    if not TOPIC.fullmatch(value):
        raise ConfigurationError(
            f"The topic is called {value!r}.", remedy="Use up to 249 letters, digits, and the signs . _ and -."
        )


def iceberg_type(kind: str, ids: Iterator[int]) -> IcebergType:
    """Return the type of a column, as it is declared.

    Args:
        kind: Such as `long`, `decimal(9, 2)`, `list<string>` or `struct<city: string, tags: map<string, int>>`.
        ids: The ids of its nested fields.

    Raises:
        ValueError: It is no Iceberg type.
    """
    from pyiceberg.exceptions import ValidationError
    from pyiceberg.types import DecimalType, ListType, MapType, NestedField, StructType

    nested = parts_of(kind)
    if nested is None:
        try:
            found = NestedField(1, "a", kind, required=False).field_type
        except ValidationError as error:
            raise ValueError(kind) from error
        if isinstance(found, DecimalType) and found.scale > found.precision:
            raise ValueError(kind)
        return found
    form, parts = nested
    if form == "map" and parts_of(parts["key"]):
        raise ValueError(kind)
    if form == "struct" and len({name.casefold() for name in parts}) < len(parts):
        raise ValueError(kind)
    fields = [NestedField(next(ids), name, iceberg_type(each, ids), required=False) for name, each in parts.items()]
    if form == "struct":
        return StructType(*fields)
    last = fields[-1]
    if form == "list":
        return ListType(last.field_id, last.field_type, element_required=False)
    return MapType(fields[0].field_id, fields[0].field_type, last.field_id, last.field_type, value_required=False)


def require_columns(table: str, columns: Mapping[str, Any], *, nested: bool = False) -> None:
    """Check the names and Iceberg types of a table's columns. Raises `ConfigurationError`.

    Args:
        table: The table.
        columns: Column → type.
        nested: Whether a type may have parts.
    """
    for column, kind in columns.items():
        require_free(str(column), f"A column of {table}")
        require_name(IDENTIFIER, column, f"A column of {table}")
        try:
            is_nested = not iceberg_type(kind, count(1)).is_primitive
        except (ValueError, TypeError):
            more = ", list<string>, map<string, int> or struct<city: string, zip: int>" if nested else ""
            raise ConfigurationError(
                f"{table}.{column} is declared as {kind!r}, which is no Iceberg type.",
                remedy="Use a type such as string, int, long, double, boolean, date, timestamptz"
                f"{',' if nested else ' or'} decimal(9, 2){more}.",
            ) from None
        if is_nested and not nested:
            raise ConfigurationError(
                f"{table}.{column} is declared as {kind!r}, which has parts. Columns of targets have none.",
                remedy="Declare a column for each part, or a string, and write to_json(...) in the query.",
            )


def require_described(table: str, columns: Mapping[str, Any], descriptions: Mapping[str, str]) -> None:
    """Check that every column that is described exists. Raises `ConfigurationError`."""
    unknown = sorted(descriptions.keys() - columns.keys())
    if unknown:
        raise ConfigurationError(
            f"{table} describes {', '.join(unknown)}, but has no such column.",
            remedy="Add it to columns=, or remove it from descriptions=.",
        )


def require_renamed(table: str, columns: Mapping[str, Any], former: Mapping[str, str]) -> None:
    """Check that columns have former names that no other column has. Raises `ConfigurationError`."""
    if not isinstance(former, Mapping):
        raise ConfigurationError(
            f"renamed_from of {table} is {former!r}, which is no dict.",
            remedy='Write each column with its former name: renamed_from={"distance": "metres"}.',
        )
    for column, name in former.items():
        if column not in columns:
            raise ConfigurationError(
                f"{table} has renamed_from with {column!r}, but declares no such column.",
                remedy=f"Write the new name first, then the former one: renamed_from={{{str(name)!r}: {column!r}}}.",
            )
        if not isinstance(name, str) or not name or name in columns or list(former.values()).count(name) > 1:
            raise ConfigurationError(
                f"{table} declares that {column} was renamed from {name!r}, which "
                + ("is no name." if not isinstance(name, str) or not name else "is the name of another column."),
                remedy="Name the former name of this column alone, or leave it out of renamed_from.",
            )


def require_hours(name: str, hours: int | None) -> None:
    """Check that a number of hours is at least 1; None is no limit. Raises `ConfigurationError`."""
    if hours is not None and (not isinstance(hours, int) or hours is True or hours < 1):
        raise ConfigurationError(f"The {name} is {hours!r} hours.", remedy="Use 1 or more, or None for no limit.")


_PATTERN = re.compile(r"(?P<number>\d{1,6})\s*(?P<unit>[a-z]+)", re.ASCII)

_UNITS = {
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
}


def parse_duration(text: object, *, where: str) -> timedelta:
    """Return the duration of a text: a whole number, and seconds, minutes, hours or days.

    Args:
        text: `30 minutes`, `1 hour`.
        where: The origin of the text, for the error.

    Raises:
        ConfigurationError: It is no such text.
    """
    found = _PATTERN.fullmatch(text.strip()) if isinstance(text, str) else None
    unit = _UNITS.get(found["unit"].removesuffix("s")) if found else None
    if found is None or unit is None:
        raise ConfigurationError(
            f"{where} is {text!r}, which is no duration.",
            remedy="Write a whole number and a unit, such as '30 minutes', '2 hours' or '1 day'.",
        )
    return int(found["number"]) * unit


CLOSED = {"extra": "forbid"}
"""Of a class that YAML is read into: another attribute is a mistake."""


@dataclass(frozen=True)
class Stateless:
    """The target depends on each event alone: new rows are appended (etl_pattern_id 1)."""

    pattern_id = 1


@dataclass(frozen=True)
class Stateful:
    """The target depends on the sequence of events: a range of hours is recomputed and overwritten (etl_pattern_id 2).

    Attributes:
        load: `"range"` recomputes from the earliest changed hour to the last complete one. `"changed"` recomputes the
            changed hours only, for targets whose hours do not depend on each other.
        catchup_threshold: A change is skipped if its hour is this many hours or more before the last hour built; None
            for no limit.
        chunk_hours: A longer range that contains hours built before is cut into sessions: new hours first, so that old
            data do not delay them, then this many hours at a time, from the earliest on. None for no limit.
        entity: A column of every source, such as an account's id. The rows of an hour depend on source rows of those
            entities alone that have a row of the first source in the hour. In a table of many files, their rows are
            then found by an index. None: all rows of the sources are read, up to the last hour of the session.
    """

    load: Literal["range", "changed"] = "range"
    catchup_threshold: int | None = None
    chunk_hours: int | None = 12
    entity: str | None = None
    pattern_id = 2

    def __post_init__(self) -> None:
        if self.load not in ("range", "changed"):
            raise ConfigurationError(f"The load type is {self.load!r}.", remedy="Use 'range' or 'changed'.")
        require_hours("catch-up threshold", self.catchup_threshold)
        require_hours("chunk", self.chunk_hours)
        if self.entity is not None:
            require_name(IDENTIFIER, self.entity, "The entity")


@dataclass(frozen=True)
class Sequential:
    """Stateful with memory: hour h needs the target's own rows of h-1 (etl_pattern_id 2).

    Attributes:
        load: `"range"` recomputes from the earliest changed hour on, and stops where the state is as published. `"all"`
            recomputes the whole catch-up threshold range in each session that has any hour to build, for a target that
            also depends on what is no declared source. It needs a threshold, and takes no entity.
        catchup_threshold: As for `Stateful`. Hours that were never built are always built.
        chunk_hours: If more hours than this were built before, they are cut into sessions, from the earliest on. If a
            session ends in the state that is published, later hours are recomputed only if they changed themselves.
            New hours come last, because they need the state before them. None for no limit; it is required if a source
            row has an effect in another hour than its own, which an equal state in between would hide. With
            `load="all"`, nothing is cut.
        entity: A column of the target and of every source, such as an account's id. Rows of one entity depend on no row
            of another. In hours that were built before, only entities with changed source rows are then recomputed, if
            that is cheaper. None: all rows are recomputed.
        few_rows: If the hours of a session contain at most this many rows, all entities are recomputed: that is cheaper
            than finding the changed ones.
    """

    catchup_threshold: int | None = None
    chunk_hours: int | None = 12
    entity: str | None = None
    few_rows: int = 1_000_000
    load: Literal["range", "all"] = "range"
    pattern_id = 2

    def __post_init__(self) -> None:
        _check_load_of_sequential(self)
        require_hours("catch-up threshold", self.catchup_threshold)
        require_hours("chunk", self.chunk_hours)
        if self.entity is not None:
            require_name(IDENTIFIER, self.entity, "The entity")
        if self.few_rows < 0:
            raise ConfigurationError(f"few_rows is {self.few_rows}.", remedy="Use 0 or more rows.")


def _check_load_of_sequential(mode: Sequential) -> None:
    if mode.load not in ("range", "all"):
        raise ConfigurationError(
            f"The load type of a sequential target is {mode.load!r}.",
            remedy="Use 'range' or 'all'. If the hours of the target are independent, use Stateful(load='changed').",
        )
    if mode.load == "all" and mode.catchup_threshold is None:
        raise ConfigurationError(
            "A sequential target with load='all' has no catch-up threshold, so each session would rebuild all hours.",
            remedy="Declare a catchup_threshold: the number of hours that each session rebuilds.",
        )
    if mode.load == "all" and mode.entity is not None:
        raise ConfigurationError(
            f"A sequential target with load='all' has the entity {mode.entity!r}, but 'all' recomputes all entities.",
            remedy="Remove the entity, or use load='range'.",
        )


Mode = Stateless | Stateful | Sequential


@dataclass(frozen=True)
class Defer:
    """Late rows of older hours wait, so that many small late arrivals cost one session and not one each.

    New hours, and hours that are not older than `older_than`, are published at once. All hours that wait are built in
    one session as soon as one of them has waited for `at_most`, or `or_rows` rows wait. Erased and corrected rows never
    wait.

    Attributes:
        older_than: An hour may wait if it ended at least this long before the end of the last complete hour of the
            source: a timedelta, or a text such as `6 hours`. Parts of an hour are rounded up.
        at_most: The longest time from the commit of late rows to the session that builds them, likewise.
        or_rows: The number of waiting rows, by metadata, at which they are built earlier; None for no limit.
    """

    __pydantic_config__ = CLOSED
    older_than: timedelta | str
    at_most: timedelta | str
    or_rows: int | None = None

    def __post_init__(self) -> None:
        if _duration("older_than", self.older_than) < timedelta(0):
            raise ConfigurationError(f"older_than of Defer is {self.older_than}.", remedy="Use 0 hours or more.")
        if self.longest_wait <= timedelta(0):
            raise ConfigurationError(
                f"at_most of Defer is {self.at_most}, so nothing would wait.",
                remedy="Use a longer time, or drop late=.",
            )
        if self.or_rows is not None and (not isinstance(self.or_rows, int) or self.or_rows < 1):
            raise ConfigurationError(f"or_rows of Defer is {self.or_rows!r}.", remedy="Use 1 or more rows, or None.")

    @property
    def older_than_hours(self) -> int:
        """The age from which on an hour may wait, in hours, rounded up."""
        return -(-_duration("older_than", self.older_than) // timedelta(hours=1))

    @property
    def longest_wait(self) -> timedelta:
        """The longest time that rows wait."""
        return _duration("at_most", self.at_most)


def _duration(name: str, declared: timedelta | str) -> timedelta:
    if isinstance(declared, timedelta):
        return declared
    return parse_duration(declared, where=f"{name} of Defer")


CHECKED_SINCE = parse_hour("2020-01-01-00:00")
"""A time zone must have had whole hours from here on. Pipelines that begin earlier check it from their start."""


def declared_grain(table: str, name: str, timezone: str) -> Grain:
    """Return the grain of a target.

    Args:
        table: The target, for messages.
        name: `hour` or `day`.
        timezone: Name of a time zone (IANA).

    Raises:
        ConfigurationError: There is no such grain or time zone, or its days do not begin at full hours of UTC.
    """
    if name not in GRAINS:
        raise ConfigurationError(f"{table} has the grain {name!r}.", remedy=f"Use one of: {', '.join(GRAINS)}.")
    if timezone == UTC_ZONE:
        return GRAINS[name]
    if not isinstance(timezone, str) or not is_known(timezone):
        raise ConfigurationError(
            f"{table} has the timezone {timezone!r}, which is no IANA time zone.", remedy=_known_zone(str(timezone))
        )
    if name != DAY.name:
        raise ConfigurationError(
            f"{table} has the timezone {timezone!r} and the grain {name!r}: only days depend on a time zone.",
            remedy="Add grain='day', or remove the timezone.",
        )
    grain = days_in(timezone)
    check_whole_hours(table, grain, CHECKED_SINCE)
    return grain


def check_whole_hours(table: str, grain: Grain, since: int) -> None:
    """Check that all days of a grain consist of whole hours of UTC, which the engine counts time in.

    Args:
        table: The target, for messages.
        grain: Its grain.
        since: The first hour that counts.

    Raises:
        ConfigurationError: A day begins within an hour.
    """
    found = _uneven_day(grain.timezone, min(since, CHECKED_SINCE)) if grain.is_local else None
    if found is not None:
        raise ConfigurationError(
            f"{table} has the timezone {grain.timezone!r}, where the day {found} begins within an hour of UTC.",
            remedy="Sessions build whole hours of UTC. Use a time zone with whole hours from"
            f" {hour_text(min(since, CHECKED_SINCE), '%Y-%m-%d')} on, or remove the timezone.",
        )


@lru_cache
def _uneven_day(timezone: str, since: int) -> str | None:
    found = uneven_day(timezone, since)
    return None if found is None else str(found)


def _known_zone(timezone: str) -> str:
    """Return a remedy for an unknown time zone. All names are too many for a message."""
    near = closest(timezone, known_zones())
    if near is not None:
        return f"Did you mean {near!r}? The names are those of the IANA time zone database."
    return "Write the name as in the IANA time zone database: 'America/New_York', 'Europe/Berlin', 'UTC'."


Frequency = Literal["HOURLY", "DAILY"]
SECONDS: Mapping[str, int] = {"HOURLY": 3_600, "DAILY": 86_400}

_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGTP]?)B?", re.IGNORECASE)
SIZES = "KMGTP"
TO_NAME = "Use letters, digits, _ and -, with at most one database before a dot: orders, orders-eu, sales.orders."
TO_WRITE = 'Write served=True, served=Served(name="..."), or the table configuration of Pinot: a dict, or its file.'


@dataclass(frozen=True)
class Served:
    """How readers see a target in the serving part. Each push replaces the rows of the push before.

    Attributes:
        name: The served table; None for the target without its namespace.
        rows: `"newest"` serves the newest complete hour or day, for a target in which each contains all that is known.
            `"all"` serves all published rows. None: newest of a sequential target, all of others.
        frequency: `"HOURLY"` or `"DAILY"`: an automatic push follows the one before after an hour or a day at the
            earliest. None: after each change.
        quota: The most that all snapshots of the table may take, such as `"10G"`; None: LAKE_SERVING_QUOTA_MB.
    """

    __pydantic_config__ = CLOSED
    name: str | None = None
    rows: Literal["newest", "all"] | None = None
    frequency: Frequency | None = None
    quota: str | None = None

    def __post_init__(self) -> None:
        if self.name is not None and not (isinstance(self.name, str) and SERVED_TABLE.fullmatch(self.name)):
            raise ConfigurationError(f"A served table is called {self.name!r}.", remedy=TO_NAME)
        if self.rows not in (None, "newest", "all"):
            raise ConfigurationError(f"Served has rows={self.rows!r}.", remedy="Use 'newest' or 'all'.")
        if self.frequency is not None and str(self.frequency) not in SECONDS:
            raise ConfigurationError(
                f"Served has the frequency {self.frequency!r}.", remedy=f"Use {' or '.join(SECONDS)}, or leave it out."
            )
        if self.quota is not None and not self.quota_bytes:
            raise ConfigurationError(f"Served has the quota {self.quota!r}.", remedy='Write a size such as "10G".')

    @property
    def quota_bytes(self) -> int | None:
        """The quota in bytes. As in Pinot, a kilobyte has 1,024."""
        found = _SIZE.fullmatch(self.quota.strip()) if isinstance(self.quota, str) else None
        if found is None:
            return None
        return int(float(found["number"]) * 1024 ** (SIZES.find(found["unit"].upper()) + 1 if found["unit"] else 0))

    @classmethod
    def from_pinot(cls, config: Mapping[str, Any] | str | Path) -> Served:
        """Return what a table configuration of Apache Pinot declares. Keys that serving has no use for are ignored.

        Args:
            config: The configuration, or its file of JSON or YAML.

        Raises:
            ConfigurationError: The file cannot be read, or the table is none that is pushed as whole snapshots.
        """
        found, place = config, "The table configuration"
        if not isinstance(config, Mapping):
            place = str(config)
            try:
                found = yaml.safe_load(Path(config).read_text(encoding="utf-8"))
            except (OSError, UnicodeError, yaml.YAMLError) as error:
                raise ConfigurationError(
                    f"{place}, a table configuration of Pinot, cannot be read: {' '.join(str(error).split())}.",
                    remedy="Name a file of JSON or YAML, relative to the file that declares the table.",
                ) from None
        if isinstance(found, Mapping) and "tableName" not in found:
            found = found.get("OFFLINE", found)  # as a controller answers `GET /tables/<table>`
        name = found.get("tableName") if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping) or not isinstance(name, str):
            raise ConfigurationError(f"{place} has no tableName.", remedy='Write "tableName": "orders".')
        place = f"{place} of {name}"
        of_batches = _within(found, place, "ingestionConfig", "batchIngestionConfig")
        of_segments = _within(found, place, "segmentsConfig")  # where Pinot had them before
        kind = "REALTIME" if name.endswith("_REALTIME") else str(found.get("tableType", "OFFLINE")).upper()
        ingestion = of_batches.get("segmentIngestionType") or of_segments.get("segmentPushType") or "REFRESH"
        consistent = str(of_batches.get("consistentDataPush", True)).lower()
        if kind != "OFFLINE":
            raise ConfigurationError(
                f"{place} has the tableType {kind}. A served table is pushed as whole snapshots, from no stream.",
                remedy="Write OFFLINE. Rows of a stream land in a raw table (`Topic`), and a target of it is served.",
            )
        if str(ingestion).upper() != "REFRESH":
            raise ConfigurationError(
                f"{place} has the segmentIngestionType {ingestion}. Each push replaces all rows of a served table.",
                remedy="Write REFRESH. The rows to append belong into the target, all of whose rows are then served.",
            )
        if consistent != "true":
            raise ConfigurationError(
                f"{place} has consistentDataPush: {consistent}. Readers would see a mixture while a push runs.",
                remedy="Write consistentDataPush: true, or leave it out.",
            )
        frequency = of_batches.get("segmentIngestionFrequency") or of_segments.get("segmentPushFrequency")
        return cls(
            name=name.removesuffix("_OFFLINE"),
            rows=found.get("rows"),
            frequency=cast("Frequency | None", frequency.upper() if isinstance(frequency, str) else frequency),
            quota=_within(found, place, "quota").get("storage"),
        )


def _within(config: Mapping[str, Any], place: str, *keys: str) -> Mapping[str, Any]:
    """Return a part of a configuration; nothing if there is none."""
    found: Mapping[str, Any] = config
    for key in keys:
        found = found.get(key) or {}
        if not isinstance(found, Mapping):
            raise ConfigurationError(f"{place} has {key}: {found!r}.", remedy=f"Write the keys of {key} below it.")
    return found


def declared_served(table: str, value: object, folder: Path) -> Served | None:
    """Return how a target is served.

    Args:
        table: The target.
        value: Of `served=`: whether it is, how, or Pinot's configuration or its file.
        folder: Of the declaration, to which the name of a file is relative.

    Raises:
        ConfigurationError: The value is none of these.
    """
    if isinstance(value, bool) or value is None:
        return Served() if value else None
    if isinstance(value, Served):
        return value
    if isinstance(value, Mapping):
        return Served.from_pinot(value)
    if isinstance(value, Path) or (isinstance(value, str) and value.endswith((".json", ".yaml", ".yml"))):
        return Served.from_pinot(folder / value)
    raise ConfigurationError(f"served= of {table} is {value!r}.", remedy=TO_WRITE)


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
            require_key(self.table, self.key)
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
                remedy="Name the columns that order the versions of a key, such as updated_at, or else landed_at.",
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

    __pydantic_config__ = CLOSED
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
        require_columns(self.table, self.columns, nested=True)
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
        kind = self.columns[self.feed.id_column]
        if parts_of(kind):
            raise ConfigurationError(
                f"The feed of {self.table} has the id column {self.feed.id_column!r}, which is {kind}.",
                remedy="Name a column without parts, such as a string.",
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
