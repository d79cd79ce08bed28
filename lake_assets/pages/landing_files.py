"""The files of both zones as one HTML page: by partition and offset, coloured by what is known of them.

It loads nothing from anywhere and runs no script. Every value goes through Jinja's escaping.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lake_assets.landing.files.sharding import parse_shard
from lake_assets.landing.manifest.schema import Entry

TEMPLATE = "landing_files.html"
MOST_FILES = 400
"""Of a zone and partition that are drawn, the newest: more cannot be told apart."""

LEAST_WIDTH = 0.4
"""Of a file that is drawn, in hundredths of the width."""


@dataclass(frozen=True)
class Block:
    """A file, or its dead letters, as drawn. left, width: hundredths of the width."""

    entry: Entry
    first: int
    last: int
    left: float
    width: float

    @property
    def dead(self) -> bool:
        return parse_shard(self.entry.file.shard).dead_letters


@dataclass(frozen=True)
class PartitionPicture:
    """The files of one partition. first, last: the offsets drawn. lanes: zone → its files. loaded: hundredths."""

    partition: int
    first: int
    last: int
    lanes: Mapping[str, Sequence[Block]]
    loaded: float | None


@dataclass(frozen=True)
class TopicPicture:
    """All partitions of a topic, and its files counted by verdict."""

    topic: str
    partitions: Sequence[PartitionPicture]
    entries: Sequence[Entry]

    @cached_property
    def dead_letters(self) -> int:
        """Of one zone, the one that has more."""
        counts: dict[str, int] = {}
        for entry in self.entries:
            if parse_shard(entry.file.shard).dead_letters:
                counts[entry.file.zone] = counts.get(entry.file.zone, 0) + entry.file.count
        return max(counts.values(), default=0)

    def count(self, verdict: str) -> int:
        """The files with a verdict."""
        return sum(entry.verdict == verdict for entry in self.entries)


def pictures(entries: Iterable[Entry], loaded: Mapping[str, Mapping[int, int]]) -> list[TopicPicture]:
    """What is drawn, by topic and partition. loaded: topic → partition → the next offset to load."""
    topics: dict[str, list[Entry]] = {}
    zones: set[str] = set()
    for entry in entries:
        topics.setdefault(parse_shard(entry.file.shard).topic, []).append(entry)
        zones.add(entry.file.zone)
    return [
        TopicPicture(topic, _partitions(found, sorted(zones), loaded.get(topic, {})), found)
        for topic, found in sorted(topics.items())
    ]


def page(topics: Sequence[TopicPicture], *, now: datetime) -> str:
    """The whole page. now: the time of making it, in UTC."""
    loader = FileSystemLoader(Path(__file__).parent)
    jinja = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return jinja.get_template(TEMPLATE).render(topics=topics, now=now, most_files=MOST_FILES)


def _partitions(entries: Sequence[Entry], zones: Sequence[str], loaded: Mapping[int, int]) -> list[PartitionPicture]:
    numbers = sorted({partition for entry in entries for partition in entry.file.ranges})
    return [_partition(p, [e for e in entries if p in e.file.ranges], zones, loaded.get(p)) for p in numbers]


def _partition(number: int, entries: Sequence[Entry], zones: Sequence[str], loaded: int | None) -> PartitionPicture:
    lanes = {zone: _newest(number, [e for e in entries if e.file.zone == zone]) for zone in zones}
    spans = [entry.file.ranges[number] for lane in lanes.values() for entry in lane]
    first, last = min(a for a, _ in spans), max(b for _, b in spans)
    scale = 100 / (last + 1 - first)
    blocks = {
        zone: [
            Block(entry, a, b, round((a - first) * scale, 3), round(max((b + 1 - a) * scale, LEAST_WIDTH), 3))
            for entry in lane
            for a, b in [entry.file.ranges[number]]
        ]
        for zone, lane in lanes.items()
    }
    reached = None if loaded is None else round(min(max((loaded - first) * scale, 0), 100), 3)
    return PartitionPicture(number, first, last, blocks, reached)


def _newest(partition: int, entries: Sequence[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda e: (e.file.ranges[partition], e.file.name))[-MOST_FILES:]
