"""Made-up files and records, for the tests of what is decided about them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lake_assets.connections.storage import Folder
from lake_assets.landing.files import Zone
from lake_assets.landing.records import Checksum, DataFile, Record


def file(name: str, ranges: dict[int, tuple[int, int]], *, size: int = 1, deletions: Iterable[str] = ()) -> DataFile:
    """A file of the one shard `s`; what it holds follows from its ranges."""
    count = sum(last - first + 1 for first, last in ranges.values())
    return DataFile(name, size, "s", ranges, frozenset(deletions), count, Checksum(count, hash(tuple(ranges.items()))))


def record(offset: int, *, partition: int = 0, value: bytes = b"value", key: str | None = "person") -> Record:
    """A message, sent a second after the one before it."""
    return Record(
        partition, offset, 1_000 * offset, None if key is None else key.encode(), value, (("source", b"test"),)
    )


def path_of(zone: Zone, name: str = "") -> Path:
    """The path of a file of a zone, or its folder."""
    assert isinstance(zone.storage, Folder)
    return zone.storage.path / name


def key_of(record: Record) -> str | None:
    """Whose a made-up record is."""
    return None if record.key is None else record.key.decode()
