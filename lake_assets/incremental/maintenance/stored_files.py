"""Files as a table's storage has them: listing a location, removing a file, and paths that can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from pyarrow.fs import FileSelector, FileType
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from lake_assets.errors import ConfigurationError

_LOCAL = "file"
_NEVER_OLD = datetime.max.replace(tzinfo=UTC)
"""Modification time of a file for which the storage has none: such a file is never old enough to be removed."""


@dataclass(frozen=True)
class ListedFile:
    """A file that a listing returned.

    Attributes:
        path: Without scheme, as `bare_path` returns it. To be compared.
        location: As the file IO opens it. In an object store, a path alone would be one of this machine.
        bytes: Its size.
        modified_at: When it was last written, with a time zone.
    """

    path: str
    location: str
    bytes: int
    modified_at: datetime


def list_files(io: FileIO, location: str) -> Iterator[ListedFile]:
    """Yield every file under a location by path, including hidden ones; none if the location does not exist.

    Raises:
        ConfigurationError: The catalog's file IO cannot list files.
    """
    if not isinstance(io, PyArrowFileIO):
        raise ConfigurationError(
            f"The files of {location} are read by {type(io).__name__}, which cannot list them.",
            remedy="Set the catalog's py-io-impl to pyiceberg.io.pyarrow.PyArrowFileIO.",
        )
    scheme, netloc, path = io.parse_location(location, io.properties)
    selector = FileSelector(path, recursive=True, allow_not_found=True)
    found = io.fs_by_scheme(scheme, netloc).get_file_info(selector)
    before = location.removesuffix(path.removeprefix(netloc)) if scheme != _LOCAL else ""
    for info in sorted(found, key=lambda each: each.path):
        if info.type is FileType.File:
            address = before + info.path.removeprefix(netloc) if before else info.path
            yield ListedFile(info.path, address, info.size, info.mtime or _NEVER_OLD)


def bare_path(location: str) -> str:
    """Return a file's path without its scheme, because Spark and pyiceberg write the scheme in different ways."""
    return PyArrowFileIO.parse_location(location)[2]


def is_local(location: str) -> bool:
    """Return whether a location is a path of this machine."""
    return PyArrowFileIO.parse_location(location)[0] == _LOCAL


def checksum_path(path: str) -> str:
    """Return the path of the checksum file that Hadoop keeps next to a local file."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.crc"


def read_bytes(io: FileIO, path: str) -> bytes:
    """Return the content of a file."""
    with io.new_input(path).open() as opened:
        return opened.read()


def remove_file(io: FileIO, path: str) -> None:
    """Remove a file, and on this machine its checksum file, if they exist."""
    checksum = [checksum_path(bare_path(path))] if is_local(path) else []
    for each in (path, *checksum):
        with suppress(FileNotFoundError):
            io.delete(each)
