"""How much time one partition of a target holds: an hour, or a day.

Hours stay the engine's one unit of time: changes, watermarks and complete-through are counted in them. A grain says
which hours go together: they are planned, compared, staged and published as a whole, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lake_assets.base.hours import HOUR_FORMAT, format_hours, hour_start


@dataclass(frozen=True)
class Grain:
    """A partition holds `hours` consecutive hours, counted from 1970-01-01 00:00 UTC.

    name: as it is declared. key_format: of a partition's key, as Dagster writes it (strftime).
    """

    name: str
    hours: int
    key_format: str

    def first(self, hour: int) -> int:
        """The first hour of the partition that an hour lies in."""
        return hour - hour % self.hours

    def last(self, hour: int) -> int:
        """The last hour of the partition that an hour lies in."""
        return self.first(hour) + self.hours - 1

    def numbered(self, number: int) -> range:
        """The hours of a partition that Iceberg numbers so: its transforms count hours, or days, since 1970."""
        return range(number * self.hours, (number + 1) * self.hours)

    def complete(self, through: int) -> int:
        """The last hour of the last partition that is complete, when all hours up to `through`, inclusive, are."""
        return self.first(through + 1) - 1

    def firsts(self, hours: Iterable[int]) -> list[int]:
        """The first hour of each partition that any of the hours lies in, ascending."""
        return sorted({self.first(hour) for hour in hours})

    def whole(self, hours: Iterable[int]) -> frozenset[int]:
        """All hours of the partitions that any of the hours lies in."""
        return frozenset(h for first in self.firsts(hours) for h in range(first, first + self.hours))

    def rounded_up(self, hours: int | None) -> int | None:
        """A number of hours, rounded up to whole partitions; None, no limit, stays."""
        return hours if hours is None else -(-hours // self.hours) * self.hours

    def key(self, hour: int) -> str:
        """The key of the partition that an hour lies in: `2026-01-01-05:00`, or `2026-01-01`."""
        return hour_start(hour).strftime(self.key_format)

    def format_hours(self, hours: Iterable[int]) -> str:
        """The partitions of hours, for people, runs joined: `2026-01-01..2026-01-03, 2026-01-05`."""
        return format_hours(self.whole(hours), self.key)


HOUR = Grain("hour", 1, HOUR_FORMAT)
DAY = Grain("day", 24, "%Y-%m-%d")

GRAINS = {grain.name: grain for grain in (HOUR, DAY)}
