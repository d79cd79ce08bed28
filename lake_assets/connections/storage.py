"""Storage by URL: the files of a part lie in a folder or in an object store, and are written as a whole or not at all.

A name is relative to the storage: `a/b.parquet`. A file appears under it once it is complete. A folder writes a draft
and renames it, an object store puts an object. Neither asks whether the name is taken: see docs/adr/082.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import IO, TYPE_CHECKING, BinaryIO, NamedTuple
from uuid import uuid4

from lake_assets.errors import ConfigurationError, ServiceError

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem
    from pyiceberg.io.pyarrow import PyArrowFileIO

    from lake_assets.settings import Settings

PARTIAL = ".partial"
"""Suffix of a file that is being copied into a folder. It follows a unique part, in the place of the name's own."""

COPY_BYTES = 1 << 20

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The errors of a full disk, an exceeded quota, and the limit of a process."""

SILENT_SECONDS = 5
"""The time limit of the first request to a store. A store that does not answer is not asked again for as long."""

_SILENCE = re.compile(r"curlCode: (6|7|28)\b")
"""In what pyarrow says if there is no such host, nobody listens, or nothing comes. Else somebody is there."""


class Stored(NamedTuple):
    """A file of a storage. modified: seconds since 1970, by the storage's clock."""

    name: str
    bytes: int
    modified: float


