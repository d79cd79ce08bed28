"""The files of both landing zones as one HTML page: by partition and offset, coloured by their verdict.

The page loads nothing from elsewhere and runs no script. Jinja escapes every value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import chain

from lake_assets.landing.manifest import Entry
from lake_assets.landing.records import parse_shard
from lake_assets.pages.page import render_plain

TEMPLATE = "landing_files.html"
MOST_FILES = 400
"""The maximum number of files drawn of a zone and partition; the newest are drawn."""

LEAST_WIDTH = 0.4
"""The minimum width of a drawn file, in percent."""

PERCENT = 100
DIGITS = 3
"""Digits after the decimal point of positions and widths."""


@dataclass(frozen=True)
class Block:
    """A drawn file.

    Args:
        entry: The file.
        first: Its first offset in the partition.
        last: Its last offset, inclusive.
        left: The position of its left edge, in percent.
        width: Its width, in percent.
    """

    entry: Entry
    first: int
    last: int
    left: float
    width: float

    @property
    def dead(self) -> bool:
        """Whether the file holds dead letters."""
        return parse_shard(self.entry.file.shard).dead_letters


@dataclass(frozen=True)
class PartitionPicture:
    """The files of one partition.

    Args:
        partition: Its number.
        first: The first drawn offset.
        last: The last drawn offset, inclusive.
        lanes: Zone → its files.
        loaded: The position up to which the raw table is loaded, in percent; None if nothing is loaded.
    """

    partition: int
    first: int
    last: int
    lanes: Mapping[str, Sequence[Block]]
    loaded: float | None


@dataclass(frozen=True)
class TopicPicture:
    """All partitions of a topic, and its files."""

    topic: str
    partitions: Sequence[PartitionPicture]
    entries: Sequence[Entry]

    @cached_property
    def dead_letters(self) -> int:
        """The number of dead letters in the zone that has more of them."""
        counts: Counter[str] = Counter()
        for entry in self.entries:
            if parse_shard(entry.file.shard).dead_letters:
                counts[entry.file.zone] += entry.file.count
        return max(counts.values(), default=0)

    def count(self, verdict: str) -> int:
        """Return the number of files with a verdict."""
        return sum(entry.verdict == verdict for entry in self.entries)


@dataclass(frozen=True)
class _Scale:
    """Maps offsets to percent of the width. last: inclusive."""

    first: int
    last: int

    def width(self, offsets: int) -> float:
        return offsets * PERCENT / (self.last + 1 - self.first)

    def block(self, entry: Entry, partition: int) -> Block:
        first, last = entry.file.ranges[partition]
        width = max(self.width(last + 1 - first), LEAST_WIDTH)
        return Block(
            entry,
            first,
            last,
            left=round(self.width(first - self.first), DIGITS),
            width=round(width, DIGITS),
        )

    def position(self, offset: int) -> float:
        """Return the position of an offset, or of the nearer edge if the offset is not drawn."""
        position = self.width(offset - self.first)
        return round(min(max(position, 0), PERCENT), DIGITS)


def pictures(entries: Iterable[Entry], loaded: Mapping[str, Mapping[int, int]]) -> list[TopicPicture]:
    """Return what the page draws, by topic and partition.

    Args:
        entries: The files of the manifest.
        loaded: Topic → partition → the next offset to load.
    """
    topics: dict[str, list[Entry]] = {}
    zones: set[str] = set()
    for entry in entries:
        topics.setdefault(parse_shard(entry.file.shard).topic, []).append(entry)
        zones.add(entry.file.zone)
    drawn = []
    for topic, found in sorted(topics.items()):
        partitions = _partitions(found, sorted(zones), loaded.get(topic, {}))
        drawn.append(TopicPicture(topic, partitions, found))
    return drawn


def page(topics: Sequence[TopicPicture], *, now: datetime) -> str:
    """Return the whole page. now: the time at which it is made, in UTC."""
    return render_plain(TEMPLATE, topics=topics, now=now, most_files=MOST_FILES)


def _partitions(entries: Sequence[Entry], zones: Sequence[str], loaded: Mapping[int, int]) -> list[PartitionPicture]:
    by_partition: dict[int, list[Entry]] = {}
    for entry in entries:
        for number in entry.file.ranges:
            by_partition.setdefault(number, []).append(entry)
    return [_partition(number, found, zones, loaded.get(number)) for number, found in sorted(by_partition.items())]


def _partition(number: int, entries: Sequence[Entry], zones: Sequence[str], loaded: int | None) -> PartitionPicture:
    files = {zone: _newest(number, entries, zone) for zone in zones}
    scale = _scale(number, chain.from_iterable(files.values()))
    lanes: dict[str, list[Block]] = {}
    for zone, lane in files.items():
        lanes[zone] = [scale.block(entry, number) for entry in lane]
    reached = None if loaded is None else scale.position(loaded)
    return PartitionPicture(number, scale.first, scale.last, lanes, reached)


def _scale(partition: int, entries: Iterable[Entry]) -> _Scale:
    spans = [entry.file.ranges[partition] for entry in entries]
    return _Scale(first=min(first for first, _ in spans), last=max(last for _, last in spans))


def _newest(partition: int, entries: Iterable[Entry], zone: str) -> list[Entry]:
    of_zone = [entry for entry in entries if entry.file.zone == zone]
    of_zone.sort(key=lambda entry: (entry.file.ranges[partition], entry.file.name))
    return of_zone[-MOST_FILES:]
