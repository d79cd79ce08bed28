"""Hours as whole numbers since 1970-01-01 00:00 UTC, as Iceberg's hour transform counts them, their keys, and grains.

An hour is half-open, [h, h+1); its key is Dagster's, `2026-01-01-05:00`. The grain of a target is how much time one of
its partitions contains, an hour or a day. The engine counts all time in hours: changes, watermarks and complete-
through. A grain defines which hours are planned, compared, staged and published together, or not at all.

Moments are as Kafka, Iceberg, the manifest and served tables store them: milliseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

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


MOST_RUNS = 20
"""Most runs of hours that a person is shown: hours that do not adjoin can be as many as late rows."""


def format_hours(hours: Iterable[int], key: Callable[[int], str] = hour_key, *, most: int | None = MOST_RUNS) -> str:
    """Return hours for a person, runs joined: `2026-01-01-02:00..2026-01-01-03:00, 2026-01-01-06:00`.

    Args:
        hours: In any order.
        key: Returns the key of an hour, or of its partition.
        most: Shows at most this many runs, then the number of the others and the last hour. None shows all runs.
    """
    runs = list(ranges(hours))
    texts = []
    for first, last in runs[:most]:
        first_key = key(first)
        last_key = key(last)
        texts.append(first_key if first_key == last_key else f"{first_key}..{last_key}")
    left = len(runs) - len(texts)
    return ", ".join(texts) + (f", and {left:,} more up to {key(runs[-1][1])}" if left else "")


def hour_text(hour: int, pattern: str) -> str:
    """Return the start of an hour by a pattern that begins with the year; one that Python lacks has a sign."""
    if is_hour(hour):
        return moment_text(hour_start(hour), pattern)
    cycles = (hour - FIRST_HOUR) // _CYCLE
    moment = hour_start(hour - cycles * _CYCLE)
    year = moment.year + cycles * _CYCLE_YEARS
    return moment.strftime(pattern.replace("%Y", f"{year:+05d}" if year else "0000"))


_MILLISECOND = timedelta(milliseconds=1)


def to_the_second(time: datetime) -> str:
    """Return a time as people read it."""
    return f"{time:%Y-%m-%d %H:%M:%S}"


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


UTC_ZONE = "UTC"
"""The time zone whose days are all 24 hours."""


@dataclass(frozen=True)
class Grain:
    """Partitions of consecutive hours, counted from 1970-01-01 00:00 UTC.

    Attributes:
        name: As it is declared.
        hours: Of one partition. Days of a time zone other than UTC may also have 23 or 25.
        key_format: Of a partition's key in Dagster (strftime).
        timezone: The time zone whose calendar days the partitions are; UTC for hours.
    """

    name: str
    hours: int
    key_format: str
    timezone: str = UTC_ZONE

    @property
    def is_local(self) -> bool:
        """Whether partitions are days of a time zone other than UTC."""
        return self.timezone != UTC_ZONE

    @property
    def in_words(self) -> str:
        """What one partition is: `hour`, `day`, or `day in America/New_York`."""
        return f"{self.name} in {self.timezone}" if self.is_local else self.name

    def number(self, hour: int) -> int:
        """Return the number of the partition that contains an hour, as Iceberg's transforms count it, since 1970."""
        if self.is_local:
            return day_of(self.timezone, hour)
        return hour // self.hours

    def start(self, number: int) -> int:
        """Return the first hour of a partition by its number."""
        if self.is_local:
            return first_hour(self.timezone, number)
        return number * self.hours

    def first(self, hour: int) -> int:
        """Return the first hour of the partition that contains an hour."""
        return self.start(self.number(hour))

    def last(self, hour: int) -> int:
        """Return the last hour of the partition that contains an hour."""
        return self.start(self.number(hour) + 1) - 1

    def earlier(self, hour: int, partitions: int) -> int:
        """Return the first hour of the partition that is so many before the one that contains an hour."""
        return self.start(self.number(hour) - partitions)

    def numbered(self, number: int) -> range:
        """Return the hours of a partition by its number."""
        return range(self.start(number), self.start(number + 1))

    def complete(self, through: int) -> int:
        """Return the last hour of the last complete partition, if all hours up to `through`, inclusive, are."""
        return self.first(through + 1) - 1

    def firsts(self, hours: Iterable[int]) -> list[int]:
        """Return the first hour of each partition that contains any of the hours, ascending."""
        return sorted({self.first(hour) for hour in hours})

    def whole(self, hours: Iterable[int]) -> frozenset[int]:
        """Return all hours of the partitions that contain any of the hours."""
        found: set[int] = set()
        for number in {self.number(hour) for hour in hours}:
            found.update(self.numbered(number))
        return frozenset(found)

    def rounded_up(self, hours: int) -> int:
        """Return how many whole partitions a declared number of hours is rounded up to."""
        return -(-hours // self.hours)

    def partitions_in(self, hours: int) -> int:
        """Return how many whole partitions have this many hours: 25 are one day, because a clock was set back."""
        return (hours + self.hours // 2) // self.hours

    def key(self, hour: int) -> str:
        """Return the key of the partition that contains an hour: `2026-01-01-05:00`, or `2026-01-01`."""
        if self.is_local:
            return moment_text(local_date(self.number(hour)), self.key_format)
        return hour_text(hour, self.key_format)

    def format_hours(self, hours: Iterable[int]) -> str:
        """Return the partitions of hours for a person, runs joined: `2026-01-01..2026-01-03, 2026-01-05`.

        Days of a time zone other than UTC are followed by its name: `2026-01-01..2026-01-03 (America/New_York)`.
        """
        found = format_hours(self.whole(hours), self.key)
        return f"{found} ({self.timezone})" if found and self.is_local else found


HOUR = Grain("hour", 1, HOUR_FORMAT)
DAY = Grain("day", 24, "%Y-%m-%d")

GRAINS = {grain.name: grain for grain in (HOUR, DAY)}


def days_in(timezone: str) -> Grain:
    """Return the grain of the calendar days of a time zone. The name is not checked."""
    return Grain(DAY.name, DAY.hours, DAY.key_format, timezone)


# Calendar days of time zones, as runs of 23, 24 or 25 hours. The rules come from `zoneinfo`: from the machine's own
# time zone data, else from the package tzdata. A day here is a number: the days of a local date since 1970-01-01.

EPOCH = date(1970, 1, 1).toordinal()
SECONDS_PER_HOUR = 3600
HOURS_PER_DAY = 24

CYCLE = 146_097
"""Days after which the Gregorian calendar repeats, weekdays included, and with it the rules of a zone."""
FAR = date(2440, 1, 1).toordinal() - EPOCH
"""From this day on, a day is taken from a cycle earlier: Python knows no date after the year 9999, and rows may."""
LONG_AGO = date(1800, 1, 1).toordinal() - EPOCH
"""Before this day, a day is taken from a cycle later: Python knows no date before the year 1, and rows may."""

KNOWN_UNTIL = date(2040, 1, 1).toordinal() - EPOCH
"""Rules are checked up to this day. They repeat from 2038 on."""


def is_known(zone: str) -> bool:
    """Whether a name is that of an IANA time zone."""
    return zone in known_zones()


@lru_cache(maxsize=1)
def known_zones() -> tuple[str, ...]:
    """Return the names of all time zones, in order."""
    return tuple(sorted(available_timezones()))


@lru_cache(maxsize=65_536)
def day_of(zone: str, hour: int) -> int:
    """Return the local day in which an hour begins."""
    cycles = _cycles(hour // HOURS_PER_DAY)
    start = datetime.fromtimestamp((hour - cycles * CYCLE * HOURS_PER_DAY) * SECONDS_PER_HOUR, UTC)
    return start.astimezone(ZoneInfo(zone)).toordinal() - EPOCH + cycles * CYCLE


@lru_cache(maxsize=65_536)
def first_hour(zone: str, day: int) -> int:
    """Return the first hour of a local day; of a date that the zone has skipped, that of the day after it."""
    cycles = _cycles(day)
    hour = -(-_midnight(zone, day - cycles * CYCLE) // SECONDS_PER_HOUR)
    return hour + cycles * CYCLE * HOURS_PER_DAY


def uneven_day(zone: str, since: int) -> date | None:
    """Return the first local day that does not begin at a full hour of UTC; None if all do, up to `KNOWN_UNTIL`.

    Args:
        zone: Name of a time zone.
        since: The hour from which on days are checked.
    """
    first = day_of(zone, since)
    for day in range(first, max(first + 1, KNOWN_UNTIL)):
        if _midnight(zone, day) % SECONDS_PER_HOUR:
            return local_date(day)
    return None


def local_date(day: int) -> date:
    """Return the date of a day; the last one that Python knows for a later day."""
    ordinal = min(day + EPOCH, date.max.toordinal())
    return date.fromordinal(max(ordinal, date.min.toordinal()))


def _midnight(zone: str, day: int) -> int:
    """Return when a day begins, in seconds since 1970. If the clock skips midnight, it is when the gap ends."""
    # With fold=0, a time in a gap counts by the offset before it, and a repeated time is the first one (PEP 495).
    return int(datetime.combine(local_date(day), time(), ZoneInfo(zone)).timestamp())


def _cycles(day: int) -> int:
    if day >= FAR:
        return (day - FAR) // CYCLE + 1
    if day < LONG_AGO:
        return (day - LONG_AGO) // CYCLE
    return 0
