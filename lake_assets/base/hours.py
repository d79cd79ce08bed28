"""Hours as whole numbers since 1970-01-01 00:00 UTC, as Iceberg's hour transform counts them, and their keys.

An hour is half-open, [h, h+1); its key is Dagster's, `2026-01-01-05:00`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from lake_assets.errors import InvalidHourKey

HOUR_FORMAT = "%Y-%m-%d-%H:%M"
HOUR_MICROSECONDS = 3_600_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

CACHED_HOURS = 1 << 17
"""Hours whose keys are remembered: a state lists its pending hours one by one, and is read several times a session."""


@lru_cache(CACHED_HOURS)
def hour_key(hour: int) -> str:
    """Return the key of an hour: 490896 → `2026-01-01-00:00`."""
    return hour_start(hour).strftime(HOUR_FORMAT)


def parse_hour(key: str, *, where: str = "The hour") -> int:
    """Return the hour of a key.

    Args:
        key: `2026-01-01-05:00`.
        where: The origin of the key, for the error.

    Raises:
        InvalidHourKey: It is not the key of an hour.
    """
    try:
        return _parsed(key)
    except (TypeError, ValueError):
        raise InvalidHourKey(where, key) from None


@lru_cache(CACHED_HOURS)
def _parsed(key: str) -> int:
    moment = datetime.strptime(key, HOUR_FORMAT)
    if moment.minute or moment.strftime(HOUR_FORMAT) != key:
        raise ValueError(key)
    return hour_of(moment.replace(tzinfo=UTC))


def parse_hours(keys: Iterable[str], *, where: str = "The hour") -> set[int]:
    """Return the hours of keys and of runs of hours, as `format_hours` joins them.

    Args:
        keys: Each `2026-01-01-05:00`, or `2026-01-01-05:00..2026-01-01-09:00` with both ends inclusive.
        where: The origin of the keys, for the error.

    Raises:
        InvalidHourKey: It is not the key of an hour, or a run ends before it begins.
    """
    hours: set[int] = set()
    for key in keys:
        first, _, last = key.partition("..")
        first_hour = parse_hour(first, where=where)
        last_hour = parse_hour(last, where=where) if last else first_hour
        if last_hour < first_hour:
            raise InvalidHourKey(where, key)
        hours.update(range(first_hour, last_hour + 1))
    return hours


def hour_of(moment: datetime) -> int:
    """Return the hour that contains a time-zone-aware moment."""
    return (moment - _EPOCH) // timedelta(hours=1)


def hour_start(hour: int) -> datetime:
    """Return the first moment of an hour, in UTC."""
    return _EPOCH + timedelta(hours=hour)


def ranges(hours: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield maximal runs of consecutive hours, both ends inclusive, ascending: {2, 3, 6} → (2, 3), (6, 6)."""
    ordered = sorted(set(hours))
    if not ordered:
        return
    first = ordered[0]
    last = first
    for hour in ordered[1:]:
        if hour != last + 1:
            yield first, last
            first = hour
        last = hour
    yield first, last


def format_hours(hours: Iterable[int], key: Callable[[int], str] = hour_key) -> str:
    """Return hours for a person, runs joined: `2026-01-01-02:00..2026-01-01-03:00, 2026-01-01-06:00`.

    Args:
        hours: In any order.
        key: Returns the key of an hour, or of its partition.
    """
    texts = []
    for first, last in ranges(hours):
        first_key = key(first)
        last_key = key(last)
        texts.append(first_key if first_key == last_key else f"{first_key}..{last_key}")
    return ", ".join(texts)
