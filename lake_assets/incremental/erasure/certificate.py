"""The certificate of an erasure: the result of a search of all stored files for an id.

Each part of the lake implements `FileSource` for its own files; `search_sources` searches them all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal

from pyiceberg.io import FileIO, load_file_io

from lake_assets.base.id_matcher import IdMatcher
from lake_assets.errors import UsageError
from lake_assets.incremental.engine.retention import ListedFile, bare_path, list_files
from lake_assets.incremental.erasure.file_search import RowFilter, search_file

Kind = Literal[
    "data",
    "delete",
    "change feed",
    "manifest",
    "manifest list",
    "metadata",
    "landed file",
    "dead letters",
    "segment",
    "draft",
    "other",
]
Reference = Literal["main", "history", "quarantine", "nothing", "not known"]

ProgressCallback = Callable[[int, int], None]
"""Gets the number of bytes searched so far, and the number of all bytes."""


@dataclass(frozen=True)
class FileFacts:
    """What is known about a file; see `Finding`."""

    table: str | None
    kind: Kind
    referenced: Reference


@dataclass(frozen=True)
class Finding:
    """A file that contains the id.

    Attributes:
        path: Where the file is.
        table: The table or zone that the file belongs to; None if it belongs to none.
        kind: What the file is for.
        occurrences: Rows of a Parquet file, records of an Avro file, or mentions in its footer or header; otherwise
            places.
        referenced: What refers to the file: main's head (readers read it), a snapshot that still exists, quarantine, or
            nothing. Not known if the service that knows it did not run.
        column: The column or field of the first row or record with the id; empty if it is in none.
        text: The value there, cut, with `(id)` for the id, if it mentions the id among other words.
    """

    path: str
    table: str | None
    kind: Kind
    occurrences: int
    referenced: Reference
    column: str = field(default="", compare=False)
    text: str = field(default="", compare=False)


@dataclass(frozen=True)
class Certificate:
    """Where an id is.

    Attributes:
        subject: What the id identifies, such as account.
        files: Number of searched files.
        bytes: Their size.
        findings: The files that contain the id, by path.
        undecoded: Broken or foreign files, which were searched as bytes.
    """

    subject: str
    files: int
    bytes: int
    findings: tuple[Finding, ...] = ()
    undecoded: tuple[str, ...] = ()

    @property
    def nowhere(self) -> bool:
        return not self.findings


class FileSource(ABC):
    """A folder of files to search.

    Args:
        location: Address of the folder.
        io: Lists and reads the files; None for files that need no settings of a catalog.
    """

    row_filter: RowFilter | None = None
    """Selects the rows of Parquet files to search; None for all rows."""

    id_columns: Collection[str] = ()
    """Further columns and fields of these files that hold ids."""

    def __init__(self, location: str, io: FileIO | None = None) -> None:
        self.location = location
        self.io = io or load_file_io({}, location)

    @abstractmethod
    def facts(self, path: str) -> FileFacts:
        """Return what is known about a file in the folder."""

    def includes(self, path: str) -> bool:
        """Return whether to search a file in the folder."""
        return True

    def parts(self, path: str) -> list[str]:
        """Return the path of a file relative to the folder, split into names."""
        folder = bare_path(self.location).rstrip("/")
        return path.removeprefix(f"{folder}/").split("/")


def matcher_for(*values: str, name: str, columns: Collection[str] = ()) -> IdMatcher:
    """Return the matcher of an id.

    Args:
        values: The id, as the columns of ids have it.
        name: What the id is called, for the error.
        columns: The columns that hold such ids.

    Raises:
        UsageError: The id is empty.
    """
    if not all(value.strip() for value in values):
        raise UsageError("The id is empty.", remedy=f"Name the {name} to look for.")
    return IdMatcher(*values, columns=columns)


def search_sources(
    sources: Iterable[FileSource],
    matcher: IdMatcher,
    *,
    subject: str,
    progress: ProgressCallback,
) -> Certificate:
    """Search all files of the sources for an id.

    Args:
        sources: Folders to search. A file in several of them is searched once, as a file of the last one.
        matcher: The id.
        subject: What the id identifies, for the certificate.
        progress: Called after each file.
    """
    files: dict[str, tuple[ListedFile, FileSource]] = {}
    for source in sources:
        for file in list_files(source.io, source.location):
            if source.includes(file.path):
                files[file.path] = (file, source)
    size = sum(file.bytes for file, _ in files.values())
    done = 0
    findings = []
    undecoded = []
    for path, (file, source) in sorted(files.items()):
        of_source = IdMatcher(*matcher.values, columns=matcher.columns.union(source.id_columns))
        result = search_file(source.io, file.location, of_source, source.row_filter)
        if not result.decoded:
            undecoded.append(path)
        if result.occurrences:
            facts = source.facts(path)
            finding = Finding(
                path=path,
                table=facts.table,
                kind=facts.kind,
                occurrences=result.occurrences,
                referenced=facts.referenced,
                column=result.column,
                text=result.text,
            )
            findings.append(finding)
        done += file.bytes
        progress(done, size)
    return Certificate(subject, len(files), size, tuple(findings), tuple(undecoded))
