"""The storage of a zone: its files are written as a whole or not at all, and read as the manifest describes them.

A file is written as a draft under a name of its own, synced and read again. Only then it is put in its place, in a
folder or in an object store, and added to the manifest. A process that dies leaves a draft, or a file that the manifest
does not name. Readers read neither; `verify` reports both.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from lake_assets.connections.storage import NO_SPACE, Folder, Storage, storage_at
from lake_assets.errors import ConfigurationError, DiskFull, FileDamaged, LandingError, ServiceError, sums_disagree
from lake_assets.landing import formats
from lake_assets.landing.records import NAME, DataFile, Kind, Record, Tally, check_file_name, file_name
from lake_assets.settings import Settings

_NO_OFFSETS = (0, -1)


def read_checked(open_file: Callable[[], BinaryIO], file: DataFile) -> Iterator[Record]:
    """Yield the records of a file.

    The file's bytes are checked before the first record, its records after the last one.

    Args:
        open_file: Opens it.
        file: Its description.

    Raises:
        FileDamaged: The file is missing or does not match its description.
        ServiceError: Its object store does not answer.
    """
    tally = Tally()
    try:
        with open_file() as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != file.digest:  # type: ignore[arg-type]
                raise FileDamaged(file.name, "has other bytes than were written")
            opened.seek(0)
            for record in tally.of(formats.read(file.kind, opened)):
                _require_in_ranges(file, record)
                yield record
    except FileNotFoundError as error:
        raise FileDamaged(file.name, "is not where it was written") from error
    except (LandingError, ServiceError, GeneratorExit):
        raise
    except Exception as error:  # fastavro and pyarrow raise many types for a damaged file
        raise FileDamaged(file.name, f"cannot be read ({type(error).__name__}: {error})") from error
    _require_totals(file, tally)


def damage_of(open_file: Callable[[], BinaryIO], file: DataFile) -> FileDamaged | None:
    """Read a file to its end and return what is wrong with it; None if it matches its description."""
    try:
        deque(read_checked(open_file, file), maxlen=0)
    except FileDamaged as damaged:
        return damaged
    return None


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

_OFFSET_DIGITS = 20
ZONES = ("a", "b")
"""The zones of a home."""

PUBLISHED = "published"
"""The folder of what a zone tells the others of its manifest."""

PUBLICATION = re.compile(r"\d{13}[0-9a-f]{0,3}-\d{12}\.json")
"""The name of a publication: incarnation and version of the manifest."""

MARKER = "zone.json"
"""The file of a zone's storage that says which storage it is."""


