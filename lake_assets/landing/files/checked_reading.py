"""Reading a file against its description in the manifest."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from lake_assets.errors import FileDamaged, LandingError
from lake_assets.landing.files import formats
from lake_assets.landing.files.checksum import Tally
from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.records import Record

_NO_OFFSETS = (0, -1)


def read_checked(path: Path, file: DataFile) -> Iterator[Record]:
    """Yield the records of a file.

    The file's bytes are checked before the first record, its records after the last one.

    Args:
        path: Where the file lies.
        file: Its description.

    Raises:
        FileDamaged: The file is missing or does not match its description.
    """
    tally = Tally()
    try:
        if digest_of(path) != file.digest:
            raise FileDamaged(file.name, "has other bytes than were written")
        with path.open("rb") as opened:
            for record in tally.of(formats.read(file.kind, opened)):
                _require_in_ranges(file, record)
                yield record
    except FileNotFoundError as error:
        raise FileDamaged(file.name, "is not where it was written") from error
    except (LandingError, GeneratorExit):
        raise
    except Exception as error:  # fastavro and pyarrow raise many types for a damaged file
        raise FileDamaged(file.name, f"cannot be read ({type(error).__name__}: {error})") from error
    _require_totals(file, tally)


def damage_of(path: Path, file: DataFile) -> FileDamaged | None:
    """Read a file to its end and return what is wrong with it; None if it matches its description."""
    try:
        deque(read_checked(path, file), maxlen=0)
    except FileDamaged as damaged:
        return damaged
    return None


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, hexadecimal."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _require_in_ranges(file: DataFile, record: Record) -> None:
    first, last = file.ranges.get(record.partition, _NO_OFFSETS)
    if not first <= record.offset <= last:
        raise FileDamaged(file.name, f"holds offset {record.offset} of partition {record.partition}, outside its own")


def _require_totals(file: DataFile, tally: Tally) -> None:
    if tally.size != file.size or tally.count != file.count or tally.checksum != file.checksum:
        raise FileDamaged(file.name, f"holds records with the checksum {tally.checksum}, not {file.checksum}")
