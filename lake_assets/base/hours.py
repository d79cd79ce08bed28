"""Hours as whole numbers since 1970-01-01 00:00 UTC, as Iceberg's hour transform counts them, and their keys.

An hour is half-open, [h, h+1); its key is Dagster's, `2026-01-01-05:00`. At the end: moments as Kafka, Iceberg, the
manifest and served tables store them, milliseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache

from lake_assets.errors import InvalidHourKey

HOUR_FORMAT = "%Y-%m-%d-%H:%M"
HOUR_MICROSECONDS = 3_600_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_HOUR = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(hours=1)
LAST_HOUR = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(hours=1)
"""The hours of the years 1 to 9999. Tables may have other times, such as `infinity`; no row counts there."""

_FIRST_MICROSECOND = FIRST_HOUR * HOUR_MICROSECONDS
_LAST_MICROSECOND = (LAST_HOUR + 1) * HOUR_MICROSECONDS - 1

_CYCLE_YEARS = 400
_CYCLE = 146_097 * 24
"""Hours after which the Gregorian calendar repeats, 400 years: Python knows the years 1 to 9999 only."""

CACHED_HOURS = 1 << 17
"""Hours whose keys are remembered: a state lists its pending hours one by one, and is read several times a session."""


@lru_cache(CACHED_HOURS)
def hour_key(hour: int) -> str:
    """Return the key of an hour: 490896 → `2026-01-01-00:00`."""
    return hour_text(hour, HOUR_FORMAT)


def hour_sql(time: str) -> str:
    """Return the SQL expression of the hour (long) of a time, as `hour_of` counts it; null for null.

    In whole numbers, and rounded down also before 1970: `unix_timestamp`, `div` and casts cut towards zero.

    Args:
        time: A SQL expression, a timestamp. One without a time zone is in that of the session, which is UTC.
    """
    micros = f"unix_micros(CAST({time} AS TIMESTAMP))"
    cut = f"CAST({micros} < 0 AND {micros} % {HOUR_MICROSECONDS}L != 0 AS LONG)"
    return f"({micros} div {HOUR_MICROSECONDS}L - {cut})"


def moment_sql(hour: int) -> str:
    """Return the SQL literal of the first moment of an hour, with its time zone. The year may be any."""
    return f"TIMESTAMP '{hour_text(hour, '%Y-%m-%d %H:%M:%S')}Z'"


def moment_text(moment: date, pattern: str) -> str:
    """Return a moment or a date by a pattern of strftime. A year has four digits at least: `0001`."""
    return moment.strftime(pattern.replace("%Y", f"{moment.year:04d}"))


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
    hour = hour_of(datetime.strptime(key, HOUR_FORMAT).replace(tzinfo=UTC))
    if hour_key(hour) != key:
        raise ValueError(key)
    return hour


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


def is_hour(hour: int) -> bool:
    """Whether an hour is one of the years 1 to 9999."""
    return FIRST_HOUR <= hour <= LAST_HOUR


def hour_start(hour: int) -> datetime:
    """Return the first moment of an hour, in UTC; the first or last one that Python knows for an hour beyond."""
    return moment_at(hour * HOUR_MICROSECONDS)


def moment_at(microseconds: int) -> datetime:
    """Return the moment, in UTC, of microseconds since 1970; the first or last one that Python knows for one beyond."""
    return _EPOCH + timedelta(microseconds=min(max(microseconds, _FIRST_MICROSECOND), _LAST_MICROSECOND))


def time_text(microseconds: int) -> str:
    """Return any time, microseconds since 1970, for people: `2026-01-01T00:05:00`, `+57971-05-14T12:00:00`."""
    hour, rest = divmod(microseconds, HOUR_MICROSECONDS)
    return hour_text(hour, f"%Y-%m-%dT%H:{(_EPOCH + timedelta(microseconds=rest)).isoformat()[14:-6]}")


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


def hour_text(hour: int, pattern: str) -> str:
    """Return the start of an hour by a pattern that begins with the year; one that Python lacks has a sign."""
    if is_hour(hour):
        return moment_text(hour_start(hour), pattern)
    cycles = (hour - FIRST_HOUR) // _CYCLE
    moment = hour_start(hour - cycles * _CYCLE)
    year = moment.year + cycles * _CYCLE_YEARS
    return moment.strftime(pattern.replace("%Y", f"{year:+05d}" if year else "0000"))


_MILLISECOND = timedelta(milliseconds=1)


def milliseconds(at: datetime) -> int:
    """Return a moment in milliseconds since 1970; a fraction of a millisecond is cut off."""
    return (at - _EPOCH) // _MILLISECOND


def from_milliseconds(at: int) -> datetime:
    """Return the moment, in UTC, of milliseconds since 1970; the first or last one that Python knows for one beyond."""
    return moment_at(at * 1000)


_FIRST = milliseconds(datetime.min.replace(tzinfo=UTC))
_LAST = milliseconds(datetime.max.replace(tzinfo=UTC))


def is_moment(at: int) -> bool:
    """Return whether milliseconds since 1970 lie in the years 1 to 9999; a value in microseconds does not."""
    return _FIRST <= at <= _LAST