@dataclass(frozen=True)
class Zone:
    """One of the zones that land the same records.

    Attributes:
        name: Such as `a`.
        storage: Of its files; on a disk of its own if a broken disk must not damage two zones.
    """

    name: str
    storage: Storage

    def __post_init__(self) -> None:
        if not ZONE.fullmatch(self.name):
            raise ConfigurationError(f"{self.name!r} is not the name of a zone.", remedy="Use letters, such as a, b.")

    def open(self, name: str) -> BinaryIO:
        """Open a file. Raises `LandingError` if no file of a zone can have the name, `OSError`, or `ServiceError`."""
        return self.storage.open(check_file_name(name))

    def digest(self, name: str) -> str:
        """Return the SHA-256 of a file's bytes, hexadecimal. Raises as `open`."""
        with self.open(name) as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()  # type: ignore[arg-type]

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
            LandingError: The draft does not hold what was written to it; it is removed.
            DiskFull: There is no space for it.
            ServiceError: Its disk cannot be written.
        """
        with self._drafted() as path:
            with using(path.parent):
                tally = _written(path, kind, records)
            with path.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
            file = DataFile(
                name=file_name(shard, ranges, deletions, kind),
                size=tally.size,
                shard=shard,
                ranges=dict(sorted(ranges.items())),
                deletions=deletions,
                count=tally.count,
                checksum=tally.checksum,
                zone=self.name,
                kind=kind,
                made_from=made_from,
                digest=digest,
            )
            damaged = damage_of(lambda: path.open("rb"), file)  # as any reader would read it
            if damaged is not None:
                raise sums_disagree("writing", file.name, taken=str(file.checksum), given=damaged.problem) from damaged
        return Draft(file, path)

    @contextmanager
    def _drafted(self) -> Iterator[Path]:
        """Yield the path of a new draft, which is removed if the block fails or is interrupted."""
        with using(self.storage.scratch):
            self.storage.scratch.mkdir(parents=True, exist_ok=True)
        path = self.storage.scratch / f"{DRAFT}{uuid4().hex}"
        try:
            yield path
        except BaseException:
            remove_draft(path)
            raise

    def put(self, draft: Draft) -> None:
        """Move a draft to its place. Raises `DiskFull` or `ServiceError`."""
        with using(self.storage.address):
            self.storage.put(check_file_name(draft.file.name), draft.path, moved=True)

    def records(self, file: DataFile) -> Iterator[Record]:
        """Yield the records of a file, checked as in `read_checked`. Raises `FileDamaged` or `ServiceError`."""
        yield from read_checked(lambda: self.open(file.name), file)

    def damage(self, file: DataFile) -> FileDamaged | None:
        """Read a file to its end and return what is wrong with it; None if it matches the manifest."""
        return damage_of(lambda: self.open(file.name), file)

    def quarantine(self, name: str) -> None:
        """Move a file to quarantine, where it stays for inspection. Safe to repeat."""
        with using(self.storage.address):
            self.storage.move(check_file_name(name), f"{QUARANTINE}/{name}")

    def restore(self, name: str) -> None:
        """Move a file from quarantine back to its place. Safe to repeat."""
        with using(self.storage.address):
            self.storage.move(f"{QUARANTINE}/{check_file_name(name)}", name)

    def storage_id(self) -> str | None:
        """Return the id in the marker of the storage; None if there is no storage or marker, or if it is damaged.

        Raises:
            ServiceError: The storage does not answer, or cannot be read.
        """
        try:
            with using(self.storage.address), self.storage.open(MARKER) as opened:
                return str(json.load(opened)["storage"])
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None

    def mark(self, storage: str) -> None:
        """Write the marker of the storage, as `publish`. A folder is created if it is not there."""
        self._put_text(MARKER, json.dumps({"zone": self.name, "storage": storage}) + "\n")

    def published(self) -> list[str]:
        """Return the names of the publications, in order. Raises `OSError` or `ServiceError`."""
        return sorted(stored.name for stored in self.storage.files(PUBLISHED) if PUBLICATION.fullmatch(stored.name))

    def publication(self, name: str) -> dict[str, Any] | None:
        """Return the content of a publication; None if it cannot be read, or not any more."""
        with suppress(OSError, ServiceError, ValueError), self.storage.open(f"{PUBLISHED}/{name}") as opened:
            found: dict[str, Any] = json.load(opened)
            return found
        return None

    def publish(self, name: str, content: Mapping[str, Any], *, replaces: Iterable[str]) -> None:
        """Write a publication as a whole, then remove those that it replaces. Raises `DiskFull` or `ServiceError`."""
        self._put_text(f"{PUBLISHED}/{name}", json.dumps(content, separators=(",", ":")))
        for old in replaces:
            self.storage.remove(f"{PUBLISHED}/{old}")

    def _put_text(self, name: str, text: str) -> None:
        with self._drafted() as draft, using(draft.parent):
            with draft.open("x") as opened:
                opened.write(text)
                opened.flush()
                os.fsync(opened.fileno())
            self.storage.put(name, draft, moved=True)

    def landed_names(self) -> set[str]:
        """Return the names of the landed files in the storage, whether the manifest has them or not."""
        with using(self.storage.address):
            return {stored.name for stored in self.storage.files() if NAME.fullmatch(stored.name)}

    def drop(self, name: str) -> None:
        """Remove a file, in quarantine or not. Safe to repeat."""
        with using(self.storage.address):
            self.storage.remove(check_file_name(name))
            self.storage.remove(f"{QUARANTINE}/{name}")

    def names(self, written_before: datetime) -> list[str]:
        """Return the sorted names of files outside quarantine, drafts included, last written before a time."""
        latest = written_before.timestamp()
        found = set()
        for place in (self.storage, Folder(self.storage.scratch)):
            for stored in place.files():
                is_of_zone = place is self.storage or stored.name.startswith(DRAFT)
                if is_of_zone and stored.name != MARKER and stored.modified < latest:
                    found.add(stored.name)
        return sorted(found)

    def drop_drafts(self, written_before: datetime) -> list[str]:
        """Remove the drafts of processes that died, last written before a time; return their names."""
        found = [name for name in self.names(written_before) if name.startswith(DRAFT)]
        for name in found:
            (self.storage.scratch / name).unlink(missing_ok=True)
        return found

    def open_files(self, topic: str) -> list[str]:
        """Return the names of the open files of a topic, sorted."""
        names = [name for name in self.storage.growing(OPEN) if name.startswith(f"{topic}.")]
        return [f"{OPEN}/{name}" for name in names if name.removeprefix(f"{topic}.").isdigit()]

    def read_open(self, name: str, *, cut: bool = False) -> tuple[dict[str, str], list[Record]]:
        """Return the metadata and the messages of an open file, up to what is torn or damaged; nothing if it is gone.

        Args:
            name: Of the file.
            cut: Whether to cut the rest off, so that the file can be gone on with.
        """
        metadata: dict[str, str] = {}
        records: list[Record] = []
        is_torn = False
        with using(self.storage.address):
            for part, opened in self.storage.parts(name):
                if is_torn:
                    self.storage.cut(part, 0)
                    continue
                of_part, found, end = formats.read_appended(opened)
                records += found
                metadata = metadata or of_part
                is_torn = end < opened.seek(0, 2)
                if is_torn and not cut:
                    break
                if is_torn:
                    self.storage.cut(part, end)
        return metadata, records

    def append_open(self, name: str, records: Sequence[Record], metadata: Mapping[str, str]) -> None:
        """Add messages to an open file. Raises `FileNotFoundError` without a folder, `DiskFull`, or `ServiceError`."""
        part = f"{records[0].offset:0{_OFFSET_DIGITS}}"  # in an object store; the same if it is written again
        with using(self.storage.address):
            self.storage.append(name, part, lambda opened: formats.append(opened, records, metadata))

    def drop_open(self, name: str) -> None:
        """Remove an open file. Safe to repeat."""
        with using(self.storage.address):
            self.storage.remove(name)


def zone_of(settings: Settings, name: str) -> Zone:
    """Return a zone of a home, with its storage: a folder or an object store."""
    scratch = settings.landing_folder / name
    return Zone(name, storage_at(settings, settings.landing_address(name), scratch=scratch))


@dataclass(frozen=True)
class Draft:
    """A file that is complete and checked, but not yet in its place."""

    file: DataFile
    path: Path


def remove_draft(path: Path) -> None:
    """Remove a draft, if it is there; on a disk that fails, `Zone.drop_drafts` does it later."""
    with suppress(OSError):
        path.unlink()


def sound_records(zones: Mapping[str, Zone], files: Iterable[DataFile]) -> list[Record]:
    """Return the records of the first of equal files that can be read. Raises the error of the last if none can.

    Args:
        zones: All zones by name.
        files: One or more files of the same records.
    """
    for file in files:
        try:
            return list(zones[file.zone].records(file))
        except (FileDamaged, ServiceError) as error:
            damaged = error
    raise damaged


@contextmanager
def using(place: object) -> Iterator[None]:
    """Raise `DiskFull` if the block meets a full disk, or `ServiceError` if a folder cannot be read or written."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in NO_SPACE:
            raise DiskFull(place, reason) from error
        raise ServiceError(
            f"{place} cannot be read or written: {reason}.",
            remedy="Check its disk, whether it is mounted for writing, and who may use it. Then run the command again: "
            "it continues where it stopped.",
        ) from error


def _written(path: Path, kind: Kind, records: Iterable[Record]) -> Tally:
    tally = Tally()
    with path.open("xb") as opened:
        formats.write(kind, opened, tally.of(records))
        opened.flush()
        os.fsync(opened.fileno())
    return tally
