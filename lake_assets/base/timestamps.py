"""Moments as Kafka, Iceberg, the manifest and served tables store them: milliseconds since 1970-01-01 UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from lake_assets.base.hours import moment_at

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def milliseconds(at: datetime) -> int:
    """Return a moment in milliseconds since 1970; a fraction of a millisecond is cut off."""
    return (at - _EPOCH) // _MILLISECOND


def moment(at: int) -> datetime:
    """Return the moment, in UTC, of milliseconds since 1970; the first or last one that Python knows for one beyond."""
    return moment_at(at * 1000)


_FIRST = milliseconds(datetime.min.replace(tzinfo=UTC))
_LAST = milliseconds(datetime.max.replace(tzinfo=UTC))


def is_moment(at: int) -> bool:
    """Return whether milliseconds since 1970 lie in the years 1 to 9999; a value in microseconds does not."""
    return _FIRST <= at <= _LAST
