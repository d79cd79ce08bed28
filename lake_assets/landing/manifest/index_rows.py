"""The rows of the manifest that follow from those of files: ranges, what files are found by, and landed ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.offset_ranges import RangeIndex, first_offsets
from lake_assets.landing.files.sharding import Shard
from lake_assets.landing.manifest.row_conversion import entry_of, range_rows_of, row_of
from lake_assets.landing.manifest.schema import DEAD_LETTERS, ENDS, FILES, RANGES
from lake_assets.landing.manifest.store import Manifest

DERIVED = ("topic", "shards", "identity")
"""The columns of a file that follow from its shard, ranges and deletions."""

Ranges = set[tuple[int, int, int, str]]
"""Partition, first offset, last offset and shard."""


def misfits(manifest: Manifest) -> list[DataFile]:
    """Return the files whose derived columns or ranges are not those that follow, ordered by zone and name."""
    with manifest.engine.connect() as connection:
        return [file for file, _ in _misfits(connection)]


def rebuild(manifest: Manifest) -> list[DataFile]:
    """Write derived columns and ranges again where they do not fit; return the files."""
    with manifest.change() as (connection, _):
        found = list(_misfits(connection))
        for file, derived in found:
            is_row = (FILES.c.zone == file.zone) & (FILES.c.name == file.name)
            connection.execute(sa.update(FILES).where(is_row).values(derived))
            of_file = (RANGES.c.zone == file.zone) & (RANGES.c.name == file.name)
            connection.execute(sa.delete(RANGES).where(of_file))
            connection.execute(sa.insert(RANGES), list(range_rows_of(file)))
        return [file for file, _ in found]


def recorded_ends(manifest: Manifest, topic: str) -> dict[str, dict[int, int]]:
    """Return zone → partition → the offset after the last one that it has landed, whatever rows of files are left."""
    found: dict[str, dict[int, int]] = {}
    with manifest.engine.connect() as connection:
        for row in connection.execute(sa.select(ENDS).where(ENDS.c.topic == topic)):
            found.setdefault(row.zone, {})[row.partition] = row.end
    return found


def lost_dead_letters(manifest: Manifest, zone: str, topic: str) -> list[tuple[int, int, int]]:
    """Return where a zone has landed dead letters and no zone has a file of them any more: partition, first, last."""
    query = sa.select(DEAD_LETTERS.c.partition, DEAD_LETTERS.c.first, DEAD_LETTERS.c.last)
    query = query.where(DEAD_LETTERS.c.zone == zone, DEAD_LETTERS.c.topic == topic)
    shard = str(Shard(topic, dead_letters=True))
    with manifest.engine.connect() as connection:
        landed = connection.execute(query.order_by(DEAD_LETTERS.c.partition, DEAD_LETTERS.c.first)).all()
        of_files = sa.select(RANGES.c.partition, RANGES.c.first, RANGES.c.last)
        of_files = of_files.join(FILES, (FILES.c.zone == RANGES.c.zone) & (FILES.c.name == RANGES.c.name))
        found = RangeIndex(
            {partition: (first, last)}
            for partition, first, last in connection.execute(of_files.where(RANGES.c.shard == shard))
        )
    return [(p, first, last) for p, first, last in landed if not found.overlaps({p: (first, last)})]


def forget_lost_dead_letters(manifest: Manifest, topic: str, earliest: Mapping[int, int]) -> None:
    """Forget the dead letters that no zone has a file of, and that Kafka does not have any more either.

    Args:
        manifest: The manifest.
        topic: The topic.
        earliest: Partition → the landed offset of the first message that Kafka has.
    """
    with manifest.engine.connect() as connection:
        zones = connection.execute(sa.select(DEAD_LETTERS.c.zone).where(DEAD_LETTERS.c.topic == topic).distinct())
        lost = {zone: lost_dead_letters(manifest, zone, topic) for zone in zones.scalars()}
    with manifest.change() as (connection, _):
        for zone, several in lost.items():
            for partition, first, _ in several:
                if first < earliest.get(partition, 0):
                    place = {"zone": zone, "topic": topic, "partition": partition, "first": first}
                    connection.execute(sa.delete(DEAD_LETTERS).filter_by(**place))


def begun_offsets(manifest: Manifest, topic: str, files: Iterable[DataFile]) -> dict[int, int]:
    """Return, for each partition, the first offset that any zone has landed, whatever rows of files are left.

    Args:
        manifest: The manifest.
        topic: The topic.
        files: Its files in all zones, without dead letters.
    """
    found = first_offsets(files)
    query = sa.select(ENDS.c.partition, sa.func.min(ENDS.c.begun)).where(ENDS.c.topic == topic)
    with manifest.engine.connect() as connection:
        for partition, begun in connection.execute(query.group_by(ENDS.c.partition)):
            found[partition] = min(begun, found.get(partition, begun))
    return found


def landed_topics(manifest: Manifest) -> list[str]:
    """Return all topics that have files, or had any."""
    with manifest.engine.connect() as connection:
        topics = {*connection.execute(sa.select(FILES.c.topic)).scalars()}
        topics |= {*connection.execute(sa.select(ENDS.c.topic)).scalars()}
    return sorted(topics)


def _misfits(connection: sa.Connection) -> Iterator[tuple[DataFile, dict[str, Any]]]:
    """Yield each file that does not fit, and its derived columns as they should be."""
    recorded: dict[tuple[str, str], Ranges] = {}
    for row in connection.execute(sa.select(RANGES)):
        recorded.setdefault((row.zone, row.name), set()).add((row.partition, row.first, row.last, row.shard))
    query = sa.select(FILES).order_by(FILES.c.zone, FILES.c.name)
    for row in connection.execute(query).all():
        entry = entry_of(row)
        expected = row_of(entry)
        derived = {name: expected[name] for name in DERIVED}
        found = {name: row._mapping[name] for name in DERIVED}
        file = entry.file
        ranges = {(p, first, last, file.shard) for p, (first, last) in file.ranges.items()}
        if found != derived or recorded.get((file.zone, file.name), set()) != ranges:
            yield file, derived
