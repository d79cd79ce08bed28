"""Landed messages, and what describes files of them: checksums, shards, entries, and ranges of offsets. Pure.

A landed Kafka message, and its canonical bytes, which do not depend on the file format.

The checksum of a file's records. It depends on the records alone, and checksums of parts add up to the whole.

The sum of hashes is a multiset hash (AdHash: Bellare and Micciancio, "A New Paradigm for Collision-Free Hashing",
1997). It detects faults. It does not detect records that were made up to reach a wanted sum.

Shards: how the records of a topic are distributed. Sharding is by distinct id, so one id lies in one shard.

The description of a landed file, file names, and the comparison of two zones' files. Pure: it reads no file.

Offset ranges of files: for each partition the first and the last offset, both inclusive. Pure.

The ids that a dead letter may mention: every part of its text that can be an id. Pure.

A deletion request knows an id by its hash alone, so each part is returned for hashing. A part is what the certificate
of an erasure takes for a word of its own (`base.id_matcher.word`): `a1` is not in `a10`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeVar

from lake_assets.errors import ConfigurationError, LandingError, UsageError

_NUMBERS = struct.Struct(">iqqI")
_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)


class Record(NamedTuple):
    """A Kafka message, byte for byte.

    Attributes:
        timestamp: Milliseconds since 1970-01-01 UTC.
        key: None if the message has no key.
        value: None if the message has no value, as a tombstone.
        headers: (name, value) in the order of the message; a name may occur more than once.
    """

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def canonical(self) -> bytes:
        """The bytes that a checksum covers. Two records have the same bytes if and only if they are equal.

        Big-endian: partition, offset, timestamp, number of headers; then key, value, and the name and value of each
        header. Each of these fields follows its length, which is -1 for None.
        """
        parts = [
            _NUMBERS.pack(self.partition, self.offset, self.timestamp, len(self.headers)),
            _field(self.key),
            _field(self.value),
        ]
        for name, value in self.headers:
            parts.append(_field(name.encode()))
            parts.append(_field(value))
        return b"".join(parts)

    @property
    def size(self) -> int:
        """The length of the canonical bytes. It is the size of a message in every file format."""
        size = _NUMBERS.size
        size += _LENGTH.size + len(self.key or b"")
        size += _LENGTH.size + len(self.value or b"")
        for name, value in self.headers:
            size += 2 * _LENGTH.size
            size += len(name.encode()) + len(value or b"")
        return size


def _field(value: bytes | None) -> bytes:
    if value is None:
        return _NULL
    return _LENGTH.pack(len(value)) + value


MODULUS = 1 << 256


@dataclass(frozen=True, slots=True)
class Checksum:
    """The checksum of records. Checksums can be added, and subtracted again.

    Attributes:
        count: Number of records.
        sum: Sum of the SHA-256 of each record's canonical bytes, as big-endian numbers, modulo 2^256.
    """

    count: int = 0
    sum: int = 0

    def __add__(self, other: Checksum) -> Checksum:
        return Checksum(self.count + other.count, (self.sum + other.sum) % MODULUS)

    def __sub__(self, other: Checksum) -> Checksum:
        return Checksum(self.count - other.count, (self.sum - other.sum) % MODULUS)

    def __str__(self) -> str:
        return f"{self.count}:{self.sum:064x}"


NOTHING = Checksum()
"""The checksum of no record."""


def checksum(records: Iterable[bytes]) -> Checksum:
    """Return the checksum of records.

    It detects a record that is missing, changed or duplicated. An XOR of the hashes would not detect an even number of
    equal changes.

    Args:
        records: The canonical bytes of each record (`Record.canonical`), in any order.
    """
    count = 0
    total = 0
    for record in records:
        count += 1
        total += summand(record)
    return Checksum(count, total % MODULUS)


def total(checksums: Iterable[Checksum]) -> Checksum:
    """Return the checksum of the whole, given those of its parts."""
    whole = NOTHING
    for part in checksums:
        whole += part
    return whole


def summand(record: bytes) -> int:
    """Return the term that a record adds to the sum."""
    return int.from_bytes(hashlib.sha256(record).digest())


@dataclass
class Tally:
    """Counts records while they pass.

    Attributes:
        count: Number of records.
        size: Bytes of their canonical form.
    """

    count: int = 0
    size: int = 0
    _total: int = 0

    def of(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yield the same records and count each of them."""
        for record in records:
            self.add(record)
            yield record

    def add(self, record: Record) -> None:
        """Count one record."""
        canonical = record.canonical
        self.count += 1
        self.size += len(canonical)
        self._total += summand(canonical)

    @property
    def checksum(self) -> Checksum:
        """The checksum of the records counted so far."""
        return Checksum(self.count, self._total % MODULUS)


TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,160}")
"""The names that Kafka allows, with a shorter length: the topic is part of each file name."""

_SHARD = re.compile(rf"(?P<topic>{TOPIC.pattern})/((?P<number>\d{{1,5}})-of-(?P<of>\d{{1,5}})|dead-letters)")
_HASH_BYTES = 8

DistinctId = Callable[[Record], str | None]
"""Returns the distinct id of a record, or None if it has none, as a heartbeat."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a topic.

    Attributes:
        number: From 0 on.
        of: Number of shards: the sharding specification.
        dead_letters: Whether it holds the messages of the topic that make no row. They have no distinct id and are not
            sharded.
    """

    topic: str
    number: int = 0
    of: int = 1
    dead_letters: bool = False

    def __post_init__(self) -> None:
        if not TOPIC.fullmatch(self.topic) or self.topic in (".", ".."):
            raise ConfigurationError(
                f"{self.topic!r} is not the name of a topic.",
                remedy="Use a-z, 0-9, '.', '_', '-'.",
            )
        if not 0 <= self.number < self.of or (self.dead_letters and self.of > 1):
            raise ConfigurationError(
                f"There is no shard {self.number} of {self.of} of {self.topic}.",
                remedy="Number shards from 0 on.",
            )

    def __str__(self) -> str:
        if self.dead_letters:
            return f"{self.topic}/dead-letters"
        return f"{self.topic}/{self.number}-of-{self.of}"

    def takes(self, distinct_id: str | None) -> bool:
        """Return whether the records of a distinct id belong to this shard; those without one are in shard 0."""
        number = 0 if distinct_id is None else _shard_number(distinct_id, self.of)
        return number == self.number

    def overlaps(self, other: Shard) -> bool:
        """Return whether a record of the topic may belong to both shards, whatever their specifications."""
        if self.dead_letters != other.dead_letters:
            return False
        return (self.number - other.number) % math.gcd(self.of, other.of) == 0


def parse_shard(text: str) -> Shard:
    """Return the shard that a text such as `raw.signups/0-of-4` or `raw.signups/dead-letters` names.

    Raises:
        UsageError: The text does not have this form.
    """
    found = _SHARD.fullmatch(text)
    if not found:
        raise UsageError(f"{text!r} is not a shard.", remedy="Write it as TOPIC/0-of-4 or TOPIC/dead-letters.")
    if found["number"] is None:
        return Shard(found["topic"], dead_letters=True)
    return Shard(found["topic"], int(found["number"]), int(found["of"]))


def shards(topic: str, count: int) -> list[Shard]:
    """Return all shards of a topic under a sharding specification."""
    return [Shard(topic, number, count) for number in range(count)]


def complete(found: Iterable[Shard]) -> bool:
    """Return whether shards of one topic hold all its records together, whatever their specifications."""
    specifications = {(shard.number, shard.of) for shard in found}
    finest = math.lcm(*(of for _, of in specifications))
    covered: set[int] = set()
    for number, of in specifications:
        covered.update(range(number, finest, of))
    return len(covered) == finest


def _shard_number(distinct_id: str, of: int) -> int:
    digest = hashlib.sha256(distinct_id.encode()).digest()
    return int.from_bytes(digest[:_HASH_BYTES]) % of


Kind = Literal["append", "columnar"]
SUFFIXES: Mapping[Kind, str] = {"append": ".avro", "columnar": ".parquet"}
KINDS = {suffix.removeprefix("."): kind for kind, suffix in SUFFIXES.items()}
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


Ranges = Mapping[int, tuple[int, int]]
"""Partition → first and last offset, both inclusive."""

Value = TypeVar("Value")

_first = itemgetter(0)
_last = itemgetter(1)


def union(several: Iterable[Ranges]) -> dict[int, tuple[int, int]]:
    """Return, for each partition, the range from the least offset to the greatest; partitions ascend."""
    merged: dict[int, tuple[int, int]] = {}
    for ranges in several:
        for partition, (first, last) in ranges.items():
            least, greatest = merged.get(partition, (first, last))
            merged[partition] = (min(least, first), max(greatest, last))
    return dict(sorted(merged.items()))


