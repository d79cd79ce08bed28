"""Calendar days of time zones, as runs of hours since 1970-01-01 00:00 UTC: 23, 24 or 25 of them. Pure.

The rules come from `zoneinfo`: from the machine's own time zone data, else from the package tzdata.
A day here is a number: the days of a local date since 1970-01-01.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

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
