"""Hours as whole numbers since 1970-01-01 00:00 UTC, as Iceberg's hour transform counts them, and their keys.

An hour is half-open, [h, h+1); its key is Dagster's, `2026-01-01-05:00`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta

from lake_assets.errors import InvalidHourKey

HOUR_FORMAT = "%Y-%m-%d-%H:%M"
HOUR_MICROSECONDS = 3_600_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def hour_key(hour: int) -> str:
    """The key of an hour: 490896 → `2026-01-01-00:00`."""
    return hour_start(hour).strftime(HOUR_FORMAT)


def parse_hour(key: str, *, where: str = "The hour") -> int:
    """The hour of a key; `InvalidHourKey`, naming `where` it came from, if it is none."""
    try:
        moment = datetime.strptime(key, HOUR_FORMAT)
    except (TypeError, ValueError):
        raise InvalidHourKey(where, key) from None
    if moment.minute or moment.strftime(HOUR_FORMAT) != key:
        raise InvalidHourKey(where, key)
    return hour_of(moment.replace(tzinfo=UTC))


def hour_of(moment: datetime) -> int:
    """The hour that a time-zone-aware moment lies in."""
    return (moment - _EPOCH) // timedelta(hours=1)


def hour_start(hour: int) -> datetime:
    """The first moment of an hour, in UTC."""
    return _EPOCH + timedelta(hours=hour)


def ranges(hours: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Maximal runs of consecutive hours, both ends inclusive, ascending: {2, 3, 6} → (2, 3), (6, 6)."""
    ordered = sorted(set(hours))
    start = 0
    for i, hour in enumerate(ordered):
        if i + 1 == len(ordered) or ordered[i + 1] != hour + 1:
            yield ordered[start], hour
            start = i + 1


def format_hours(hours: Iterable[int], key: Callable[[int], str] = hour_key) -> str:
    """Hours for people, runs joined: `2026-01-01-02:00..2026-01-01-03:00, 2026-01-01-06:00`. key: names an hour."""
    keys = ((key(a), key(b)) for a, b in ranges(hours))
    return ", ".join(first if first == last else f"{first}..{last}" for first, last in keys)