def merged_ranges(files: Iterable[DataFile]) -> dict[int, tuple[int, int]]:
    """Return the ranges of the one file that replaces files."""
    return union(file.ranges for file in files)


def first_offsets(files: Iterable[DataFile]) -> dict[int, int]:
    """Return, for each partition, the first offset of files."""
    return {partition: first for partition, (first, _) in merged_ranges(files).items()}


def last_offsets(files: Iterable[DataFile]) -> dict[int, int]:
    """Return, for each partition, the last offset of files, inclusive."""
    return {partition: last for partition, (_, last) in merged_ranges(files).items()}


def next_offsets(files: Iterable[DataFile]) -> dict[int, int]:
    """Return, for each partition, the offset after the last one of files."""
    return {partition: last + 1 for partition, last in last_offsets(files).items()}


def with_text_keys(by_partition: Mapping[int, Value]) -> dict[str, Value]:
    """Return a mapping by partition with the keys that JSON needs."""
    return {str(partition): value for partition, value in by_partition.items()}


def with_number_keys(by_partition: Mapping[str, Value]) -> dict[int, Value]:
    """Return a mapping by partition that was read from JSON, with numbers as keys."""
    return {int(partition): value for partition, value in by_partition.items()}


class RangeIndex:
    """Finds overlaps with many ranges, in O(log n) for each partition of a query."""

    def __init__(self, several: Iterable[Ranges]) -> None:
        spans: dict[int, list[tuple[int, int]]] = {}
        for ranges in several:
            for partition, span in ranges.items():
                spans.setdefault(partition, []).append(span)
        self._spans: dict[int, list[tuple[int, int]]] = {}
        self._greatest: dict[int, list[int]] = {}
        for partition, found in spans.items():
            ordered = sorted(found)
            self._spans[partition] = ordered
            self._greatest[partition] = list(accumulate(map(_last, ordered), max))

    def overlaps(self, ranges: Ranges) -> bool:
        """Return whether any of the indexed ranges has an offset of these."""
        for partition, (first, last) in ranges.items():
            begun = bisect_right(self._spans.get(partition, ()), last, key=_first)
            if begun > 0 and self._greatest[partition][begun - 1] >= first:
                return True
        return False


PIECES = 9
"""The most pieces (words, and the signs between them) of an id within a text. `jo@mail.example.org` has seven.

A longer id is found where it is a whole key, a whole header, or a whole JSON text.
"""

_PIECE = re.compile(r"[\w-]+|[^\w-]")


def mentions(record: Record) -> Iterator[str]:
    """Yield all texts of a record's key, value and headers that may be an id; some occur more than once."""
    parts = [record.key, record.value]
    for name, value in record.headers:
        parts.append(name.encode())
        parts.append(value)
    for part in parts:
        if part:
            yield from _of_text(part.decode(errors="replace"))


def stretches(text: str) -> Iterator[str]:
    """Yield every part of a text that is a word of its own and has at most `PIECES` pieces."""
    pieces = list(_PIECE.finditer(text))
    words = [_is_word(piece[0]) for piece in pieces]
    for first, piece in enumerate(pieces):
        if not _is_boundary(words, first, first - 1):
            continue
        for last in range(first, min(first + PIECES, len(pieces))):
            if _is_boundary(words, last, last + 1):
                yield text[piece.start() : pieces[last].end()]


def _is_boundary(words: list[bool], piece: int, neighbour: int) -> bool:
    """Return whether an id may begin or end at a piece: not if it is a sign that touches a word."""
    if words[piece]:
        return True
    return not 0 <= neighbour < len(words) or not words[neighbour]


def _of_text(text: str) -> Iterator[str]:
    """Yield the text and its parts. If it is JSON, do so for each string in it: an id may be escaped there."""
    yield text
    yield from stretches(text)
    for string in _json_strings(text):
        yield string
        if "\\" in text:
            yield from stretches(string)


def _json_strings(text: str) -> Iterator[str]:
    try:
        left: list[Any] = [json.loads(text)]
    except (ValueError, RecursionError):
        return
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value.encode(errors="replace").decode()  # half of a surrogate pair cannot be encoded
        elif isinstance(value, dict):
            left += value.keys()
            left += value.values()
        elif isinstance(value, list):
            left += value


def _is_word(piece: str) -> bool:
    return piece[0] in "-_" or piece[0].isalnum()
