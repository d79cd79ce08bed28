"""A landed Kafka message, and its canonical bytes, which do not depend on the file format."""

from __future__ import annotations

import struct
from typing import NamedTuple

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
