"""The checksum of a file's records. It depends on the records alone, and checksums of parts add up to the whole.

The sum of hashes is a multiset hash (AdHash: Bellare and Micciancio, "A New Paradigm for Collision-Free Hashing",
1997). It detects faults. It does not detect records that were made up to reach a wanted sum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lake_assets.landing.files.records import Record

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
