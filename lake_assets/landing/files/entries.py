"""The description of a landed file, file names, and the comparison of two zones' files. Pure: it reads no file."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from lake_assets.errors import LandingError
from lake_assets.landing.files.checksum import Checksum
from lake_assets.landing.files.sharding import TOPIC, parse_shard

Kind = Literal["append", "columnar"]
SUFFIXES: Mapping[Kind, str] = {"append": ".avro", "columnar": ".parquet"}
NAME = re.compile(rf"{TOPIC.pattern}-(\d+-of-\d+|dead-letters)-[0-9a-f]{{32}}\.(avro|parquet)")
Comparison = Literal["match", "corrupt", "wait"]

_IDENTITY_LENGTH = 32
"""Hexadecimal digits."""


@dataclass(frozen=True)
class DataFile:
    """A file of records of one shard.

    Attributes:
        name: Unique in its zone.
        size: Bytes of the canonical form of its records: equal in both zones, whatever the format.
        shard: As `Shard` formats it.
        ranges: Partition → first and last offset, both inclusive.
        deletions: Ids of the deletion requests that it was scrubbed for.
        count: Number of records.
        checksum: Of its records.
        zone: The zone that wrote it.
        kind: `append` files are row-oriented, `columnar` files are compacted.
        made_from: Names of the files that it was made from, in its zone.
        digest: SHA-256 of the file's own bytes, hexadecimal.
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

    @property
    def holds_dead_letters(self) -> bool:
        """Whether its records are dead letters."""
        return parse_shard(self.shard).dead_letters


def names_of(files: Iterable[DataFile]) -> list[str]:
    """Return the names of files."""
    return [file.name for file in files]


def comparable(a: DataFile, b: DataFile) -> bool:
    """Return whether two files must hold the same records: shard, ranges and processed deletions are equal."""
    return a.shard == b.shard and a.deletions == b.deletions and dict(a.ranges) == dict(b.ranges)


def compare(a: DataFile, b: DataFile) -> Comparison:
    """Compare two files.

    Returns:
        `match` or `corrupt` if the files are comparable and their counts and checksums are equal or not; else `wait`.
    """
    if not comparable(a, b):
        return "wait"
    if a.count == b.count and a.checksum == b.checksum:
        return "match"
    return "corrupt"


def offsets(file: DataFile) -> str:
    """Return the offsets of a file for messages: `p0:[0:9] p3:[5:5]`."""
    parts = []
    for partition, (first, last) in sorted(file.ranges.items()):
        parts.append(f"p{partition}:[{first}:{last}]")
    return " ".join(parts)


def identity(shard: str, ranges: Mapping[int, tuple[int, int]], deletions: Iterable[str]) -> str:
    """Return a hash that is equal for two files if and only if they are comparable."""
    spans = sorted((partition, first, last) for partition, (first, last) in ranges.items())
    text = json.dumps([shard, spans, sorted(deletions)], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_IDENTITY_LENGTH]


def identity_of(file: DataFile) -> str:
    """Return the `identity` of a file."""
    return identity(file.shard, file.ranges, file.deletions)


def file_name(shard: str, ranges: Mapping[int, tuple[int, int]], deletions: Iterable[str], kind: Kind) -> str:
    """Return the name of a file. It depends on its expected content and format, so both zones give the same name."""
    stem = str(parse_shard(shard)).replace("/", "-")
    return f"{stem}-{identity(shard, ranges, deletions)}{SUFFIXES[kind]}"


def check_file_name(name: str) -> str:
    """Return the name if it has the form that `file_name` gives, so it cannot lead to another folder.

    Raises:
        LandingError: The name has another form.
    """
    if not NAME.fullmatch(name):
        raise LandingError(
            f"{name!r} is not the name of a landed file.",
            remedy="Name one that `lake landing status` shows.",
        )
    return name
