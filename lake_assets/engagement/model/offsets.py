"""Which offsets the next batch of a stream reads, computed from the topic's offsets and the last batch. Pure.

Offsets are per partition, and an end is exclusive. Offsets have gaps (transactions, compaction), so a range holds at
most as many messages as offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lake_assets.errors import MessagesLost, offsets_missing, topic_replaced

Offsets = Mapping[int, int]
"""Kafka partition → offset."""


@dataclass(frozen=True)
class TopicState:
    """The present offsets of a topic.

    Attributes:
        topic_id: Kafka's own id; a topic that is deleted and created again gets another one.
        earliest: First available offset of every partition.
        end: Offset after the last message that a reader of committed messages can read, of every partition.
    """

    topic: str
    topic_id: str
    earliest: Offsets
    end: Offsets


@dataclass(frozen=True)
class OffsetRange:
    """The offsets that a batch reads: from `start`, inclusive, to `end`, exclusive, of the same partitions."""

    topic: str
    topic_id: str
    start: Offsets
    end: Offsets

    @property
    def count(self) -> int:
        """Number of offsets, an upper bound of the number of messages."""
        return sum(self.end[partition] - self.start[partition] for partition in self.end)


def next_range(
    state: TopicState, last: OffsetRange | None, *, max_records: int, until: Offsets | None = None
) -> OffsetRange:
    """Return the range after the last one, divided among the partitions in proportion to their lag.

    Args:
        last: Range of the last batch; None for the first batch. A new partition starts at its earliest offset.
        max_records: Maximum number of offsets in the range.
        until: Ends beyond which the range does not reach, exclusive; other partitions have no messages. None: no ends.

    Raises:
        MessagesLost: The topic was deleted and created again, or Kafka has removed offsets after the last range.
    """
    already_read: Offsets = {}
    if last is not None:
        _check_continues(state, last)
        already_read = last.end
    start = {partition: already_read.get(partition, earliest) for partition, earliest in sorted(state.earliest.items())}
    ends = state.end if until is None else {name: min(end, until.get(name, 0)) for name, end in state.end.items()}
    lags = {partition: max(0, ends[partition] - offset) for partition, offset in start.items()}
    taken = share(lags, max_records)
    end = {partition: offset + taken[partition] for partition, offset in start.items()}
    return OffsetRange(state.topic, state.topic_id, start, end)


def share(lags: Offsets, most: int) -> dict[int, int]:
    """Return how many offsets to take of each partition, in proportion to the lags.

    Args:
        most: Total to take; everything is taken if the total lag is less.
    """
    total = sum(lags.values())
    if total <= most:
        return dict(lags)
    taken = {partition: lag * most // total for partition, lag in lags.items()}
    left = most - sum(taken.values())
    for partition, lag in sorted(lags.items()):
        if left and taken[partition] < lag:
            taken[partition] += 1
            left -= 1
    return taken


def first_half(whole: OffsetRange) -> OffsetRange:
    """Return the first half of a range of at least two offsets, divided among the partitions like the range."""
    counts = {partition: end - whole.start[partition] for partition, end in whole.end.items()}
    taken = share(counts, whole.count // 2)
    end = {partition: offset + taken[partition] for partition, offset in whole.start.items()}
    return replace(whole, end=end)


def limited(whole: OffsetRange, ends: Offsets) -> OffsetRange:
    """Return the part of a range before some ends, exclusive. Of a partition without an end, nothing is left."""
    end = {}
    for partition, start in whole.start.items():
        end[partition] = max(start, min(whole.end[partition], ends.get(partition, start)))
    return replace(whole, end=end)


def problem_of(state: TopicState, last: OffsetRange, *, is_read: bool) -> MessagesLost | None:
    """Return why a stream cannot go on with its topic; None if it can.

    Args:
        last: Range of the last batch.
        is_read: Whether that batch is finished.
    """
    try:
        if is_read:
            _check_continues(state, last)
        else:
            check_readable(state, last)
    except MessagesLost as error:
        return error
    return None


@dataclass(frozen=True)
class Lost:
    """Offsets that a stream will never read, from `first`, inclusive, to `end`, exclusive; None if nobody knows it."""

    topic: str
    partition: int
    first: int
    end: int | None


def go_on(state: TopicState, last: OffsetRange) -> tuple[OffsetRange, list[Lost]]:
    """Return where a stream goes on after messages were lost, as an empty range, and what it does not read.

    A partition without its next message goes on with the earliest that Kafka has, and so does another topic. Messages
    that it has read before are repeated then, which changes nothing.

    Args:
        last: Range of the last batch.
    """
    is_same = (state.topic, state.topic_id) == (last.topic, last.topic_id)
    position: dict[int, int] = {}
    lost = [] if is_same else [Lost(last.topic, partition, end, None) for partition, end in sorted(last.end.items())]
    for partition, earliest in sorted(state.earliest.items()):
        read = last.end.get(partition, earliest) if is_same else earliest
        position[partition] = read if earliest <= read <= state.end[partition] else earliest
        if read < earliest:
            lost.append(Lost(state.topic, partition, read, earliest))
    return OffsetRange(state.topic, state.topic_id, position, position), lost


def check_readable(state: TopicState, wanted: OffsetRange) -> None:
    """Check that an earlier range can still be read in full.

    Raises:
        MessagesLost: The topic was deleted and created again, or Kafka has removed offsets of the range.
    """
    _check_same_topic(state, wanted)
    for partition, start in wanted.start.items():
        end = wanted.end[partition]
        if end > start:
            _check_has_offsets(state, partition, start, end)


def _check_continues(state: TopicState, last: OffsetRange) -> None:
    _check_same_topic(state, last)
    for partition, offset in last.end.items():
        _check_has_offsets(state, partition, offset, offset)


def _check_same_topic(state: TopicState, known: OffsetRange) -> None:
    if (state.topic, state.topic_id) != (known.topic, known.topic_id):
        expected = f"{known.topic_id} of {known.topic}"
        raise topic_replaced(state.topic, expected=expected, found=state.topic_id)


def _check_has_offsets(state: TopicState, partition: int, start: int, end: int) -> None:
    earliest = state.earliest.get(partition, 0)
    last = state.end.get(partition, 0)
    if start < earliest or end > last:
        raise offsets_missing(state.topic, partition, expected=start, earliest=earliest, end=last)
