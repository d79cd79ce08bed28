"""The files of segments: `<folder>/<table>/<segment>.parquet`. A file appears once it is complete, and stays as is."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
from pyarrow import ArrowException

from lake_assets.serving.errors import UploadDamaged
from lake_assets.serving.lineage.znrecord import SegmentInfo, checked_segment, checked_table, is_segment, is_table

SUFFIX = ".parquet"
PARTIAL = ".partial"


class SegmentFiles:
    """The segment files of one machine, or of a folder that is mounted on all. folder: of all tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, table: str, segment: str) -> Path:
        """Return the path of a segment, whether or not it exists.

        Raises:
            UsageError: A name is not valid.
        """
        return self.folder / checked_table(table) / f"{checked_segment(segment)}{SUFFIX}"

    def upload(self, table: str, segment: str, source: Path) -> None:
        """Copy a file. It gets its final name once it is complete and flushed to the disk."""
        target = self.path(table, segment)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(PARTIAL)
        shutil.copyfile(source, partial)
        _flush(partial)
        partial.rename(target)
        _flush(target.parent)

    def verify(self, table: str, info: SegmentInfo) -> None:
        """Read a segment back, and compare its checksum and its row count.

        Raises:
            UploadDamaged: They differ, or the file cannot be read.
        """
        file = self.path(table, info.name)
        try:
            found = sha256_of(file)
            if found != info.sha256:
                raise UploadDamaged(table, info.name, f"its checksum is {found}, not {info.sha256}")
            rows = pq.read_metadata(file).num_rows
        except (OSError, ArrowException) as error:
            raise UploadDamaged(table, info.name, f"it cannot be read: {error}") from error
        if rows != info.rows:
            raise UploadDamaged(table, info.name, f"it has {rows} rows, not {info.rows}")

    def tables(self) -> list[str]:
        """Return the tables that have a folder, by name."""
        folders = [path.name for path in self.folder.glob("*") if path.is_dir()]
        return sorted(name for name in folders if is_table(name))

    def stored(self, table: str) -> dict[str, int]:
        """Return segment → bytes of its files, including files that are being written.

        Files whose names are not names of segments are ignored.
        """
        found: Counter[str] = Counter()
        for file in self._files(table):
            with suppress(FileNotFoundError):  # removed or renamed since it was listed
                name, _, _ = file.name.rpartition(".")
                found[name] += file.stat().st_size
        return dict(found)

    def remove(self, table: str, segments: Iterable[str]) -> None:
        """Remove the files of segments, if they exist."""
        for name in sorted(segments):
            file = self.path(table, name)
            file.unlink(missing_ok=True)
            file.with_suffix(PARTIAL).unlink(missing_ok=True)

    def _files(self, table: str) -> list[os.DirEntry[str]]:
        """`scandir`, because each switch lists thousands of files; paths would take more than twice as long."""
        try:
            with os.scandir(self.folder / checked_table(table)) as found:
                return [file for file in found if _is_file_of_a_segment(file.name)]
        except FileNotFoundError:  # nothing was ever uploaded
            return []


def _is_file_of_a_segment(name: str) -> bool:
    stem, dot, suffix = name.rpartition(".")
    return dot + suffix in (SUFFIX, PARTIAL) and is_segment(stem)


def sha256_of(file: Path) -> str:
    """Return the SHA-256 checksum of a file, hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def columns_of(file: Path) -> dict[str, str]:
    """Return the columns of a Parquet file, and what readers take them for. Raises `OSError` or `ArrowException`."""
    schema = pq.read_metadata(file).schema
    found = {}
    for number in range(len(schema)):
        column = schema.column(number)
        logical = re.sub(r", (?:is_from|force_set)_[^,)]*", "", str(column.logical_type))
        found[column.path] = str(column.physical_type) if logical == "None" else logical
    return found


def checksum(of_files: Iterable[str]) -> str:
    """Return one checksum of many, independent of their order: SHA-256 of the sorted ones, hexadecimal."""
    text = "\n".join(sorted(of_files))
    return hashlib.sha256(text.encode()).hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
