"""How far a topic is loaded: properties of its raw table, which are committed together with the rows.

Names of files change under compaction, and summaries of snapshots expire; offsets and table properties stay.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from lake_assets.base.hours import from_milliseconds, hour_of, is_moment, milliseconds
from lake_assets.incremental.engine.erasures import FED_BATCH
from lake_assets.landing.consume.messages import heartbeat_of
from lake_assets.landing.files.offset_ranges import with_number_keys, with_text_keys
from lake_assets.landing.files.records import Record

OFFSETS = "lake.landing.offsets"
"""Table property: JSON, topic → partition → the next offset to load."""

HEARTBEATS = "lake.landing.heartbeats"
"""Table property: JSON, topic → partition → the latest heartbeat that was loaded, in ISO 8601."""

BATCH = "lake.landing.batch"
"""Table property: the number of the last batch that was loaded."""

LETTERS = "lake.landing.dead-letters"
"""Table property: JSON, topic → the fields of `LetterCounts`."""

TIMES = "lake.landing.wrong-times"
"""Table property: JSON, topic → the fields of `WrongTimes`."""

NEAR = timedelta(hours=1)
"""A message's own time counts if it is not earlier than the heartbeat before it, nor later than the loader's clock, by
more than this."""

KAFKA_BEGAN = datetime(2011, 1, 1, tzinfo=UTC)
"""No message is older than Kafka; a time in seconds is one of 1970, if it is taken for milliseconds."""

FEW = 10
"""Fewer messages have no share: one dead letter in a quiet hour must not stop a table."""

MAX_AHEAD = timedelta(minutes=10)
"""A heartbeat that is later than the clock by more than this does not count: a clock is wrong."""

BATCH_PREFIX = FED_BATCH
"""Begins the `batch_id` of landed rows. Rows with another one were written to the raw table without landing."""


Spans = Mapping[int, Sequence[tuple[int, int]]]
"""Partition → ranges of offsets, both inclusive, in ascending order. All dead letters within a range are meant."""


@dataclass(frozen=True)
class LetterCounts:
    """The dead letters of a topic, as far as it is loaded.

    Attributes:
        messages: Number of messages since complete-through moved, without heartbeats; of few, since earlier.
        dead: Number of dead letters among them.
        held: Whether complete-through stands still because too many of the messages were dead letters.
        settled: The dead letters that were loaded again or accepted.
    """

    messages: int = 0
    dead: int = 0
    held: bool = False
    settled: Spans = field(default_factory=dict)

    def exceeds(self, share: float) -> bool:
        """Return whether more of the messages are dead letters than a share of them. `FEW` messages have no share."""
        return self.dead > share * self.messages and (self.messages >= FEW or not share)

    def settles(self, partition: int, first: int, last: int) -> bool:
        """Return whether all dead letters of a range of offsets, both inclusive, are settled."""
        return any(begin <= first and last <= end for begin, end in self.settled.get(partition, ()))


@dataclass(frozen=True)
class WrongTimes:
    """Messages whose own time was not taken for `landed_at`, because somebody's clock or unit is wrong.

    Attributes:
        messages: How many have been loaded.
        at: When the last one was loaded.
        timestamp: Of the last one.
    """

    messages: int
    at: datetime
    timestamp: int

    @property
    def cause(self) -> str:
        """What is wrong with the last one."""
        now = milliseconds(self.at)
        for unit, factor in (("seconds", 1e3), ("microseconds", 1e-3), ("nanoseconds", 1e-6)):
            if abs(self.timestamp * factor - now) < now / 2:
                return f"{self.timestamp}, which are {unit} where Kafka wants milliseconds"
        if self.timestamp <= 0:
            return f"{self.timestamp}, which is none"
        side = "behind" if self.timestamp < now else "ahead of"
        return f"{from_milliseconds(self.timestamp):%Y-%m-%d %H:%M:%S} UTC, by a clock that is {side} that of the load"


@dataclass(frozen=True)
class Progress:
    """The part of a topic that is in its raw table.

    Attributes:
        topic: The topic.
        offsets: Partition → the next offset to load.
        heartbeats: Partition → the latest heartbeat.
        batch: The number of the last batch; 0 if there is none.
        letters: The dead letters.
        wrong: Messages whose own time was not taken; None if there was none.
    """

    topic: str
    offsets: Mapping[int, int] = field(default_factory=dict)
    heartbeats: Mapping[int, datetime] = field(default_factory=dict)
    batch: int = 0
    letters: LetterCounts = field(default_factory=LetterCounts)
    wrong: WrongTimes | None = None

    @property
    def batch_id(self) -> str:
        """The `batch_id` of the rows of the last batch."""
        return f"{BATCH_PREFIX}{self.batch:09}"

    def after(self, offsets: Mapping[int, int], heartbeats: Mapping[int, datetime]) -> Progress:
        """Return the progress after one more batch. A heartbeat never goes back.

        Args:
            offsets: Partition → the offset after the last one of the batch.
            heartbeats: Partition → the latest heartbeat in the batch.
        """
        latest = dict(self.heartbeats)
        for partition, at in heartbeats.items():
            latest[partition] = max(at, latest.get(partition, at))
        return replace(
            self,
            offsets={**self.offsets, **offsets},
            heartbeats=latest,
            batch=self.batch + 1,
        )

    def counting(self, messages: int, dead: int) -> Progress:
        """Return the progress with further messages, some of them dead letters."""
        counts = replace(self.letters, messages=self.letters.messages + messages, dead=self.letters.dead + dead)
        return replace(self, letters=counts)

    def landed(self, records: Sequence[Record], now: datetime) -> tuple[list[datetime], Progress]:
        """Return when each of further messages landed, and the progress with those whose own time is wrong.

        That is the message's own time. If it cannot be, it is the time of the load.

        Args:
            records: Messages and heartbeats, those of a partition in order of offset.
            now: The present time.
        """
        least = {partition: at - NEAR for partition, at in self.heartbeats.items()}
        found, wrong = [], self.wrong
        for record in records:
            heartbeat = heartbeat_of(record.headers)
            if isinstance(heartbeat, datetime) and is_credible(heartbeat, now):
                least[record.partition] = max(heartbeat - NEAR, least.get(record.partition, KAFKA_BEGAN))
            at = from_milliseconds(record.timestamp) if is_moment(record.timestamp) else None
            if heartbeat is None and (at is None or not least.get(record.partition, KAFKA_BEGAN) <= at <= now + NEAR):
                wrong = WrongTimes((wrong.messages if wrong else 0) + 1, now, record.timestamp)
                at = now
            found.append(at or now)
        return found, replace(self, wrong=wrong)

    def judged(self, partitions: Iterable[int], current: int | None, share: float) -> tuple[Progress, int | None]:
        """Return the progress and the complete-through that it reaches, which dead letters may hold.

        Args:
            partitions: All partitions of the topic.
            current: The complete-through of the table.
            share: If more of the messages since it moved are dead letters, it stays there until they are settled.
        """
        reached = self.complete_through(partitions)
        if reached is None or (current is not None and reached <= current):
            return self, reached
        if self.letters.held or self.letters.exceeds(share):
            return replace(self, letters=replace(self.letters, held=True)), current
        if self.letters.messages < FEW and self.letters.dead:
            return self, reached  # counted with those of the next hours
        return replace(self, letters=replace(self.letters, messages=0, dead=0)), reached

    def without_future(self, now: datetime) -> Progress:
        """Return the progress without heartbeats of the future, which a version before may have stored."""
        counted = {partition: at for partition, at in self.heartbeats.items() if is_credible(at, now)}
        return replace(self, heartbeats=counted)

    def complete_through(self, partitions: Iterable[int]) -> int | None:
        """Return the hour before the earliest of the partitions' latest heartbeats.

        The time of other messages does not count: a message dated 2099 completes nothing.

        Args:
            partitions: All partitions of the topic.

        Returns:
            Hours since 1970-01-01 UTC; None as long as a partition has no heartbeat, or there is no partition.
        """
        times = []
        for partition in partitions:
            at = self.heartbeats.get(partition)
            if at is None:
                return None
            times.append(at)
        return hour_of(min(times)) - 1 if times else None


def is_credible(heartbeat: datetime, now: datetime) -> bool:
    """Return whether a heartbeat is not of the future, with regard to clocks that differ by `MAX_AHEAD`."""
    return heartbeat <= now + MAX_AHEAD


def read_progress(properties: Mapping[str, str], topic: str) -> Progress:
    """Return the progress of a topic according to the properties of its raw table."""
    offsets: dict[int, int] = _of_topic(properties.get(OFFSETS), topic)
    heartbeats: dict[int, str] = _of_topic(properties.get(HEARTBEATS), topic)
    return Progress(
        topic,
        offsets=offsets,
        heartbeats={partition: datetime.fromisoformat(at) for partition, at in heartbeats.items()},
        batch=int(properties.get(BATCH, "0")),
        letters=_letters(json.loads(properties.get(LETTERS, "{}")).get(topic, {})),
        wrong=_wrong(json.loads(properties.get(TIMES, "{}")).get(topic)),
    )


def progress_of(catalog: Catalog, table: str, topic: str) -> Progress:
    """Return the progress of a topic according to a table of the catalog, which may be missing."""
    try:
        properties = catalog.load_table(table).metadata.properties
    except NoSuchTableError:
        return Progress(topic)
    return read_progress(properties, topic)


def progress_properties(progress: Progress, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the table properties of a progress.

    Args:
        progress: Of one topic.
        properties: The present properties of the table; their values of other topics are kept.
    """
    heartbeats = {partition: at.isoformat() for partition, at in progress.heartbeats.items()}
    found = {
        OFFSETS: _with_topic(properties.get(OFFSETS), progress.topic, progress.offsets),
        HEARTBEATS: _with_topic(properties.get(HEARTBEATS), progress.topic, heartbeats),
        BATCH: str(progress.batch),
    }
    if LETTERS in properties or progress.letters != LetterCounts():
        found[LETTERS] = _with_letters(properties.get(LETTERS), progress)
    if progress.wrong is not None:
        fields = {**vars(progress.wrong), "at": progress.wrong.at.isoformat()}
        found[TIMES] = json.dumps({**json.loads(properties.get(TIMES, "{}")), progress.topic: fields}, sort_keys=True)
    return found


