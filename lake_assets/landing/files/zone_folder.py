"""The files of a zone: written whole or not at all, read only as what the manifest says of them.

A file is written beside its place under a name of its own, synced, read again, and only then moved to its place and
added to the manifest. What a process that dies leaves behind is a draft, or a file that no manifest names: nobody reads
either, and `verify` tells of them.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from lake_assets.errors import ConfigurationError, FileDamaged, LandingError, SumsDisagree
from lake_assets.landing.files import formats
from lake_assets.landing.files.checksum import MODULUS, Checksum, summand
from lake_assets.landing.files.entries import DataFile, Kind, check_file_name, file_name
from lake_assets.landing.files.records import Record

ZONE = re.compile(r"[a-z][a-z0-9-]{0,15}")
DRAFT = ".draft-"
QUARANTINE = "quarantine"


@dataclass
class Tally:
    """What is counted of records while they pass."""

    count: int = 0
    size: int = 0
    _total: int = 0

    def of(self, records: Iterable[Record]) -> Iterator[Record]:
        """The same records, counted one by one."""
        for record in records:
            self.add(record)
            yield record

    def add(self, record: Record) -> None:
        """Count one more."""
        canonical = record.canonical
        self.count += 1
        self.size += len(canonical)
        self._total += summand(canonical)

    @property
    def checksum(self) -> Checksum:
        return Checksum(self.count, self._total % MODULUS)


@dataclass(frozen=True)
class Zone:
    """One of the zones that write the same. folder: of its files, which lie on no other zone's disk, if it matters."""

    name: str
    folder: Path

    def __post_init__(self) -> None:
        if not ZONE.fullmatch(self.name):
            raise ConfigurationError(f"{self.name!r} is not the name of a zone.", remedy="Use letters, such as a, b.")

    def path(self, name: str) -> Path:
        """Where a file lies. Raises `LandingError` for a name that no file of a zone has."""
        return self.folder / check_file_name(name)

    def draft(
        self,
        shard: str,
        ranges: Mapping[int, tuple[int, int]],
        records: Iterable[Record],
        *,
        deletions: frozenset[str] = frozenset(),
        kind: Kind = "append",
        made_from: tuple[str, ...] = (),
    ) -> Draft:
        """Write records to a draft, and read it again: it holds what was to be written. One pass, constant memory."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{DRAFT}{uuid4().hex}"
        given = Tally()
        try:
            with path.open("xb") as opened:
                formats.write(kind, opened, given.of(records))
                opened.flush()
                os.fsync(opened.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        file = DataFile(
            file_name(shard, ranges, deletions, kind),
            given.size,
            shard,
            dict(sorted(ranges.items())),
            deletions,
            given.count,
            given.checksum,
            self.name,
            kind,
            made_from,
            digest_of(path),
        )
        return checked(Draft(file, path))

    def records(self, file: DataFile) -> Iterator[Record]:
        """The records of a file, which is what the manifest says: its bytes first, its records when all were read.

        Raises `FileDamaged`, when it is gone, too.
        """
        yield from read_checked(self.path(file.name), file)

    def damage(self, file: DataFile) -> FileDamaged | None:
        """What is wrong with a file, which is read to its end; None: it is what the manifest says."""
        return _damage(self.path(file.name), file)

    def set_aside(self, name: str) -> None:
        """Move a file to quarantine, where it stays for whoever looks into it. Safe to repeat."""
        path, aside = self.path(name), self.folder / QUARANTINE / check_file_name(name)
        if path.exists():
            aside.parent.mkdir(exist_ok=True)
            path.replace(aside)

    def take_back(self, name: str) -> None:
        """Move a file from quarantine back to its place. Safe to repeat."""
        aside = self.folder / QUARANTINE / check_file_name(name)
        if aside.exists():
            aside.replace(self.path(name))

    def drop(self, name: str) -> None:
        """Remove a file, in quarantine or not. Safe to repeat."""
        for path in (self.path(name), self.folder / QUARANTINE / name):
            path.unlink(missing_ok=True)

    def names(self, written_before: datetime) -> list[str]:
        """The files that lie in their place, drafts too, and were last written before a time; sorted."""
        if not self.folder.exists():
            return []
        latest = written_before.timestamp()
        return sorted(p.name for p in self.folder.iterdir() if p.is_file() and p.stat().st_mtime < latest)

    def drop_drafts(self, written_before: datetime) -> list[str]:
        """Remove what processes that died left half written; their names."""
        found = [name for name in self.names(written_before) if name.startswith(DRAFT)]
        for name in found:
            (self.folder / name).unlink(missing_ok=True)
        return found


@dataclass(frozen=True)
class Draft:
    """A file that is written whole, and not in its place yet."""

    file: DataFile
    path: Path

    def put(self, place: Path) -> None:
        """Move it to its place, for good: a power cut does not undo it."""
        self.path.replace(place)
        folder = os.open(place.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def checked(draft: Draft) -> Draft:
    """The draft, as any reader would read it. Raises `SumsDisagree` if it is not what was to be written."""
    file = draft.file
    if damaged := _damage(draft.path, file):
        draft.path.unlink()
        raise SumsDisagree("writing", file.name, taken=str(file.checksum), given=damaged.problem) from damaged
    return draft


def _damage(path: Path, file: DataFile) -> FileDamaged | None:
    try:
        deque(read_checked(path, file), maxlen=0)
    except FileDamaged as damaged:
        return damaged
    return None


def digest_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, hexadecimal."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def read_checked(path: Path, file: DataFile) -> Iterator[Record]:
    """The records at a path, as they are read; at the end they are known to be the file's. Raises `FileDamaged`."""
    try:
        if digest_of(path) != file.digest:
            raise FileDamaged(file.name, "has other bytes than were written")
        found = Tally()
        with path.open("rb") as opened:
            for record in found.of(formats.read(file.kind, opened)):
                _check_place(file, record)
                yield record
    except FileNotFoundError as error:
        raise FileDamaged(file.name, "is not where it was written") from error
    except (LandingError, GeneratorExit):
        raise
    except Exception as error:  # of fastavro or pyarrow: whatever a damaged file makes of them
        raise FileDamaged(file.name, f"cannot be read ({type(error).__name__}: {error})") from error
    if (found.size, found.count, found.checksum) != (file.size, file.count, file.checksum):
        raise FileDamaged(file.name, f"holds records with the checksum {found.checksum}, not {file.checksum}")


def _check_place(file: DataFile, record: Record) -> None:
    first, last = file.ranges.get(record.partition, (0, -1))
    if not first <= record.offset <= last:
        raise FileDamaged(file.name, f"holds offset {record.offset} of partition {record.partition}, outside its own")
