"""Refetch: a zone lands again the files that it misses and the other zone has, with the same offsets and shard.

A file that was discarded leaves a gap. A zone that goes on from its last offset does not see a gap beside its dead
letters, or between other shards of the same offsets. One file fills the gap even if its neighbours are merged by now;
otherwise it could not be merged with them any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from lake_assets.errors import OffsetsGone
from lake_assets.landing.consume.deletions import Scrub
from lake_assets.landing.consume.kafka_reader import Place, Reader
from lake_assets.landing.consume.messages import Feed
from lake_assets.landing.files.checksum import NOTHING, Tally
from lake_assets.landing.files.cutover import Policy
from lake_assets.landing.files.entries import DataFile, file_name
from lake_assets.landing.files.offset_ranges import RangeIndex, Ranges, first_offsets, last_offsets, next_offsets
from lake_assets.landing.files.records import Record
from lake_assets.landing.files.sharding import Shard, parse_shard
from lake_assets.landing.files.zone_folder import Zone
from lake_assets.landing.manifest.index_rows import lost_dead_letters
from lake_assets.landing.manifest.schema import ALL_VERDICTS, CURRENT_STAGES, Entry, Verdict
from lake_assets.landing.manifest.shared_state import SharedState
from lake_assets.landing.manifest.store import Manifest
from lake_assets.landing.manifest.zone_writer import ZoneWriter
from lake_assets.landing.repair.copying import copy_file, is_verified
from lake_assets.landing.topics.ledger import Epoch

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


def forgotten_files(manifest: Manifest, zone: str, topic: str, earliest: Mapping[int, int]) -> list[DataFile]:
    """Return the verified files of another zone that a zone misses and cannot read: Kafka has forgotten their offsets.

    Args:
        manifest: The manifest.
        zone: The zone.
        topic: The topic.
        earliest: Partition → the landed offset of the first message that Kafka has.
    """
    entries = manifest.entries(topic=topic, stages=CURRENT_STAGES, verdicts=ALL_VERDICTS)
    own = [entry.file for entry in entries if entry.file.zone == zone]
    verified = [entry for entry in entries if entry.file.zone != zone and entry.verdict == "verified"]
    found = []
    for file in gaps(own, verified, anywhere=True):
        if any(first < earliest.get(partition, 0) for partition, first in first_offsets([file]).items()):
            found.append(file)
    return found


def lost_files(manifest: Manifest, zone: str, topic: str) -> list[DataFile]:
    """Return the files of dead letters that a zone has landed, and that no zone has any more, without their sums."""
    shard = str(Shard(topic, dead_letters=True))
    found = []
    for partition, first, last in lost_dead_letters(manifest, zone, topic):
        ranges = {partition: (first, last)}
        name = file_name(shard, ranges, (), "append")
        found.append(DataFile(name, 0, shard, ranges, frozenset(), 0, NOTHING, zone))
    return found


def gaps(own: Sequence[DataFile], others: Iterable[Entry], *, anywhere: bool = False) -> list[DataFile]:
    """Return the live files of other zones that share no record with a zone's own files, and lie below their ends.

    Files of different sharding specifications share records if their shards do. Pure.

    Args:
        own: The zone's files.
        others: The files of other zones.
        anywhere: Return files beyond the ends of the zone's files, too.
    """
    found = []
    ends = next_offsets(file for file in own if not file.holds_dead_letters)
    known = _RecordIndex(own)
    for file in _readable(others):
        if (anywhere or _lies_below(file, ends)) and not known.overlaps(file):
            found.append(file)
    return found


def _readable(entries: Iterable[Entry]) -> list[DataFile]:
    return [entry.file for entry in entries if entry.stage == "live" and entry.verdict != "quarantined"]


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


@dataclass(frozen=True)
class Source:
    """Where a zone takes the files from that it misses.

    Attributes:
        servers: Of Kafka, `host:port`, comma-separated.
        feed: Of the topic.
        epoch: Of the topic.
        earliest: Partition → the landed offset of the first message that Kafka has.
        others: The other zones.
        scrub: How deletion requests of the topic find their records; None leaves these to a later scrub.
    """

    servers: str
    feed: Feed
    epoch: Epoch
    earliest: Mapping[int, int] = field(default_factory=dict)
    others: Sequence[Zone] = ()
    scrub: Scrub | None = None

    def require_in_kafka(self, file: DataFile) -> None:
        """Raise `OffsetsGone` if Kafka has removed an offset of a file."""
        for partition, first in first_offsets([file]).items():
            earliest = self.earliest.get(partition, 0)
            if first < earliest:
                raise OffsetsGone(self.feed.topic, partition, expected=first, earliest=earliest)


def fill(writer: ZoneWriter, file: DataFile, source: Source, *, now: datetime) -> Verdict:
    """Land a missing file again; if Kafka does not have it any more, copy the other zone's file if it is verified.

    Raises:
        OffsetsGone: Kafka does not have it, and the other zone's file is not verified.
        FileDamaged: Kafka does not have it, and the other zone's file is damaged.
        ServiceError: Kafka does not answer.
        LandingError: What `ZoneWriter.land` raises.
    """
    try:
        source.require_in_kafka(file)
        return refetch(writer, file, source, now=now)
    except OffsetsGone:
        if not is_verified(writer, file):
            raise
        return copy_file(writer, source.others, file, now=now)


def refetch(writer: ZoneWriter, file: DataFile, source: Source, *, now: datetime) -> Verdict:
    """Land the offsets of a file again, with constant memory, scrubbed for the same requests.

    Args:
        writer: Of the zone that misses the file.
        file: The file of the other zone.
        source: Where the messages are.
        now: The present time.

    Returns:
        The verdict of the new file.

    Raises:
        ServiceError: Kafka does not have the offsets any more.
        LandingError: What `ZoneWriter.land` raises.
    """
    records = _read_records(file, source, SharedState(writer.manifest))
    deletions: frozenset[str] = frozenset()
    if source.scrub is not None and file.deletions:
        recorded = SharedState(writer.manifest).deletions(source.feed.topic)
        requests = [request for request in recorded if request.request_id in file.deletions]
        deletions = frozenset(request.request_id for request in requests)
        records = source.scrub.kept(records, requests, Tally(), dead_letters=file.holds_dead_letters)
    draft = writer.zone.draft(file.shard, file.ranges, records, deletions=deletions, kind=file.kind)
    return writer.land(draft, now=now)


def _read_records(file: DataFile, source: Source, state: SharedState) -> Iterator[Record]:
    feed = source.feed
    shard = parse_shard(file.shard)
    lasts = last_offsets([file])
    starts = {Place(feed.topic, partition): first for partition, first in first_offsets([file]).items()}
    bases = {place: source.epoch.base(place.partition) for place in starts}
    policies = {place.partition: state.policies(*place) for place in starts}
    with Reader(source.servers, starts, bases=bases) as reader:
        while not reader.at_end:
            for _, record in reader.read(READ_AT_ONCE, seconds=_READ_SECONDS):
                last = lasts[record.partition]
                if record.offset >= last:
                    reader.leave(Place(feed.topic, record.partition))
                if record.offset > last:
                    continue
                if _belongs_to(shard, record, feed, policies[record.partition]):
                    yield record


def _belongs_to(shard: Shard, record: Record, feed: Feed, policies: Sequence[Policy] = ()) -> bool:
    is_dead_letter = feed.flaw_of(record, policies) is not None
    if is_dead_letter or shard.dead_letters:
        return is_dead_letter and shard.dead_letters
    return shard.takes(feed.distinct_id_of(record))