@dataclass(frozen=True)
class Folder:
    """A folder of one machine, or one that is mounted on all."""

    path: Path

    @property
    def address(self) -> str:
        """The folder."""
        return str(self.path)

    @property
    def scratch(self) -> Path:
        """Where files are written before they are put: the folder itself, so that a rename is enough."""
        return self.path

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading. Raises `OSError`."""
        return (self.path / name).open("rb")

    def exists(self, name: str) -> bool:
        """Return whether there is a file of a name."""
        return (self.path / name).exists()

    def files(self, under: str = "") -> list[Stored]:
        """Return the files of a folder, in no order; those of its folders are left out."""
        # By `scandir`: thousands of files are listed at a time, and paths take twice as long.
        found = []
        with suppress(FileNotFoundError), os.scandir(self.path / under) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # removed or renamed since it was listed
                    if entry.is_file():
                        status = entry.stat()
                        found.append(Stored(entry.name, status.st_size, status.st_mtime))
        return found

    def folders(self, under: str = "") -> list[str]:
        """Return the names of the folders in a folder, sorted."""
        return sorted(path.name for path in (self.path / under).glob("*") if path.is_dir())

    def put(self, name: str, source: Path, *, moved: bool = False) -> None:
        """Give a complete local file a name; it replaces what has it. Synced, so that a power cut does not undo it.

        Args:
            name: The name.
            source: The file.
            moved: The file lies in `scratch`, is synced, and goes from there. Else it is copied.

        Raises:
            OSError: It cannot be written.
        """
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not moved:
            partial = target.with_suffix(f".{uuid4().hex}{PARTIAL}")  # another process may put the same name
            try:
                shutil.copyfile(source, partial)
                _flush(partial)
                partial.replace(target)
            finally:
                partial.unlink(missing_ok=True)
        else:
            source.replace(target)
        _flush(target.parent)

    def append(self, name: str, part: str, write: Callable[[IO[bytes]], None]) -> None:
        """Add to a growing file; `write` gets it at its end, readable. The parts of a folder have no names."""
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        with path.open("a+b") as opened:
            write(opened)

    def parts(self, name: str) -> Iterator[tuple[str, BinaryIO]]:
        """Yield the name of each part of a growing file, and the part: a folder has the file as one."""
        with suppress(FileNotFoundError), self.open(name) as opened:
            yield name, opened

    def growing(self, under: str) -> list[str]:
        """Return the names of the growing files of a folder, sorted."""
        return sorted(stored.name for stored in self.files(under))

    def cut(self, part: str, end: int) -> None:
        """Cut a part of a growing file off at its end."""
        os.truncate(self.path / part, end)

    def remove(self, name: str) -> None:
        """Remove a file, also a growing one. Safe to repeat."""
        (self.path / name).unlink(missing_ok=True)

    def move(self, name: str, to: str) -> None:
        """Give a file another name, in another folder perhaps. Nothing happens if it is not there."""
        target = self.path / to
        with suppress(FileNotFoundError):
            if self.exists(name):
                target.parent.mkdir(exist_ok=True)
                (self.path / name).replace(target)
                _flush(target.parent)


@dataclass
class Server:
    """The server of object stores, and whether it answers.

    A request has patience with a server: it is sent several times, which takes seconds if nobody listens, and minutes
    if nothing comes back. So the first request is one without patience, which only asks whether somebody is there.

    Attributes:
        system: Reads and writes there.
        once: Does so without patience. None: nothing is asked first.
        clock: Returns seconds.
    """

    system: FileSystem
    once: FileSystem | None = None
    clock: Callable[[], float] = time.monotonic
    _is_heard: bool = field(default=False, init=False)
    _silent: tuple[float, str] = field(default=(0.0, ""), init=False)

    @contextmanager
    def asked(self, key: str) -> Iterator[FileSystem]:
        """Yield the system. key: what is asked for first. Raises `OSError`; at once if it was silent just now."""
        until, problem = self._silent
        if problem and self.clock() < until:
            raise OSError(problem)
        try:
            if not self._is_heard and self.once is not None:
                try:
                    self.once.get_file_info(key)
                except OSError as error:
                    if _SILENCE.search(str(error)):
                        raise
            yield self.system
            self._is_heard = True
        except OSError as error:
            self._is_heard = not _SILENCE.search(str(error))
            if not self._is_heard:
                self._silent = self.clock() + SILENT_SECONDS, str(error)
            raise


@dataclass(frozen=True)
class ObjectStore:
    """A prefix of an object store. What is read is copied first, so that it is whole, or raises at once.

    Attributes:
        url: Of the prefix, without parameters: s3://lake/landing/a.
        root: Bucket and prefix, as the file system names them.
        server: Reads and writes there.
        scratch: The folder of this machine in which files are written before they are put.
    """

    url: str
    root: str
    server: Server
    scratch: Path

    @property
    def address(self) -> str:
        """The URL."""
        return self.url

    def open(self, name: str) -> BinaryIO:
        """Open a copy of an object, which goes when it is closed. Raises `FileNotFoundError` or `ServiceError`."""
        copy = TemporaryFile()  # noqa: SIM115
        try:
            with self._asking() as system, system.open_input_stream(self._key(name)) as found, _copying():
                shutil.copyfileobj(found, copy, COPY_BYTES)
                copy.seek(0)  # which writes what is left
        except BaseException:
            with suppress(OSError):  # it writes what is left once more
                copy.close()
            raise
        return copy

    def exists(self, name: str) -> bool:
        """Return whether there is an object of a name. Raises `ServiceError`."""
        with self._asking() as system:
            found: FileInfo = system.get_file_info(self._key(name))
        return bool(found.is_file)

    def files(self, under: str = "") -> list[Stored]:
        """Return the objects of a prefix, in no order; not those of longer ones. Raises `ServiceError`."""
        return [Stored(info.base_name, info.size, info.mtime_ns / 1e9) for info in self._infos(under) if info.is_file]

    def folders(self, under: str = "") -> list[str]:
        """Return the names of the prefixes in a prefix, sorted. Raises `ServiceError`."""
        return sorted(info.base_name for info in self._infos(under) if not info.is_file)

    def put(self, name: str, source: Path, *, moved: bool = False) -> None:
        """Give a complete local file a name, as `Folder.put`. Raises `ServiceError`."""
        with source.open("rb") as file:
            self._put(name, file)
        if moved:
            source.unlink()

    def append(self, name: str, part: str, write: Callable[[IO[bytes]], None]) -> None:
        """Add to a growing file, whose parts are objects below its name; they follow each other by their names."""
        content = BytesIO()
        write(content)
        content.seek(0)
        self._put(f"{name}/{part}", content)

    def parts(self, name: str) -> Iterator[tuple[str, BinaryIO]]:
        """Yield the name of each part of a growing file, and the part; up to one that was removed meanwhile."""
        for stored in sorted(self.files(name)):
            part = f"{name}/{stored.name}"
            try:
                opened = self.open(part)
            except FileNotFoundError:
                return
            with opened:
                yield part, opened

    def growing(self, under: str) -> list[str]:
        """Return the names of the growing files of a prefix, sorted."""
        return self.folders(under)

    def cut(self, part: str, end: int) -> None:
        """Remove a part of a growing file: it was written as a whole, so what is wrong with it is not its end."""
        self.remove(part)

    def remove(self, name: str) -> None:
        """Remove an object, or a growing file. Safe to repeat. Raises `ServiceError`."""
        with suppress(FileNotFoundError), self._asking() as system:
            found: FileInfo = system.get_file_info(self._key(name))
            if found.is_file:
                system.delete_file(found.path)
            elif self._infos(name):
                system.delete_dir(found.path)

    def move(self, name: str, to: str) -> None:
        """Give an object another name. Nothing happens if it is not there; if this process dies, both may be."""
        with suppress(FileNotFoundError), self._asking() as system:
            system.copy_file(self._key(name), self._key(to))
            system.delete_file(self._key(name))

    def _key(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def _put(self, name: str, content: IO[bytes]) -> None:
        with self._asking() as system, system.open_output_stream(self._key(name)) as target:
            shutil.copyfileobj(content, target, COPY_BYTES)

    def _infos(self, under: str) -> list[FileInfo]:
        from pyarrow.fs import FileSelector

        with self._asking() as system:
            found: list[FileInfo] = system.get_file_info(FileSelector(self._key(under), allow_not_found=True))
        return found

    @contextmanager
    def _asking(self) -> Iterator[FileSystem]:
        """A store that does not answer, or refuses, says nothing about an object."""
        try:
            with self.server.asked(self.root) as system:
                yield system
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ServiceError(
                f"The object store of {self.url} does not answer, or refuses access: {error}.",
                remedy="Check the URL, the network, and LAKE_CATALOG__S3__ENDPOINT, LAKE_CATALOG__S3__REGION and the "
                "keys, or AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
            ) from error


@contextmanager
def _copying() -> Iterator[None]:
    """A temporary folder without space is no fault of a store."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise ServiceError(
            f"The temporary folder {gettempdir()} cannot be written: {error.strerror}.",
            remedy="Free space there, or name another folder (TMPDIR), then run the command again.",
        ) from error


