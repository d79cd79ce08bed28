"""What the manifest knows of a file, and what two zones' files say of each other. Pure: nothing is read here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from lake_assets.landing.checksum import Checksum

Kind = Literal["append", "columnar"]
Comparison = Literal["match", "corrupt", "wait"]


@dataclass(frozen=True)
class DataFile:
    """A file of records of one shard.

    name: unique in its zone. size: bytes of its records' canonical form, so the same in both zones whatever the format.
    shard: as `Shard` writes it. ranges: partition → its first and last offset, both inclusive. deletions: ids of the
    deletion requests that its records were scrubbed for. count, checksum: of its records.

    kind: `append` files are row-oriented, `columnar` ones compacted. made_from: names of the files that it was made
    from, in its zone. digest: SHA-256 of the file's own bytes, hexadecimal.
    """

    name: str
    size: int
    shard: str
    ranges: Mapping[int, tuple[int, int]] = field(hash=False)
    deletions: frozenset[str]
    count: int
    checksum: Checksum
    zone: str = ""
    kind: Kind = "append"
    made_from: tuple[str, ...] = ()
    digest: str = ""


def comparable(a: DataFile, b: DataFile) -> bool:
    """Whether two files must hold the same records: shard, ranges and processed deletions are equal."""
    return a.shard == b.shard and a.deletions == b.deletions and dict(a.ranges) == dict(b.ranges)


def compare(a: DataFile, b: DataFile) -> Comparison:
    """`match` or `corrupt`: the files are comparable, and their counts and checksums are equal, or not. Else `wait`."""
    if not comparable(a, b):
        return "wait"
    return "match" if (a.count, a.checksum) == (b.count, b.checksum) else "corrupt"
