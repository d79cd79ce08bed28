"""The files that a loader has not read to their ends. The cost depends on their number, not on that of all files.

The manifest has an index of ranges by zone, shard, partition and last offset. Its beginning also gives the shards of a
zone without a look at every range: each search finds the next larger shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import sqlalchemy as sa

from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.sharding import Shard, parse_shard
from lake_assets.landing.manifest.row_conversion import entry_of
from lake_assets.landing.manifest.schema import FILES, RANGES, Entry
from lake_assets.landing.manifest.store import Manifest

_BEFORE_ALL = -1


def unread_files(
    manifest: Manifest,
    topic: str,
    zones: Iterable[str],
    partitions: Sequence[int],
    next_offsets: Mapping[int, int],
) -> list[Entry]:
    """Return the live files of rows, with any verdict, that reach beyond the next offset of a partition.

    Args:
        manifest: The manifest.
        topic: The topic.
        zones: Names of the zones.
        partitions: The partitions to look at.
        next_offsets: Partition → the next offset to load; of a partition without one, all files are returned.

    Returns:
        In order of their zones, shards, versions and names.
    """
    found: dict[tuple[str, str], Entry] = {}
    with manifest.engine.connect() as connection:
        for zone in zones:
            for shard in _shards(connection, zone, topic):
                for partition in partitions:
                    start = next_offsets.get(partition, _BEFORE_ALL)
                    for entry in _files_from(connection, zone, shard, partition, start):
                        found[zone, entry.file.name] = entry
    return sorted(found.values(), key=_order)


def dead_letter_files(manifest: Manifest, topic: str, zone: str, starts: Mapping[int, int]) -> list[DataFile]:
    """Return the live files of dead letters of a zone that end at an offset of a partition, or beyond it."""
    shard = str(Shard(topic, dead_letters=True))
    with manifest.engine.connect() as connection:
        found = [_files_from(connection, zone, shard, partition, start) for partition, start in starts.items()]
        return [entry.file for entries in found for entry in entries]


def _order(entry: Entry) -> tuple[str, str, int, str]:
    return entry.file.zone, entry.file.shard, entry.version, entry.file.name


def _shards(connection: sa.Connection, zone: str, topic: str) -> Iterator[str]:
    """Yield the shards of a topic that have files of rows in a zone.

    All shards of the zone are visited: the order of texts differs between databases, so no prefix could end the search.
    """
    name: str | None = ""
    while name is not None:
        larger = sa.select(sa.func.min(RANGES.c.shard)).where(RANGES.c.zone == zone, RANGES.c.shard > name)
        name = connection.execute(larger).scalar_one()
        if name is not None and _holds_rows(name, topic):
            yield name


def _holds_rows(name: str, topic: str) -> bool:
    shard = parse_shard(name)
    return shard.topic == topic and not shard.dead_letters


def _files_from(connection: sa.Connection, zone: str, shard: str, partition: int, start: int) -> Iterator[Entry]:
    same_file = (FILES.c.zone == RANGES.c.zone) & (FILES.c.name == RANGES.c.name)
    query = (
        sa.select(FILES)
        .join_from(RANGES, FILES, same_file)
        .where(
            RANGES.c.zone == zone,
            RANGES.c.shard == shard,
            RANGES.c.partition == partition,
            RANGES.c.last >= start,
            FILES.c.stage == "live",
        )
    )
    for row in connection.execute(query):
        yield entry_of(row)
