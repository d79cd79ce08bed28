"""From a Kafka partition to files: one open file each, which the data alone closes.

What a zone has of a partition is a function of its messages: of the cutover policies and the offsets, never of a clock,
of how fast it reads or how often it starts anew. So two zones close the same files.

Failure model: an open file is in memory alone. A process that dies loses it, and reads its messages again, from the
offset after the last file that the manifest has. Messages without a time or a distinct id, too large or not
decodable are closed with it, in a file of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lake_assets.landing.consume.kafka_reader import Place, Reader
from lake_assets.landing.consume.messages import Feed
from lake_assets.landing.files.cutover import Cutter, Policy, effective
from lake_assets.landing.files.records import Record


@dataclass(frozen=True)
class Closed:
    """The messages of a file, in order of offset.

    first, last: its offsets, both inclusive; no offset lies between two files of a partition. records: what may become
    rows, and heartbeats. dead: what makes neither.
    """

    place: Place
    first: int
    last: int
    records: Sequence[Record]
    dead: Sequence[Record]


@dataclass
class Tail:
    """The open file of one partition.

    policies: asked for when a file begins, so that one recorded meanwhile is heeded. begin: the offset after the last
    closed file; None: there is none yet.
    """

    place: Place
    feed: Feed
    policies: Callable[[], Sequence[Policy]]
    begin: int | None
    _cutter: Cutter | None = field(default=None, init=False)
    _records: list[Record] = field(default_factory=list, init=False)
    _dead: list[Record] = field(default_factory=list, init=False)

    def take(self, record: Record) -> Closed | None:
        """Take the next message; the file that it closed, as its last message, if it did."""
        if self.begin is None:
            self.begin = record.offset
        flaw = self.feed.flaw(record.value, record.headers, record.timestamp)
        (self._dead if flaw else self._records).append(record)
        # By the file's own beginning: the first message may lie behind it, where a transaction ended.
        self._cutter = self._cutter or Cutter(effective(self.policies(), self.begin))
        span = self._cutter.add(record)
        return self._close(span.last) if span else None

    def _close(self, last: int) -> Closed:
        assert self.begin is not None
        # From the end of the last file, not from the first message: transactions leave offsets without a message.
        closed = Closed(self.place, self.begin, last, self._records, self._dead)
        self.begin, self._records, self._dead, self._cutter = last + 1, [], [], None
        return closed


Deliver = Callable[[Closed], None]


def step(reader: Reader, tails: Mapping[Place, Tail], deliver: Deliver, *, most: int, seconds: float) -> int:
    """Read so many messages at most, waiting so long at most, and deliver what closes; how many there were.

    A message of a partition that has no tail (any more) is passed over.
    """
    found = reader.read(most, seconds=seconds)
    for topic, record in found:
        tail = tails.get(Place(topic, record.partition))
        if tail and (closed := tail.take(record)):
            deliver(closed)
    return len(found)
