"""What a message must be to become a row of a raw table, and why one does not: the reasons of dead letters. Pure.

A message is a JSON object of the table's own columns; more fields than these do not matter. It needs a distinct id and
a time; other columns may be missing, or null. The verdict depends on the message alone: both zones come to the same.

A heartbeat is a message with the header `HEARTBEAT`, its time in ISO 8601; what else is in it does not matter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property, partial
from typing import Any

from lake_assets.errors import ConfigurationError, UsageError
from lake_assets.incremental.declaration import Pipeline, RawTable
from lake_assets.landing.files.records import Record
from lake_assets.landing.manifest.schema import is_moment, milliseconds

HEARTBEAT = "lake-heartbeat"
TOO_LARGE, NOT_JSON, BAD_HEARTBEAT = "too large", "not a JSON object", "bad heartbeat"
BAD_TIMESTAMP = "bad timestamp"
TO_HAVE_FEEDS = "To land a raw table from Kafka, add `subjects=` to its Pipeline: whose rows are in it."
DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
INT_BITS = {"int": 32, "long": 64}

Row = dict[str, Any]
"""Column → value: str, int, float, bool, Decimal, date or datetime in UTC; all columns of the table's own are there."""

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Feed:
    """A topic, and the raw table that its messages become rows of.

    distinct_id: the column that tells whose a message is. max_bytes: a message whose value is longer is a dead letter.
    Raises `ConfigurationError` for a column of a type that no message can hold.
    """

    topic: str
    raw: RawTable
    distinct_id: str
    max_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        assert set(self._readers) == set(self.raw.columns)

    def flaw(self, value: bytes | None, headers: Headers, timestamp: int = 0) -> str | None:
        """Why a message is a dead letter; None if it is none: a row, or a heartbeat. timestamp: in ms since 1970."""
        if (beat := heartbeat_of(headers)) is not None:
            return beat if isinstance(beat, str) else None
        if not is_moment(timestamp):
            return BAD_TIMESTAMP
        if value is not None and len(value) > self.max_bytes:
            return TOO_LARGE
        found = self.parse(value)
        return found if isinstance(found, str) else None

    def parse(self, value: bytes | None) -> Row | str:
        """The row that a message holds, however long it is, or the reason why it holds none."""
        found = _object(value or b"")
        if found is None:
            return NOT_JSON
        row: Row = {}
        for column, read in self._readers.items():
            given = found.get(column)
            try:
                row[column] = None if given is None else read(given)
            except (ValueError, TypeError, ArithmeticError):
                return f"bad {self.raw.columns[column]} {column}"
        missing = [c for c in (self.distinct_id, self.raw.time_column) if row[c] in (None, "")]
        return f"no {missing[0]}" if missing else row

    def distinct_id_of(self, record: Record) -> str | None:
        """Whose a record is; None if it makes no row, as a heartbeat does."""
        row = self.parse(record.value)
        return None if isinstance(row, str) else str(row[self.distinct_id])

    def sent(self, record: Record) -> int:
        """When a record happened or was sent, whichever is first: milliseconds since 1970. So the door judges, too."""
        row = self.parse(record.value)
        if isinstance(row, str):
            return record.timestamp
        return min(milliseconds(row[self.raw.time_column]), record.timestamp)

    @cached_property
    def _readers(self) -> Mapping[str, Callable[[Any], Any]]:
        return {column: _reader(self.raw, column) for column in self.raw.columns}


def feeds(pipeline: Pipeline, *, prefix: str = "", max_bytes: int = 1 << 20) -> tuple[Feed, ...]:
    """A feed for each raw table whose rows are somebody's: the prefix and the table's name are its topic."""
    columns = [column for subject in pipeline.subjects for column in subject.columns]
    whose = [(raw, [c for c in columns if c in raw.columns]) for raw in pipeline.raw]
    return tuple(Feed(f"{prefix}{raw.table}", raw, found[0], max_bytes) for raw, found in whose if found)


def feed_of(found: Iterable[Feed], topic: str) -> Feed:
    """The feed of a topic. Raises `UsageError` if there is none."""
    by_topic = {feed.topic: feed for feed in found}
    if topic not in by_topic:
        remedy = f"Name one of: {', '.join(by_topic)}." if by_topic else TO_HAVE_FEEDS
        raise UsageError(f"No raw table is fed by the topic {topic!r}.", remedy=remedy)
    return by_topic[topic]


def heartbeat_of(headers: Headers) -> datetime | str | None:
    """The time of a heartbeat; None if it is none; a reason if it is one without a time."""
    for name, value in headers:
        if name == HEARTBEAT:
            try:
                return _moment((value or b"").decode())
            except (ValueError, ArithmeticError):
                return BAD_HEARTBEAT
    return None


def _object(value: bytes) -> Mapping[str, Any] | None:
    try:
        found = _DECODER.decode(value.decode())
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse)


def _reader(raw: RawTable, column: str) -> Callable[[Any], Any]:
    """What makes a column's value of a value of JSON, or raises."""
    kind = raw.columns[column]
    if matched := DECIMAL.fullmatch(kind):
        return partial(_decimal, precision=int(matched[1]), scale=int(matched[2]))
    if kind in INT_BITS:
        return partial(_whole, bits=INT_BITS[kind])
    if kind not in _PLAIN:
        raise ConfigurationError(
            f"{raw.table} has the column {column} of type {kind}, which no message can hold.",
            remedy=f"Use one of: {', '.join([*_PLAIN, *INT_BITS])}, decimal(p, s).",
        )
    return _PLAIN[kind]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    value.encode()  # half of a surrogate pair is no text
    return value


def _moment(value: Any) -> datetime:
    """Without a zone it is UTC."""
    moment = datetime.fromisoformat(_text(value))
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _decimal(value: Any, *, precision: int, scale: int) -> Decimal:
    """Exactly as given, or not at all: nothing is rounded."""
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise TypeError(value)
    found = Decimal(value)
    if not found.is_finite() or found.adjusted() >= precision - scale or found != round(found, scale):
        raise ValueError(value)
    return found


def _whole(value: Any, *, bits: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(value)
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise TypeError(value)
    return float(value)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _day(value: Any) -> date:
    return date.fromisoformat(_text(value))


_PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "string": _text,
    "timestamptz": _moment,
    "date": _day,
    "double": _number,
    "boolean": _truth,
}
