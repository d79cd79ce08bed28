"""How much of an hour is in: an estimate from how the rows of earlier hours arrived. Pure.

The age of an hour is the number of hours from it to the newest landing. The share of an hour's rows that has arrived at
an age is the product of what each later age adds, by chain ladder, as insurers estimate claims that are not reported
yet: of the hours that have reached age k, the rows that had arrived at age k-1, divided by those at age k. Only hours
that are older than the hour itself contribute, and so none estimates itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lake_assets.incremental.engine.arrivals import Cell

LEAST_HOURS = 12
"""The number of earlier hours with rows from which on there is an estimate."""

FULL = 0.9995
"""A share from which on an hour counts as full: it would be shown as 100.0 %."""


@dataclass(frozen=True)
class FillingHour:
    """An event hour that is still filling.

    Attributes:
        hour: The hour.
        rows: Its rows so far.
        share: The estimated share of its rows that is in, above 0 and below 1.
    """

    hour: int
    rows: int
    share: float

    @property
    def in_words(self) -> str:
        """The share for people: `99.2 %`."""
        return f"{100 * self.share:.1f} %"


def filling_hours(cells: Iterable[Cell]) -> tuple[FillingHour, ...]:
    """Return the hours that are still filling, newest first.

    Args:
        cells: The rows of a raw table by landing hour and event hour.

    Returns:
        Empty if the table has too few hours. Hours of which all rows are in, by the estimate, are left out.
    """
    rows = _rows_by_age(cells)
    if not rows:
        return ()
    by_hour: Counter[int] = Counter()
    for (hour, _), number in rows.items():
        by_hour[hour] += number
    newest = max(hour + age for hour, age in rows)
    shares = shares_by_age(rows, newest)
    hours = sorted(by_hour)
    found: list[FillingHour] = []
    for earlier, hour in enumerate(hours):
        share = shares.get(newest - hour, 1.0)
        if earlier >= LEAST_HOURS and share < FULL:
            found.append(FillingHour(hour, by_hour[hour], share))
    return tuple(reversed(found))


def shares_by_age(rows: Mapping[tuple[int, int], int], newest: int) -> dict[int, float]:
    """Return age → share of an hour's rows that is in at this age. At ages that are left out, all are.

    Args:
        rows: (Event hour, age at arrival) → rows; ages are 0 or more.
        newest: The hour of the newest landing.
    """
    shares: dict[int, float] = {}
    share = 1.0
    for age, added in sorted(_added_by_age(rows, newest).items(), reverse=True):
        share *= 1.0 - added
        shares[age - 1] = share
    return _for_every_age(shares)


def _added_by_age(rows: Mapping[tuple[int, int], int], newest: int) -> dict[int, float]:
    """Return age → share of the rows so far that came just then, of the hours that have reached that age.

    An age at which all rows of these hours came is left out: it would say that nothing is in before.
    """
    by_age: dict[int, list[tuple[int, int]]] = {}
    for (hour, age), number in rows.items():
        by_age.setdefault(age, []).append((hour, number))
    so_far: Counter[int] = Counter()
    added: dict[int, float] = {}
    for age in sorted(by_age):
        so_far.update(dict(by_age[age]))
        reached = sum(number for hour, number in so_far.items() if newest - hour >= age)
        came = sum(number for _, number in by_age[age])
        if age > 0 and came < reached:
            added[age] = came / reached
    return added


def _for_every_age(shares: Mapping[int, float]) -> dict[int, float]:
    """Return the shares with those of the ages between, each that of the next age at which rows came."""
    found: dict[int, float] = {}
    for age in range(max(shares, default=-1), -1, -1):
        found[age] = shares.get(age, found.get(age + 1, 1.0))
    return found


def _rows_by_age(cells: Iterable[Cell]) -> Counter[tuple[int, int]]:
    """Return (event hour, age at arrival) → rows. Rows that are dated shortly after their landing have age 0."""
    found: Counter[tuple[int, int]] = Counter()
    for cell in cells:
        age = max(0, cell.landed_hour - cell.event_hour)
        found[cell.event_hour, age] += cell.rows
    return found
