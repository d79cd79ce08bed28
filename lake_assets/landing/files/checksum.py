"""What a file of records amounts to: a value that depends on the records alone, and that parts add up to.

The sum of hashes is a multiset hash (AdHash: Bellare and Micciancio, "A New Paradigm for Collision-Free Hashing",
1997). It guards against faults. Nobody is kept from making up records with a wanted sum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

MODULUS = 1 << 256


@dataclass(frozen=True, slots=True)
class Checksum:
    """count: how many records. sum: of the SHA-256 of each record's canonical bytes, as a big-endian number, mod 2^256.

    Checksums of parts add up to that of the whole; taken away again, a part leaves the rest.
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
    """The checksum of records, each as its canonical bytes (`Record.canonical`). Their order does not matter.

    Sensitive to a record that is missing, changed, or there once more than it should be: an XOR of the hashes would
    not be, when an even number of changes is equal.
    """
    count = total = 0
    for record in records:
        count += 1
        total += summand(record)
    return Checksum(count, total % MODULUS)


def summand(record: bytes) -> int:
    """What a record adds to the sum."""
    return int.from_bytes(hashlib.sha256(record).digest())
