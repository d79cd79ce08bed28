"""The folder of a zone, and reading its files against their descriptions.

Reading a file against its description in the manifest.

The folder of a zone: files are written as a whole or not at all, and read as the manifest describes them.

A file is written as a draft under a name of its own, synced and read again. Only then it is moved to its place and
added to the manifest. A process that dies leaves a draft, or a file that the manifest does not name. Readers read
neither; `verify` reports both.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from lake_assets.errors import ConfigurationError, DiskFull, FileDamaged, LandingError, SumsDisagree
from lake_assets.landing import formats
from lake_assets.landing.records import NAME, DataFile, Kind, Record, Tally, check_file_name, file_name

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


ZONE = re.compile(r"[a-z][a-z0-9-]{0,15}")
DRAFT = ".draft-"
QUARANTINE = "quarantine"
OPEN = "open"
"""The folder of open files."""

MARKER = "zone.json"
"""The file of a zone's folder that says which storage it is."""

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The errors of a full disk, an exceeded quota, and the limit of a process."""


@dataclass(frozen=True)
class Zone:
    """One of the zones that land the same records.

    Attributes:
        name: Such as `a`.
        folder: Folder of its files; on a disk of its own if a broken disk must not damage two zones.
    """

    name: str
    folder: Path

    def __post_init__(self) -> None:
        if not ZONE.fullmatch(self.name):
            raise ConfigurationError(f"{self.name!r} is not the name of a zone.", remedy="Use letters, such as a, b.")

    def path(self, name: str) -> Path:
        """Return the path of a file. Raises `LandingError` if no file of a zone can have the name."""
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
        """Write records to a draft, then read it again to check it. One pass, constant memory.

        Args:
            shard: As `Shard` formats it.
            ranges: Partition → first and last offset, both inclusive.
            records: In the order in which they are written.
            deletions: Ids of the deletion requests that the records were scrubbed for.
            kind: The format.
            made_from: Names of the files that the records come from.

        Raises:
            SumsDisagree: The draft does not hold what was written to it; it is removed.
            DiskFull: There is no space for it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{DRAFT}{uuid4().hex}"
        written = _write_synced(path, kind, records)
        file = DataFile(
            name=file_name(shard, ranges, deletions, kind),
            size=written.size,
            shard=shard,
            ranges=dict(sorted(ranges.items())),
            deletions=deletions,
            count=written.count,
            checksum=written.checksum,
            zone=self.name,
            kind=kind,
            made_from=made_from,
            digest=digest_of(path),
        )
        draft = Draft(file, path)
        draft.check()
        return draft

    def records(self, file: DataFile) -> Iterator[Record]:
        """Yield the records of a file, checked as in `read_checked`. Raises `FileDamaged`."""
        yield from read_checked(self.path(file.name), file)

    def damage(self, file: DataFile) -> FileDamaged | None:
        """Read a file to its end and return what is wrong with it; None if it matches the manifest."""
        return damage_of(self.path(file.name), file)

    def quarantine(self, name: str) -> None:
        """Move a file to quarantine, where it stays for inspection. Safe to repeat."""
        path = self.path(name)
        quarantined = self._quarantined(name)
        if path.exists():
            quarantined.parent.mkdir(exist_ok=True)
            path.replace(quarantined)

    def restore(self, name: str) -> None:
        """Move a file from quarantine back to its place. Safe to repeat."""
        quarantined = self._quarantined(name)
        if quarantined.exists():
            quarantined.replace(self.path(name))

    def storage_id(self) -> str | None:
        """Return the id in the marker of the folder; None if the folder or its marker is not there, or is damaged."""
        try:
            return str(json.loads((self.folder / MARKER).read_text())["storage"])
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None

    def mark(self, storage: str) -> None:
        """Write the marker of the folder, as a whole. The folder is created if it is not there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f"{DRAFT}{uuid4().hex}"
        draft.write_text(json.dumps({"zone": self.name, "storage": storage}) + "\n")
        draft.replace(self.folder / MARKER)

    def landed_names(self) -> set[str]:
        """Return the names of the landed files in the folder, whether the manifest has them or not."""
        if not self.folder.exists():
            return set()
        return {path.name for path in self.folder.iterdir() if NAME.fullmatch(path.name)}

    def drop(self, name: str) -> None:
        """Remove a file, in quarantine or not. Safe to repeat."""
        self.path(name).unlink(missing_ok=True)
        self._quarantined(name).unlink(missing_ok=True)

    def names(self, written_before: datetime) -> list[str]:
        """Return the sorted names of files outside quarantine, drafts included, last written before a time."""
        if not self.folder.exists():
            return []
        latest = written_before.timestamp()
        found = []
        for path in self.folder.iterdir():
            if path.is_file() and path.name != MARKER and path.stat().st_mtime < latest:
                found.append(path.name)
        return sorted(found)

    def drop_drafts(self, written_before: datetime) -> list[str]:
        """Remove the drafts of processes that died, last written before a time; return their names."""
        found = [name for name in self.names(written_before) if name.startswith(DRAFT)]
        for name in found:
            (self.folder / name).unlink(missing_ok=True)
        return found

    def _quarantined(self, name: str) -> Path:
        return self.folder / QUARANTINE / check_file_name(name)


@dataclass(frozen=True)
class Draft:
    """A file that is complete, but not yet in its place."""

    file: DataFile
    path: Path

    def check(self) -> None:
        """Read the draft as any reader would. Raises `SumsDisagree`, and removes it, if it is damaged."""
        damaged = damage_of(self.path, self.file)
        if damaged is None:
            return
        self.path.unlink()
        taken = str(self.file.checksum)
        raise SumsDisagree("writing", self.file.name, taken=taken, given=damaged.problem) from damaged

    def put(self, place: Path) -> None:
        """Move the draft to its place. The folder is synced, so a power cut does not undo the move."""
        self.path.replace(place)
        folder = os.open(place.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def sound_records(zones: Mapping[str, Zone], files: Iterable[DataFile]) -> list[Record]:
    """Return the records of the first of equal files that can be read. Raises `FileDamaged` if none can.

    Args:
        zones: All zones by name.
        files: One or more files of the same records.
    """
    for file in files:
        try:
            return list(zones[file.zone].records(file))
        except FileDamaged as error:
            damaged = error
    raise damaged


def _write_synced(path: Path, kind: Kind, records: Iterable[Record]) -> Tally:
    try:
        return _written(path, kind, records)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise DiskFull(path.parent, error.strerror or "no space left") from error
        raise


def _written(path: Path, kind: Kind, records: Iterable[Record]) -> Tally:
    tally = Tally()
    try:
        with path.open("xb") as opened:
            formats.write(kind, opened, tally.of(records))
            opened.flush()
            os.fsync(opened.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return tally
