"""What the manifest knows of a file, and what two zones' files say of each other. Pure: nothing is read here."""

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


def offsets(file: DataFile) -> str:
    """The offsets of a file, for people: `p0:[0:9] p3:[5:5]`."""
    return " ".join(f"p{partition}:[{first}:{last}]" for partition, (first, last) in sorted(file.ranges.items()))


def identity(shard: str, ranges: Mapping[int, tuple[int, int]], deletions: Iterable[str]) -> str:
    """A hash of what makes files comparable: equal for two files if and only if they are."""
    parts = [shard, sorted((p, first, last) for p, (first, last) in ranges.items()), sorted(deletions)]
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()[:32]


def file_name(shard: str, ranges: Mapping[int, tuple[int, int]], deletions: Iterable[str], kind: Kind) -> str:
    """The name of a file: it follows from what it should hold and its format, so both zones give the same."""
    stem = str(parse_shard(shard)).replace("/", "-")
    return f"{stem}-{identity(shard, ranges, deletions)}{SUFFIXES[kind]}"


def check_file_name(name: str) -> str:
    """The name, if `file_name` may have given it; so it leads to no other folder. Raises `LandingError`."""
    if not NAME.fullmatch(name):
        raise LandingError(
            f"{name!r} is not the name of a landed file.", remedy="Name one that `lake landing status` shows."
        )
    return name
