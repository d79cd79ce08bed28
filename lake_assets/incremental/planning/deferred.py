"""Hours that wait by the declared policy for late rows: the value, and how it is kept from session to session. Pure.

`DeferredHour` is stored as JSON in `etl.session` and `etl.high_watermark`, `LateRows` in `etl.session`: their field
names stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from lake_assets.base.grain import HOUR, Grain
from lake_assets.base.timestamps import moment

if TYPE_CHECKING:
    from lake_assets.incremental.declaration import Defer


@dataclass(frozen=True)
class DeferredHour:
    """An event hour whose late rows wait for a later session.

    Attributes:
        hour: The hour.
        since_ms: Commit time of the first raw snapshot that brought rows which wait, milliseconds since 1970.
        rows: The rows that wait, by metadata: at most so many. The rows of a data file whose rows by hour are unknown
            all count in the first of its hours that waits.
        after: The snapshot of the raw table up to which the target has the rows of the hour: all later ones wait, and
            all of them were appended. None in state that an older version stored.
    """

    hour: int
    since_ms: int
    rows: int
    after: int | None = None

    @property
    def since(self) -> datetime:
        """When the first of the rows was committed."""
        return moment(self.since_ms)


@dataclass(frozen=True)
class LateRows:
    """Rows of some hours that were appended to the driving source, and that earlier sessions left out.

    Attributes:
        from_snapshot_id: The rows came after this snapshot of the source.
        to_snapshot_id: They came up to and with this one.
        hours: The hours, ascending.
    """

    from_snapshot_id: int
    to_snapshot_id: int
    hours: tuple[int, ...]


def due_at(deferred: Iterable[DeferredHour], late: Defer | None) -> datetime | None:
    """Return the moment from which on the deferred hours are built; None if none waits."""
    since = [each.since_ms for each in deferred]
    if late is None or not since:
        return None
    return moment(min(since)) + late.longest_wait


def still_deferred(
    before: Iterable[DeferredHour], now: Iterable[DeferredHour], pending: Collection[int]
) -> tuple[DeferredHour, ...]:
    """Return the deferred hours after a session, ascending: those that are still pending.

    Args:
        before: Those before the session.
        now: Those of its plan. They replace the former ones.
        pending: The hours that are pending after the session. One that is not deferred is due at once.
    """
    found = {each.hour: each for each in (*before, *now)}
    return tuple(found[hour] for hour in sorted(found.keys() & set(pending)))


def in_words(deferred: Collection[DeferredHour], late: Defer | None, grain: Grain = HOUR) -> str:
    """Return, for people, which hours wait, since when and until when. The text is the same at each look."""
    hours = [each.hour for each in deferred]
    noun = grain.name if len(grain.firsts(hours)) == 1 else f"{grain.name}s"
    first_seen = min(each.since for each in deferred)
    rows = sum(each.rows for each in deferred)
    since = f"{first_seen:%Y-%m-%d %H:%M} UTC"
    text = f"{noun} {grain.format_hours(hours)}: up to {rows:,} late rows are deferred since {since}"
    due = due_at(deferred, late)
    if late is None or due is None:
        return text
    text = f"{text}, until {due:%Y-%m-%d %H:%M} UTC"
    return text if late.or_rows is None else f"{text} or until {late.or_rows:,} rows wait"


def age_in_words(age: timedelta) -> str:
    """Return a duration for people, in hours and minutes: `2 h 05 min`."""
    minutes = max(0, int(age.total_seconds()) // 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"
