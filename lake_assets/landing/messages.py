"""The messages that become rows, and the records that deletion requests delete.

The messages that become rows of a raw table, and the reasons why others become dead letters. Pure.

A message is a JSON object with the table's own columns; other fields are ignored. It needs a distinct id and a time;
other columns may be missing or null. `base.values` has the rules of values. The outcome depends on the message alone,
so both zones agree on it.

A heartbeat is a message with the header `HEARTBEAT`, whose value is a time in ISO 8601; the rest of it is ignored.

How earlier versions have read messages that `base.values` refuses. Pure.

Files that landed by these rules hold such messages as rows: they are loaded, and erased by their ids, as they landed.
Nothing lands by these rules any more.

Which records a deletion request deletes. Pure.

A file lands scrubbed for all requests that are recorded by then, and is scrubbed later for those that come after.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any

from lake_assets.base.hours import is_moment, milliseconds
from lake_assets.base.values import KINDS, Cast, KeyTwice, Refused, cast, json_object, moment_of, parts_of
from lake_assets.errors import ConfigurationError, UsageError, suggestion
from lake_assets.incremental.declaration import Pipeline, RawTable, Topic
from lake_assets.landing.cutover import Policy, effective
from lake_assets.landing.records import DistinctId, Record, Tally, mentions
from lake_assets.landing.state import DeletionRequest, Deletions

HEARTBEAT = "lake-heartbeat"
TOO_LARGE = "too large"
NOT_JSON = "not a JSON object"
KEY_TWICE = "a key twice"
BAD_HEARTBEAT = "bad heartbeat"
BAD_TIMESTAMP = "bad timestamp"
TO_HAVE_FEEDS = 'To land a raw table from Kafka, add feed=Topic("id_column") to its RawTable.'

DEFAULT_MAX_BYTES = 1 << 20

Row = dict[str, Any]
"""Column → value: str, int, float, bool, Decimal, date or datetime in UTC. It has all of the table's own columns."""

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Feed:
    """A topic, and the raw table that its messages become rows of.

    Attributes:
        topic: The topic.
        raw: The raw table.
        distinct_id: The column with the id of the subject of a message.
        max_bytes: A message with a longer value becomes a dead letter.
        retention_hours: As the topic declares it.
        subject: The subject whose id `distinct_id` is; None if it is that of no declared subject.

    Raises:
        ConfigurationError: A column has a type that no message can hold.
    """

    topic: str
    raw: RawTable
    distinct_id: str
    max_bytes: int = DEFAULT_MAX_BYTES
    retention_hours: int | None = None
    subject: str | None = None

    def __post_init__(self) -> None:
        assert set(self._casts) == set(self.raw.columns)

    def flaw(self, value: bytes | None, headers: Headers, timestamp: int = 0) -> str | None:
        """Return why a message is a dead letter; None if it is a row or a heartbeat.

        Args:
            value: Of the message.
            headers: Of the message.
            timestamp: Milliseconds since 1970.
        """
        heartbeat = heartbeat_of(headers)
        if isinstance(heartbeat, datetime):
            return None
        if heartbeat is not None:
            return heartbeat
        if not is_moment(timestamp):
            return BAD_TIMESTAMP
        if value is not None and len(value) > self.max_bytes:
            return TOO_LARGE
        row = self.parse(value)
        return row if isinstance(row, str) else None

    def flaw_of(self, record: Record, policies: Sequence[Policy]) -> str | None:
        """Do the same for a record, by the cutover policies of its partition.

        A time that is none makes a dead letter only where a policy of a version before applies: since then the row
        lands, with the time of its load.
        """
        timestamp = record.timestamp
        if not is_moment(timestamp) and policies and effective(policies, record.offset).by_heartbeats:
            timestamp = 0
        return self.flaw(record.value, record.headers, timestamp)

    def parse(self, value: bytes | None) -> Row | str:
        """Return the row of a message of any length, or the reason why it is none."""
        try:
            fields = json_object((value or b"").decode())
        except KeyTwice:
            return KEY_TWICE
        except (Refused, UnicodeDecodeError):
            return NOT_JSON
        return self._row(fields, self._casts)

    def parse_landed(self, value: bytes | None) -> Row | str:
        """Return the row of a message that has landed as one, perhaps by the rules of an earlier version."""
        row = self.parse(value)
        if isinstance(row, dict):
            return row
        fields = _earlier_json_object(value or b"")
        return row if fields is None else self._row(fields, self._earlier_casts)

    def _row(self, fields: Mapping[str, Any], casts: Mapping[str, Cast]) -> Row | str:
        row: Row = {}
        for column, read in casts.items():
            given = fields.get(column)
            try:
                row[column] = None if given is None else read(given)
            except (ValueError, TypeError, ArithmeticError):
                kind = self.raw.columns[column]
                return f"bad {(parts_of(kind) or [kind])[0]} {column}"
        for column in (self.distinct_id, self.raw.time_column):
            if row[column] in (None, ""):
                return f"no {column}"
        return row

    def distinct_id_of(self, record: Record) -> str | None:
        """Return the distinct id of a record; None if it makes no row, as a heartbeat."""
        row = self.parse_landed(record.value)
        if isinstance(row, str):
            return None
        return str(row[self.distinct_id])

    def sent(self, record: Record) -> int:
        """Return when a record happened or was sent, whichever is earlier, in milliseconds since 1970.

        The erasure guard of the engine uses the same rule.
        """
        row = self.parse_landed(record.value)
        if isinstance(row, str):
            return record.timestamp
        return min(milliseconds(row[self.raw.time_column]), record.timestamp)

    @cached_property
    def _casts(self) -> Mapping[str, Cast]:
        found = {}
        for column, kind in self.raw.columns.items():
            read = cast(kind)
            if read is None:
                raise ConfigurationError(
                    f"{self.raw.table} has the column {column} of type {kind}, which no message can hold.",
                    remedy=f"Use one of: {', '.join(KINDS)}.",
                )
            found[column] = read
        return found

    @cached_property
    def _earlier_casts(self) -> Mapping[str, Cast]:
        return {column: _earlier_cast(kind) or self._casts[column] for column, kind in self.raw.columns.items()}


