"""How a target is built: row by row, from a range of hours, or hour by hour from its own earlier rows; and when.

At the end: by which partitions, the grain that its declaration names.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Literal

from lake_assets.base.grain import DAY, GRAINS, UTC_ZONE, Grain, days_in, is_known, known_zones, uneven_day
from lake_assets.base.hours import hour_text, parse_hour
from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration.names import IDENTIFIER, closest, parse_duration, require_hours, require_name


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
