"""The checks of verification that need no file: what the manifest says of offsets, names and requests. Pure.

Each of them sees rows that were lost or changed in the manifest itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lake_assets.landing.files.entries import DataFile, file_name, offsets
from lake_assets.landing.files.offset_ranges import RangeIndex, Ranges, next_offsets
from lake_assets.landing.files.sharding import Shard, parse_shard
from lake_assets.landing.manifest.coverage import Cover, uncovered
from lake_assets.landing.manifest.schema import Entry, files_of


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a file.

    Attributes:
        problem: In words, with offsets and checksums.
        remedy: The command that mends it.
        cause: The problem without names, offsets and checksums: findings of one cause are shown as one.
    """

    zone: str
    name: str
    problem: str
    remedy: str = ""
    cause: str = ""


@dataclass(frozen=True)
class TopicRows:
    """What the manifest has of a topic.

    Attributes:
        topic: The topic.
        entries: Its files at any stage and with any verdict.
        lost: Offsets that are lost for good.
        begun: Partition → the first offset that any zone has landed.
        ends: Zone → partition → the offset after the last one that it has landed.
    """

    topic: str
    entries: Sequence[Entry]
    lost: Sequence[Cover]
    begun: Mapping[int, int]
    ends: Mapping[str, Mapping[int, int]]


def misnamed(entries: Iterable[Entry]) -> Iterator[Finding]:
    """Yield files whose name does not follow from their shard, offsets, deletions and format."""
    for file in files_of(entries):
        if is_misnamed(file):
            problem = f"({offsets(file)}) has a name that is not that of these offsets"
            yield Finding(
                file.zone, file.name, problem, discard_and_run(file), "has a name that is not that of its offsets"
            )


def is_misnamed(file: DataFile) -> bool:
    """Return whether the name of a file does not fit its description."""
    return file.name != file_name(file.shard, file.ranges, file.deletions, file.kind)


def unrequested(entries: Iterable[Entry], requests: Collection[str]) -> Iterator[Finding]:
    """Yield files that were scrubbed for requests that are not recorded. requests: the ids of all requests."""
    for file in files_of(entries):
        unknown = sorted(file.deletions.difference(requests))
        if unknown:
            topic = parse_shard(file.shard).topic
            yield Finding(
                file.zone,
                file.name,
                f"was scrubbed for {', '.join(unknown)}, which the manifest does not have",
                f"`lake landing scrub {topic} ID --request {unknown[0]}`",
                "was scrubbed for a request that the manifest does not have",
            )


def not_landed(rows: TopicRows, zone: str, missing: Sequence[Ranges]) -> Iterator[Finding]:
    """Yield the offsets that are in no live file of a zone, although it has landed later ones, or these.

    Args:
        rows: Of the topic.
        zone: The zone.
        missing: The ranges of files that are already reported as missing in the zone.
    """
    whole = [entry for entry in rows.entries if not entry.file.holds_dead_letters]
    own = [entry for entry in whole if entry.file.zone == zone]
    covers = [*map(_cover, filter(_counts, own)), *rows.lost]
    ends = _max_ends(next_offsets(files_of(own)), rows.ends.get(zone, {}))
    holes = uncovered(covers, rows.begun, ends)
    reported = RangeIndex(missing)
    for partition, spans in holes.items():
        for span in spans:
            if not reported.overlaps({partition: span}):
                yield _hole(rows.topic, zone, partition, span)


def _counts(entry: Entry) -> bool:
    """Return whether a file is read, or is reported by itself."""
    return entry.stage == "live" or entry.verdict == "quarantined"


def _cover(entry: Entry) -> Cover:
    return Cover(entry.file.ranges, True, parse_shard(entry.file.shard))


def without_partner(rows: TopicRows, zone: str) -> list[DataFile]:
    """Return the verified files of other zones at whose offsets a zone has nothing any more, at any stage."""
    indexes = {dead: _index(rows, zone, dead_letters=dead) for dead in (False, True)}
    found = []
    for entry in rows.entries:
        file = entry.file
        is_verified = entry.verdict == "verified" and entry.stage == "live" and file.zone != zone
        if is_verified and not indexes[file.holds_dead_letters].overlaps(file.ranges):
            found.append(file)
    return found


def overlapping_specifications(zone: str, entries: Iterable[Entry]) -> Iterator[Finding]:
    """Yield live files that share records with a live file of another sharding specification."""
    shards = _live_by_shard(zone, entries)
    indexes = {shard: RangeIndex(file.ranges for file in files) for shard, files in shards.items()}
    for shard, files in shards.items():
        finer = [index for other, index in indexes.items() if other.of > shard.of and shard.overlaps(other)]
        yield from _held_twice(files, finer)


def _live_by_shard(zone: str, entries: Iterable[Entry]) -> dict[Shard, list[DataFile]]:
    shards: dict[Shard, list[DataFile]] = {}
    for entry in entries:
        if entry.stage == "live" and entry.file.zone == zone:
            shards.setdefault(parse_shard(entry.file.shard), []).append(entry.file)
    return shards


def _held_twice(files: Iterable[DataFile], finer: Sequence[RangeIndex]) -> Iterator[Finding]:
    for file in files:
        if any(index.overlaps(file.ranges) for index in finer):
            problem = f"({offsets(file)}) holds records that files of other shards hold, too"
            yield Finding(
                file.zone, file.name, problem, discard_and_run(file), "holds records that other files hold, too"
            )


def discard_and_run(file: DataFile) -> str:
    """Return the commands that let a zone land a file again."""
    return f"`lake landing quarantine discard {file.zone} {file.name}`, then `lake landing run`"


def _hole(topic: str, zone: str, partition: int, span: tuple[int, int]) -> Finding:
    first, last = span
    problem = f"p{partition}:[{first}:{last}] is in no file of this zone"
    remedy = f"`lake landing repair`; then `lake landing run`; if Kafka has forgotten it, `lake landing accept {topic}`"
    return Finding(zone, topic, problem, remedy, "offsets are in no file of this zone")


def _index(rows: TopicRows, zone: str, *, dead_letters: bool) -> RangeIndex:
    own = [file for file in files_of(rows.entries) if file.zone == zone]
    return RangeIndex(file.ranges for file in own if file.holds_dead_letters == dead_letters)


def _max_ends(*several: Mapping[int, int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for ends in several:
        for partition, end in ends.items():
            found[partition] = max(end, found.get(partition, 0))
    return found
