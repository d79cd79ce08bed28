"""A message as landing keeps it, and the bytes that stand for it whatever the format of its file."""

from __future__ import annotations

import struct
from typing import NamedTuple

_NUMBERS = struct.Struct(">iqqI")
_LENGTH = struct.Struct(">i")
_NOTHING = _LENGTH.pack(-1)


class Record(NamedTuple):
    """A Kafka message, byte for byte.

    timestamp: milliseconds since 1970 in UTC. key, value: None where the message has none (a tombstone has no value).
    headers: (name, value) in the message's order; a name may come again.
    """

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def canonical(self) -> bytes:
        """The bytes that a checksum is of: two records have the same if and only if they are equal.

        Big-endian: partition, offset, timestamp, number of headers; then key, value, and the name and value of each
        header, each after its length, which is -1 for None.
        """
        numbers = _NUMBERS.pack(self.partition, self.offset, self.timestamp, len(self.headers))
        if not self.headers:
            return b"".join((numbers, _field(self.key), _field(self.value)))
        headers = (part for name, value in self.headers for part in (_field(name.encode()), _field(value)))
        return b"".join((numbers, _field(self.key), _field(self.value), *headers))

    @property
    def size(self) -> int:
        """The length of the canonical bytes, in bytes: what counts as the size of a message, in every format."""
        headers = sum(8 + len(name.encode()) + len(value or b"") for name, value in self.headers)
        return _NUMBERS.size + 8 + len(self.key or b"") + len(self.value or b"") + headers


def _field(value: bytes | None) -> bytes:
    return _NOTHING if value is None else _LENGTH.pack(len(value)) + value
