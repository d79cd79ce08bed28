"""From the messages of a Kafka partition to closed files. One file is open for each partition; the data closes it.

The files of a partition are a function of its messages, of the cutover policies and of the offsets. They do not depend
on a clock, on the speed of reading or on restarts. So two zones close the same files.

A file that begins with heartbeats stays open for hours if nothing else comes. Its tail then says how far it has read.

Failure model: a process that dies leaves its open files (`open_files`), and the next one goes on in them; what they
lack it reads again, at the latest from the offset after the last file in the manifest. Messages without a time or a
distinct id, and those that are too large or cannot be decoded, are dead letters. They are closed together with the
file, in a file of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from lake_assets.landing.consume.idle_spans import IdleSpan
from lake_assets.landing.consume.kafka_reader import Place, Reader
from lake_assets.landing.consume.messages import Feed, heartbeat_of
from lake_assets.landing.files.cutover import Cutter, Policy, effective
from lake_assets.landing.files.records import Record


@dataclass(frozen=True)
class Closed:
    """The messages of a closed file, in order of offset.

    Attributes:
        first: First offset, inclusive. It follows the last offset of the file before.
        last: Last offset, inclusive.
        records: Messages that may become rows, and heartbeats.
        dead: Dead letters.
        dead_landed: Number of dead letters that were landed before, by a process that died then.
    """

    place: Place
    first: int
    last: int
    records: Sequence[Record]
    dead: Sequence[Record]
    dead_landed: int = 0


@dataclass
class Tail:
    """The open file of one partition.

    Attributes:
        place: The partition.
        feed: Of its topic.
        policies: Returns the cutover policies. It is called when a file begins, so new policies take effect.
        begin: The offset after the last closed file; None if there is none yet.
        messages: Those of the open file, and whether each is a dead letter.
        written: So many of them are on disk.
    """

    place: Place
    feed: Feed
    policies: Callable[[], Sequence[Policy]]
    begin: int | None
    messages: list[tuple[Record, bool]] = field(default_factory=list, init=False)
    written: int = field(default=0, init=False)
    _cutter: Cutter | None = field(default=None, init=False)
    _policies: Sequence[Policy] = field(default=(), init=False)
    _policy: Policy | None = field(default=None, init=False)
    _is_idle: bool = field(default=True, init=False)
    _told: IdleSpan | None = field(default=None, init=False)

    def take(self, record: Record) -> Closed | None:
        """Add the next message; return the file if this message closes it, else None."""
        if self.begin is None:
            self.begin = record.offset
        is_heartbeat = isinstance(heartbeat_of(record.headers), datetime)
        self._is_idle = self._is_idle and is_heartbeat
        if self._cutter is None:
            # By the file's first offset: its first message may have a later one, after the marker of a transaction.
            self._policies = self.policies()
            self._policy = effective(self._policies, self.begin)
            self._cutter = Cutter(self._policy)
        self.messages.append((record, self.feed.flaw_of(record, self._policies) is not None))
        span = self._cutter.add(record, is_heartbeat=is_heartbeat)
        return None if span is None else self._close(self.begin, span.last)

    def take_idle(self) -> IdleSpan | None:
        """Return the heartbeats of a file that has nothing else, if they went on by the age of a file meanwhile.

        Returns:
            None also for files whose policy treats heartbeats as other messages: these close in time.
        """
        found = self._idle_span()
        if found is None or not self._is_news(found):
            return None
        self._told = found
        return found

    def _idle_span(self) -> IdleSpan | None:
        if not (self._is_idle and self.messages and self._policy and self._policy.max_idle_ms):
            return None
        last, _ = self.messages[-1]
        heartbeat = heartbeat_of(last.headers)
        assert isinstance(heartbeat, datetime)
        assert self.begin is not None
        return IdleSpan(self.place.topic, self.place.partition, self.begin, last.offset, heartbeat)

    def _is_news(self, found: IdleSpan) -> bool:
        told, policy = self._told, self._policy
        if told is None or policy is None or told.first != found.first:
            return True
        return abs(found.heartbeat - told.heartbeat) >= timedelta(milliseconds=policy.max_age_ms)

    def _close(self, first: int, last: int) -> Closed:
        # From the end of the last file, not from the first message: transactions leave offsets without a message.
        records = [record for record, is_dead in self.messages if not is_dead]
        dead = [record for record, is_dead in self.messages if is_dead]
        closed = Closed(self.place, first, last, records, dead)
        self.begin = last + 1
        self.messages = []
        self.written = 0
        self._cutter = None
        self._is_idle = True
        return closed


Deliver = Callable[[Closed], None]


def step(
    reader: Reader,
    tails: Mapping[Place, Tail],
    deliver: Deliver,
    *,
    max_messages: int,
    seconds: float,
) -> int:
    """Read once and deliver the files that close.

    Args:
        reader: Of the partitions.
        tails: Messages of a partition without a tail are ignored.
        deliver: Called with each closed file.
        max_messages: The most messages to read.
        seconds: How long to wait for them.

    Returns:
        The number of messages read.
    """
    messages = reader.read(max_messages, seconds=seconds)
    for topic, record in messages:
        tail = tails.get(Place(topic, record.partition))
        closed = tail.take(record) if tail else None
        if closed:
            deliver(closed)
    return len(messages)
