"""The grain of a target: how much time one of its partitions contains, an hour or a day.

The engine counts all time in hours: changes, watermarks and complete-through. A grain defines which hours are planned,
compared, staged and published together, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lake_assets.base import local_days
from lake_assets.base.hours import HOUR_FORMAT, format_hours, hour_text, moment_text

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
            return local_days.day_of(self.timezone, hour)
        return hour // self.hours

    def start(self, number: int) -> int:
        """Return the first hour of a partition by its number."""
        if self.is_local:
            return local_days.first_hour(self.timezone, number)
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
            return moment_text(local_days.local_date(self.number(hour)), self.key_format)
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
