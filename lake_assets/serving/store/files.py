"""The files of segments: `<folder>/<table>/<segment>.parquet`, whole or not there, never written twice."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
from pyarrow import ArrowException

from lake_assets.serving.errors import UploadDamaged
from lake_assets.serving.lineage.znrecord import SegmentInfo, checked_segment, checked_table, is_segment, is_table

SUFFIX, PARTIAL = ".parquet", ".partial"


class SegmentFiles:
    """The store of one machine, or one that is mounted on all. folder: of all tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, table: str, segment: str) -> Path:
        """Where a segment is, or would be. `UsageError` for a name that is none."""
        return self.folder / checked_table(table) / f"{checked_segment(segment)}{SUFFIX}"

    def upload(self, table: str, segment: str, source: Path) -> None:
        """Copies a file in; it is there under its name when it is whole, and on disk."""
        target = self.path(table, segment)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(PARTIAL)
        shutil.copyfile(source, partial)
        _flush(partial)
        partial.rename(target)
        _flush(target.parent)

    def verify(self, table: str, info: SegmentInfo) -> None:
        """Reads a segment back: its checksum, and its rows as Parquet tells them. `UploadDamaged`."""
        file = self.path(table, info.name)
        try:
            if (found := sha256_of(file)) != info.sha256:
                raise UploadDamaged(table, info.name, f"its checksum is {found}, not {info.sha256}")
            rows = pq.read_metadata(file).num_rows
        except (OSError, ArrowException) as error:
            raise UploadDamaged(table, info.name, f"it cannot be read: {error}") from error
        if rows != info.rows:
            raise UploadDamaged(table, info.name, f"it has {rows} rows, not {info.rows}")

    def tables(self) -> list[str]:
        """The tables that have a folder, by name."""
        return sorted(path.name for path in self.folder.glob("*") if path.is_dir() and is_table(path.name))

    def stored(self, table: str) -> dict[str, int]:
        """Segment → bytes, of all files of a table, those that are being written included; not of others' files."""
        found: dict[str, int] = {}
        for file in self._files(table):
            with suppress(FileNotFoundError):  # removed, or renamed, since it was listed
                name = file.name.rpartition(".")[0]
                found[name] = found.get(name, 0) + file.stat().st_size
        return found

    def remove(self, table: str, segments: Iterable[str]) -> None:
        """Removes the files of segments; those that are gone already do not matter."""
        for name in sorted(segments):
            file = self.path(table, name)
            file.unlink(missing_ok=True)
            file.with_suffix(PARTIAL).unlink(missing_ok=True)

    def _files(self, table: str) -> list[os.DirEntry[str]]:
        """By `scandir`: each switch asks for them, of thousands, and paths would take more than twice as long."""
        try:
            with os.scandir(self.folder / checked_table(table)) as found:
                return [file for file in found if _is_file_of_a_segment(file.name)]
        except FileNotFoundError:  # nothing was ever uploaded
            return []


def _is_file_of_a_segment(name: str) -> bool:
    stem, dot, suffix = name.rpartition(".")
    return dot + suffix in (SUFFIX, PARTIAL) and is_segment(stem)


def sha256_of(file: Path) -> str:
    """The checksum of a file, hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def checksum(of_files: Iterable[str]) -> str:
    """One checksum of many, whatever their order: SHA-256 of the sorted ones, hexadecimal."""
    return hashlib.sha256("\n".join(sorted(of_files)).encode()).hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
