"""The grain of a target: how much time one of its partitions contains, an hour or a day.

The engine counts all time in hours: changes, watermarks and complete-through. A grain defines which hours are planned,
compared, staged and published together, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lake_assets.base.hours import HOUR_FORMAT, format_hours, hour_start


@dataclass(frozen=True)
class Grain:
    """Partitions of `hours` consecutive hours, counted from 1970-01-01 00:00 UTC.

    Attributes:
        name: As it is declared.
        hours: Of one partition.
        key_format: Of a partition's key in Dagster (strftime).
    """

    name: str
    hours: int
    key_format: str

    def first(self, hour: int) -> int:
        """Return the first hour of the partition that contains an hour."""
        return hour - hour % self.hours

    def last(self, hour: int) -> int:
        """Return the last hour of the partition that contains an hour."""
        return self.first(hour) + self.hours - 1

    def numbered(self, number: int) -> range:
        """Return the hours of a partition by Iceberg's number: its transforms count hours, or days, since 1970."""
        start = number * self.hours
        return range(start, start + self.hours)

    def complete(self, through: int) -> int:
        """Return the last hour of the last complete partition, if all hours up to `through`, inclusive, are."""
        return self.first(through + 1) - 1

    def firsts(self, hours: Iterable[int]) -> list[int]:
        """Return the first hour of each partition that contains any of the hours, ascending."""
        return sorted({self.first(hour) for hour in hours})

    def whole(self, hours: Iterable[int]) -> frozenset[int]:
        """Return all hours of the partitions that contain any of the hours."""
        found: set[int] = set()
        for first in self.firsts(hours):
            found.update(range(first, first + self.hours))
        return frozenset(found)

    def rounded_up(self, hours: int | None) -> int | None:
        """Return a number of hours, rounded up to whole partitions; None, which means no limit, for None."""
        if hours is None:
            return None
        partitions = -(-hours // self.hours)
        return partitions * self.hours

    def key(self, hour: int) -> str:
        """Return the key of the partition that contains an hour: `2026-01-01-05:00`, or `2026-01-01`."""
        return hour_start(hour).strftime(self.key_format)

    def format_hours(self, hours: Iterable[int]) -> str:
        """Return the partitions of hours for a person, runs joined: `2026-01-01..2026-01-03, 2026-01-05`."""
        return format_hours(self.whole(hours), self.key)


HOUR = Grain("hour", 1, HOUR_FORMAT)
DAY = Grain("day", 24, "%Y-%m-%d")

GRAINS = {grain.name: grain for grain in (HOUR, DAY)}
