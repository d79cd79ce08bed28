"""Which messages the next batch of a stream takes: decided here, from what a topic holds and what was read. Pure.

Offsets are per partition, and an end is exclusive. They have gaps (transactions, compaction): a range of so many
offsets holds at most so many messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lake_assets.errors import OffsetsMissing, TopicReplaced

Offsets = Mapping[int, int]
"""Kafka partition → offset."""


@dataclass(frozen=True)
class TopicState:
    """A topic as it stands. topic_id: Kafka's own; a topic that is made again has another one.

    earliest: the first offset that is still there. end: the one after the last message that a reader of committed
    messages can read. Both name every partition.
    """

    topic: str
    topic_id: str
    earliest: Offsets
    end: Offsets


@dataclass(frozen=True)
class OffsetRange:
    """What one batch reads: from `start`, inclusive, to `end`, exclusive, of the same partitions."""

    topic: str
    topic_id: str
    start: Offsets
    end: Offsets

    @property
    def count(self) -> int:
        """So many offsets, and at most so many messages."""
        return sum(self.end[p] - self.start[p] for p in self.end)


def next_range(state: TopicState, last: OffsetRange | None, *, max_records: int) -> OffsetRange:
    """The range behind the last one, of max_records offsets at most, shared by the partitions as they lag.

    A partition that was never read starts at its earliest offset. Raises `TopicReplaced` and `OffsetsMissing`.
    """
    if last is not None:
        _check_continues(state, last)
    read: Offsets = {} if last is None else last.end
    start = {p: read.get(p, earliest) for p, earliest in sorted(state.earliest.items())}
    taken = share({p: state.end[p] - at for p, at in start.items()}, max_records)
    return OffsetRange(state.topic, state.topic_id, start, {p: at + taken[p] for p, at in start.items()})


def share(lags: Offsets, most: int) -> dict[int, int]:
    """What each partition may take so that all take `most` together, or everything if that is less."""
    total = sum(lags.values())
    if total <= most:
        return dict(lags)
    taken = {p: lag * most // total for p, lag in lags.items()}
    for p, lag in sorted(lags.items()):
        if sum(taken.values()) < most and taken[p] < lag:
            taken[p] += 1
    return taken


def check_readable(state: TopicState, wanted: OffsetRange) -> None:
    """A range that was decided on earlier can still be read in full: raises as `next_range` does."""
    _check_same_topic(state, wanted)
    for partition, start in wanted.start.items():
        if wanted.end[partition] > start:
            _check_holds(state, partition, start, wanted.end[partition])


def _check_continues(state: TopicState, last: OffsetRange) -> None:
    _check_same_topic(state, last)
    for partition, at in last.end.items():
        _check_holds(state, partition, at, at)


def _check_same_topic(state: TopicState, known: OffsetRange) -> None:
    if (state.topic, state.topic_id) != (known.topic, known.topic_id):
        expected = f"{known.topic_id} of {known.topic}"
        raise TopicReplaced(state.topic, expected=expected, found=state.topic_id)


def _check_holds(state: TopicState, partition: int, start: int, end: int) -> None:
    earliest, last = state.earliest.get(partition, 0), state.end.get(partition, 0)
    if start < earliest or end > last:
        raise OffsetsMissing(state.topic, partition, expected=start, earliest=earliest, end=last)
