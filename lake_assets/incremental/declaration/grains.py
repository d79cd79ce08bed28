"""The grain of a target by its name and time zone, as a declaration has them."""

from __future__ import annotations

from functools import lru_cache

from lake_assets.base.grain import DAY, GRAINS, UTC_ZONE, Grain, days_in, is_known, known_zones, uneven_day
from lake_assets.base.hours import hour_text, parse_hour
from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration.arguments import closest

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
