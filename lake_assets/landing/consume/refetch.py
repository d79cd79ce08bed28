"""What a zone lacks of what the other has, landed again: the same offsets of Kafka, as one file of the same shard.

A file that was discarded leaves a gap which a zone that goes on would not see: beside its dead letters, or between the
other shards of its offsets; and its neighbours may be merged by now, so that it could not be merged with them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from lake_assets.landing.consume.kafka_reader import Place, Reader
from lake_assets.landing.consume.messages import Feed
from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.records import Record
from lake_assets.landing.files.sharding import Shard, parse_shard
from lake_assets.landing.manifest.compaction_choice import Ranges, next_offsets
from lake_assets.landing.manifest.coverage import meets
from lake_assets.landing.manifest.schema import ALL_VERDICTS, Entry, Verdict
from lake_assets.landing.manifest.store import Manifest
from lake_assets.landing.manifest.writing import ZoneWriter

READ_AT_ONCE = 1000
"""Messages, at the most."""


def lacking(manifest: Manifest, zone: str, topic: str) -> list[DataFile]:
    """The files of a topic that another zone has live, and this one has nothing of, though it has landed what follows.

    What is in quarantine is not lacking: it waits for somebody's decision.
    """
    every = manifest.entries(topic=topic, stages=("staged", "live"), verdicts=ALL_VERDICTS)
    return gaps([e.file for e in every if e.file.zone == zone], [e for e in every if e.file.zone != zone])


def gaps(own: Sequence[DataFile], others: Iterable[Entry]) -> list[DataFile]:
    """The live files of others that have no offset in common with one's own, but lie below their ends. Pure.

    Files have something in common if their shards have, under whatever specifications.
    """
    reached = next_offsets(file for file in own if not parse_shard(file.shard).dead_letters)
    known: dict[Shard, list[Ranges]] = {}
    for file in own:
        known.setdefault(parse_shard(file.shard), []).append(file.ranges)
    there = {shard: meets(several) for shard, several in known.items()}

    def lacks(file: DataFile) -> bool:
        shard = parse_shard(file.shard)
        below = all(last < reached.get(partition, 0) for partition, (_, last) in file.ranges.items())
        return below and not any(shard.meets(has) and meet(file.ranges) for has, meet in there.items())

    return [e.file for e in others if e.stage == "live" and e.verdict != "quarantined" and lacks(e.file)]


def refetch(writer: ZoneWriter, file: DataFile, feed: Feed, servers: str, *, now: datetime) -> Verdict:
    """Land the offsets of a file anew; what is read at a time is in memory. What was erased of them is scrubbed later.

    Raises `ServiceError` if Kafka does not have them any more, and what `ZoneWriter.land` does.
    """
    draft = writer.zone.draft(file.shard, file.ranges, _records(file, feed, servers), kind=file.kind)
    return writer.land(draft, now=now)


def _records(file: DataFile, feed: Feed, servers: str) -> Iterator[Record]:
    shard = parse_shard(file.shard)
    with Reader(servers, {Place(feed.topic, p): first for p, (first, _) in file.ranges.items()}) as reader:
        while not reader.at_end:
            for _, record in reader.read(READ_AT_ONCE, seconds=0.2):
                last = file.ranges[record.partition][1]
                if record.offset >= last:
                    reader.leave(Place(feed.topic, record.partition))
                if record.offset <= last and _belongs(feed, shard, record):
                    yield record


def _belongs(feed: Feed, shard: Shard, record: Record) -> bool:
    dead = feed.flaw(record.value, record.headers, record.timestamp) is not None
    return dead == shard.dead_letters and (dead or shard.takes(feed.distinct_id_of(record)))