Storage = Folder | ObjectStore


def storage_at(settings: Settings, address: Path | str, *, scratch: Path) -> Storage:
    """Return the storage at an address.

    Args:
        settings: Their properties of S3 are those of the store (`LAKE_CATALOG__S3__…`).
        address: A folder, or a URL, as `file_io` takes it: s3://lake/landing.
        scratch: The folder for files that are about to be put into an object store.

    Raises:
        ConfigurationError: The scheme is unknown, or the properties name something else than Arrow for the store.
    """
    from lake_assets.connections.catalog import file_io

    if isinstance(address, Path):
        return Folder(address)
    io = file_io(settings, address)
    url = address.partition("?")[0].rstrip("/")
    scheme, host, path = io.parse_location(url, io.properties)
    try:
        return ObjectStore(url, path, _server_of(type(io), scheme, host, tuple(sorted(io.properties.items()))), scratch)
    except ValueError as error:
        raise ConfigurationError(
            f"{url} cannot be read or written: {error}.", remedy="Name a folder, or a URL such as s3://lake/landing."
        ) from error


@cache
def _server_of(kind: type[PyArrowFileIO], scheme: str, host: str, properties: tuple[tuple[str, str], ...]) -> Server:
    """Return the server of a bucket, which this process knows once. Raises `ValueError` for an unknown scheme."""
    from pyarrow.fs import AwsDefaultS3RetryStrategy, S3FileSystem

    system = kind(dict(properties)).fs_by_scheme(scheme, host)
    if not isinstance(system, S3FileSystem):
        return Server(system)
    _, (given,) = system.__reduce__()
    impatient = {"retry_strategy": AwsDefaultS3RetryStrategy(max_attempts=0), "request_timeout": SILENT_SECONDS}
    return Server(system, S3FileSystem(**{**given, **impatient, "connect_timeout": SILENT_SECONDS}))


def sha256_of(file: Path) -> str:
    """Return the SHA-256 checksum of a file of this machine, hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
