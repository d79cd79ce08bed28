"""Refetch: a zone lands again the files that it misses and the other zone has, with the same offsets and shard.

A file that was discarded leaves a gap. A zone that goes on from its last offset does not see a gap beside its dead
letters, or between other shards of the same offsets. One file fills the gap even if its neighbours are merged by now;
otherwise it could not be merged with them any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from lake_assets.landing.consume.kafka_reader import Place, Reader
from lake_assets.landing.consume.messages import Feed
from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.offset_ranges import RangeIndex, Ranges, first_offsets, last_offsets, next_offsets
from lake_assets.landing.files.records import Record
from lake_assets.landing.files.sharding import Shard, parse_shard
from lake_assets.landing.manifest.schema import ALL_VERDICTS, CURRENT_STAGES, Entry, Verdict
from lake_assets.landing.manifest.store import Manifest
from lake_assets.landing.manifest.zone_writer import ZoneWriter

READ_AT_ONCE = 1000
"""The most messages of one read."""

_READ_SECONDS = 0.2


def missing_files(manifest: Manifest, zone: str, topic: str) -> list[DataFile]:
    """Return the live files of another zone that a zone misses: none of their records, though it landed later offsets.

    A file in quarantine is not missing: it waits for a decision.
    """
    own: list[DataFile] = []
    others: list[Entry] = []
    for entry in manifest.entries(topic=topic, stages=CURRENT_STAGES, verdicts=ALL_VERDICTS):
        if entry.file.zone == zone:
            own.append(entry.file)
        else:
            others.append(entry)
    return gaps(own, others)


def gaps(own: Sequence[DataFile], others: Iterable[Entry]) -> list[DataFile]:
    """Return the live files of other zones that share no record with a zone's own files, and lie below their ends.

    Files of different sharding specifications share records if their shards do. Pure.
    """
    found = []
    ends = next_offsets(file for file in own if not file.holds_dead_letters)
    known = _RecordIndex(own)
    for entry in others:
        if entry.stage != "live" or entry.verdict == "quarantined":
            continue
        if _lies_below(entry.file, ends) and not known.overlaps(entry.file):
            found.append(entry.file)
    return found


def _lies_below(file: DataFile, ends: Mapping[int, int]) -> bool:
    return all(last < ends.get(partition, 0) for partition, last in last_offsets([file]).items())


class _RecordIndex:
    """Finds files that share records."""

    def __init__(self, files: Iterable[DataFile]) -> None:
        by_shard: dict[Shard, list[Ranges]] = {}
        for file in files:
            by_shard.setdefault(parse_shard(file.shard), []).append(file.ranges)
        self._indexes: dict[Shard, RangeIndex] = {}
        for shard, several in by_shard.items():
            self._indexes[shard] = RangeIndex(several)

    def overlaps(self, file: DataFile) -> bool:
        shard = parse_shard(file.shard)
        return any(shard.overlaps(known) and index.overlaps(file.ranges) for known, index in self._indexes.items())


def refetch(writer: ZoneWriter, file: DataFile, feed: Feed, servers: str, *, now: datetime) -> Verdict:
    """Land the offsets of a file again, with constant memory. Erased records in it are scrubbed later.

    Args:
        writer: Of the zone that misses the file.
        file: The file of the other zone.
        feed: Of its topic.
        servers: Of Kafka, `host:port`, comma-separated.
        now: The present time.

    Returns:
        The verdict of the new file.

    Raises:
        ServiceError: Kafka does not have the offsets any more.
        LandingError: What `ZoneWriter.land` raises.
    """
    records = _read_records(file, feed, servers)
    draft = writer.zone.draft(file.shard, file.ranges, records, kind=file.kind)
    return writer.land(draft, now=now)


def _read_records(file: DataFile, feed: Feed, servers: str) -> Iterator[Record]:
    shard = parse_shard(file.shard)
    lasts = last_offsets([file])
    starts = {Place(feed.topic, partition): first for partition, first in first_offsets([file]).items()}
    with Reader(servers, starts) as reader:
        while not reader.at_end:
            for _, record in reader.read(READ_AT_ONCE, seconds=_READ_SECONDS):
                last = lasts[record.partition]
                if record.offset >= last:
                    reader.leave(Place(feed.topic, record.partition))
                if record.offset <= last and _belongs_to(shard, record, feed):
                    yield record


def _belongs_to(shard: Shard, record: Record, feed: Feed) -> bool:
    is_dead_letter = feed.flaw(record.value, record.headers, record.timestamp) is not None
    if is_dead_letter or shard.dead_letters:
        return is_dead_letter and shard.dead_letters
    return shard.takes(feed.distinct_id_of(record))