def _wrong(stored: Mapping[str, Any] | None) -> WrongTimes | None:
    if stored is None:
        return None
    return WrongTimes(stored["messages"], datetime.fromisoformat(stored["at"]), stored["timestamp"])


def _letters(stored: Mapping[str, Any]) -> LetterCounts:
    spans: dict[int, list[tuple[int, int]]] = {}
    for partition, several in stored.get("settled", {}).items():
        spans[int(partition)] = [(first, last) for first, last in several]
    return LetterCounts(stored.get("messages", 0), stored.get("dead", 0), stored.get("held", False), spans)


def _with_letters(text: str | None, progress: Progress) -> str:
    by_topic = json.loads(text or "{}")
    counts = progress.letters
    by_topic[progress.topic] = {
        "messages": counts.messages,
        "dead": counts.dead,
        "held": counts.held,
        "settled": with_text_keys(counts.settled),
    }
    return json.dumps(by_topic, sort_keys=True, separators=(",", ":"))


def _of_topic(text: str | None, topic: str) -> dict[int, Any]:
    by_topic = json.loads(text or "{}")
    return with_number_keys(by_topic.get(topic, {}))


def _with_topic(text: str | None, topic: str, values: Mapping[int, object]) -> str:
    by_topic = json.loads(text or "{}")
    by_topic[topic] = with_text_keys(values)
    return json.dumps(by_topic, sort_keys=True, separators=(",", ":"))
