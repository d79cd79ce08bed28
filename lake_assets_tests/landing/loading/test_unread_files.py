"""A loader looks at the files that it has not read, however many there were before. Real manifest, no Kafka."""

from __future__ import annotations

import sqlalchemy as sa

from lake_assets.landing.loading import unread_files
from lake_assets.landing.manifest import ALL_VERDICTS, Entry, FileRows, Manifest, open_manifest
from lake_assets.landing.records import Checksum, DataFile, Shard, file_name
from lake_assets.settings import Settings
from lake_assets_tests.landing.scenario import NOW, TOPIC, quarantine

OTHERS = (f"{TOPIC}-2", "raw.a", "raw.z")
PARTITIONS = (0, 1)
PER_FILE = 3


def fill(manifest: Manifest, first: int, last: int) -> None:
    """Files of these numbers in both zones, of all partitions, with dead letters, and of other topics."""
    shards = [Shard(TOPIC), Shard(TOPIC, dead_letters=True), *map(Shard, OTHERS)]
    with manifest.change() as (connection, version):
        for number in range(first, last):
            for shard in map(str, shards):
                for partition in PARTITIONS:
                    ranges = {partition: (PER_FILE * number, PER_FILE * number + PER_FILE - 1)}
                    name = file_name(shard, ranges, (), "append")
                    for zone in "ab":
                        file = DataFile(name, 1, shard, ranges, frozenset(), PER_FILE, Checksum(PER_FILE, 1), zone)
                        FileRows(connection).insert(Entry(file, "verified", "live", version, NOW, None, ""))


def found(manifest: Manifest, offsets: dict[int, int]) -> set[tuple[str, str]]:
    entries = unread_files(manifest, TOPIC, "ab", PARTITIONS, offsets)
    return {(entry.file.zone, entry.file.name) for entry in entries}


def slowly_found(manifest: Manifest, offsets: dict[int, int]) -> set[tuple[str, str]]:
    """Of all files, those that hold an offset to come."""
    names = set()
    for entry in manifest.entries(topic=TOPIC, verdicts=ALL_VERDICTS):
        for partition, (_, last) in entry.file.ranges.items():
            if partition in PARTITIONS and last >= offsets.get(partition, 0) and not entry.file.holds_dead_letters:
                names.add((entry.file.zone, entry.file.name))
    return names


def test_files_with_an_offset_to_come_are_found_quarantined_ones_too(bare_home: Settings) -> None:
    manifest = open_manifest(bare_home)
    assert found(manifest, {}) == set()
    fill(manifest, 0, 5)
    aside = file_name(str(Shard(TOPIC)), {0: (12, 14)}, (), "append")
    quarantine(manifest, "b", aside)
    for offsets in ({}, {0: 0, 1: 0}, {0: 11}, {0: 12, 1: 15}, {0: 13, 1: 2}, {0: 15, 1: 15}):
        assert found(manifest, offsets) == slowly_found(manifest, offsets)
    assert ("b", aside) in found(manifest, {0: 12, 1: 15})
    assert len(found(manifest, {0: 12, 1: 15})) == 2


def test_the_work_of_a_look_does_not_grow_with_the_history(bare_home: Settings) -> None:
    manifest = open_manifest(bare_home)
    fill(manifest, 0, 4)
    few = steps(manifest, {0: 9, 1: 9})
    fill(manifest, 4, 60)
    many = steps(manifest, {0: 177, 1: 177})
    assert len(found(manifest, {0: 177, 1: 177})) == 4
    assert many <= 1.1 * few


def steps(manifest: Manifest, offsets: dict[int, int]) -> int:
    """Instructions that SQLite carries out for a look: its own measure of work."""
    counted = [0]

    def count() -> int:
        counted[0] += 1
        return 0

    manifest.engine.dispose()
    sa.event.listen(manifest.engine, "connect", lambda opened, _: opened.set_progress_handler(count, 1))
    found(manifest, offsets)
    return counted[0]