def feeds(pipeline: Pipeline, *, prefix: str = "", max_bytes: int = DEFAULT_MAX_BYTES) -> tuple[Feed, ...]:
    """Return a feed for each raw table that declares one, or that has an id column of a subject and declares nothing.

    Args:
        pipeline: Declares the raw tables and the subjects.
        prefix: A topic that has no name of its own is the prefix followed by the name of the table.
        max_bytes: A message with a longer value becomes a dead letter.
    """
    found = []
    for raw in pipeline.raw:
        declared = _topic_of(pipeline, raw)
        if declared is not None:
            topic = declared.name or f"{prefix}{raw.table}"
            column = declared.id_column
            subjects = [subject.name for subject in pipeline.subjects if column in subject.columns]
            subject = subjects[0] if subjects else None
            found.append(Feed(topic, raw, column, max_bytes, declared.retention_hours, subject))
    return tuple(found)


def _topic_of(pipeline: Pipeline, raw: RawTable) -> Topic | None:
    if raw.feed is False:
        return None
    if raw.feed is not None:
        return raw.feed
    for subject in pipeline.subjects:
        own_columns = subject.columns_of(raw.columns)
        if own_columns:
            return Topic(own_columns[0])
    return None


def feed_of(feeds: Iterable[Feed], topic: str) -> Feed:
    """Return the feed of a topic. Raises `UsageError` if there is none."""
    by_topic = {feed.topic: feed for feed in feeds}
    if topic not in by_topic:
        remedy = suggestion(topic, [*by_topic]) if by_topic else TO_HAVE_FEEDS
        raise UsageError(f"No raw table is fed by the topic {topic!r}.", remedy=remedy)
    return by_topic[topic]


def heartbeat_of(headers: Headers) -> datetime | str | None:
    """Return the time of a heartbeat; None if the message is none; a reason if the heartbeat has no valid time."""
    for name, value in headers:
        if name == HEARTBEAT:
            try:
                found: datetime = moment_of((value or b"").decode())
            except ValueError:
                return BAD_HEARTBEAT
            return found
    return None


def _earlier_json_object(value: bytes) -> Mapping[str, Any] | None:
    """Return the object of a message, with the last value of a key that is there twice; None if it is none."""
    try:
        found = json.loads(value.decode(), parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _earlier_cast(kind: str) -> Cast | None:
    """Return the cast to an Iceberg type; None if it was that of `base.values`."""
    if kind.startswith("decimal"):
        return Decimal
    others: Mapping[str, Cast] = {"timestamptz": _moment, "date": date.fromisoformat, "double": float}
    return others.get(kind)


def _moment(text: str) -> datetime:
    """Return a moment that may have no zone, which was UTC, and may be finer than a microsecond, which was cut."""
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


Hashed = Callable[[str], str]
"""Returns the keyed hash of a distinct id, hexadecimal."""

IsDeleted = Callable[[Record, Sequence[DeletionRequest]], bool]
"""Returns whether one of the requests deletes a record."""


def sent_at(record: Record) -> int:
    """Return the timestamp of a record: milliseconds since 1970."""
    return record.timestamp


def _grouped(requests: Sequence[DeletionRequest]) -> Deletions:
    return requests if isinstance(requests, Deletions) else Deletions(requests)


@dataclass(frozen=True)
class Scrub:
    """The rules by which a deletion request applies to a record.

    Attributes:
        distinct_id: Returns the distinct id of a record.
        hashed: Returns the keyed hash of a distinct id.
        sent: Returns when a record happened or was sent, whichever is earlier, in milliseconds since 1970.
    """

    distinct_id: DistinctId
    hashed: Hashed
    sent: Callable[[Record], int] = sent_at

    def is_named(self, record: Record, requests: Sequence[DeletionRequest]) -> bool:
        """Return whether a request that covers a record names its distinct id."""
        # Of new records most requests are excluded by offset and timestamp, before anything is decoded.
        groups = _grouped(requests).groups
        possible = [(one, ids) for one, ids in groups if one.cut is None or one.covers(record, self.sent)]
        distinct_id = self.distinct_id(record) if possible else None
        if distinct_id is None:
            return False
        id_hash = self.hashed(distinct_id)
        return any(id_hash in ids and one.covers(record, self.sent) for one, ids in possible)

    def is_mentioned(self, record: Record, requests: Sequence[DeletionRequest]) -> bool:
        """Return whether a request that covers a dead letter names an id that it mentions."""
        eligible = [ids for one, ids in _grouped(requests).groups if one.covers(record, sent_at)]
        if not eligible:
            return False
        # A long dead letter has many parts: their hashes are not kept.
        return any(id_hash in ids for id_hash in map(self.hashed, mentions(record)) for ids in eligible)

    def kept(
        self, records: Iterable[Record], requests: Sequence[DeletionRequest], removed: Tally, *, dead_letters: bool
    ) -> Iterator[Record]:
        """Yield the records that no request deletes; `removed` counts the others."""
        is_deleted = self.is_mentioned if dead_letters else self.is_named
        requests = _grouped(requests)
        for record in records:
            if is_deleted(record, requests):
                removed.add(record)
            else:
                yield record

    def rule_for(self, *, dead_letters: bool) -> IsDeleted:
        """Return the rule for rows, or for dead letters."""
        return self.is_mentioned if dead_letters else self.is_named
