"""Which metadata file is the newest of a table that no catalog knows any more. Pure.

Every commit writes a metadata file, also one that the catalog then refuses. The files of commits that were made are
chained: each names its predecessors in its metadata log.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

_VERSION = re.compile(r"^v?(\d+)")


@dataclass(frozen=True)
class MetadataFile:
    """A metadata file in the folder of a table.

    Attributes:
        name: Its name without the folder.
        uuid: The table's uuid; None if the file cannot be read.
        updated_ms: When it was written, by its own content, in milliseconds since 1970-01-01 UTC.
        has_snapshots: Whether the table has a snapshot in it.
        predecessors: Names of the files of its metadata log.
    """

    name: str
    uuid: str | None
    updated_ms: int = 0
    has_snapshots: bool = False
    predecessors: frozenset[str] = frozenset()

    @property
    def version(self) -> int:
        """The number that its name begins with: `00012-….metadata.json`, `v12.metadata.json`; -1 without one."""
        found = _VERSION.match(self.name)
        return int(found[1]) if found else -1


@dataclass(frozen=True)
class Choice:
    """The newest file, or why none can be chosen.

    Attributes:
        file: Name of the newest metadata file; None if there is a problem.
        problem: Why there is none, as a sentence.
        remedy: What to do about the problem, as a sentence.
    """

    file: str | None = None
    problem: str = ""
    remedy: str = ""


def newest_metadata(files: Collection[MetadataFile]) -> Choice:
    """Return the newest metadata file of a folder.

    If the folder held several tables one after the other, the newest one with a snapshot is meant, or the newest one
    if none has a snapshot.
    """
    readable = [file for file in files if file.uuid is not None]
    if not readable:
        return _no_readable_file(files)
    newest = _newest_heads(_of_meant_table(readable))
    damaged = _damaged_since(files, newest[0].version)
    if damaged is not None:
        return Choice(
            problem=f"Its newest metadata file {damaged.name} is damaged.",
            remedy=f"Restore {damaged.name} from a backup, or move it away to use the version before it.",
        )
    return Choice(newest[0].name) if len(newest) == 1 else _ambiguous(newest)


def _of_meant_table(files: Sequence[MetadataFile]) -> list[MetadataFile]:
    meant = max(files, key=lambda file: (file.has_snapshots, file.updated_ms))
    return [file for file in files if file.uuid == meant.uuid]


def _damaged_since(files: Collection[MetadataFile], version: int) -> MetadataFile | None:
    """Return the damaged file with the highest version, from a version on; None if there is none."""
    damaged = [file for file in files if file.uuid is None and file.version >= version]
    return max(damaged, key=lambda file: file.version, default=None)


def _newest_heads(files: Sequence[MetadataFile]) -> list[MetadataFile]:
    """Return the files of the highest version that no other file names as its predecessor; at least one."""
    named: set[str] = set()
    for file in files:
        named |= file.predecessors
    heads = [file for file in files if file.name not in named] or list(files)
    highest = max(file.version for file in heads)
    return [file for file in heads if file.version == highest]


def _ambiguous(newest: Sequence[MetadataFile]) -> Choice:
    names = " and ".join(sorted(file.name for file in newest))
    return Choice(
        problem=f"Its metadata files {names} have the same version, and one of them was never committed.",
        remedy="Move the wrong one away. The right one has the rows of the last commit.",
    )


def _no_readable_file(files: Collection[MetadataFile]) -> Choice:
    if not files:
        return Choice(problem="Its folder has no metadata file.", remedy="Restore the folder from a backup.")
    names = ", ".join(sorted(file.name for file in files))
    return Choice(
        problem=f"None of its metadata files can be read: {names}.", remedy="Restore one of them from a backup."
    )
