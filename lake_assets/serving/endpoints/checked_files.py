"""The check of segment files before they are read: a process compares each once with its registered checksum.

A file that was compared is known by its inode, its size and its times of change, and is compared again when one of
these differs. What a disk damages without a write is therefore noticed by the next process, and by `lake serving
verify`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from lake_assets.serving.errors import SegmentDamaged
from lake_assets.serving.lineage.registry import Registry
from lake_assets.serving.store.files import SegmentFiles, sha256_of

Identity = tuple[int, int, int, int, int]
Identities = dict[str, Identity | None]


class CheckedFiles:
    """The segment files that this process has compared with their registered checksums."""

    def __init__(self, registry: Registry, files: SegmentFiles) -> None:
        self._registry = registry
        self._files = files
        self._known: dict[str, Identities] = {}

    def check(self, table: str, segments: Iterable[str], *, seconds_left: Callable[[], float]) -> bool:
        """Compare the files of segments that are not known yet.

        Args:
            table: The table.
            segments: All that readers see of it.
            seconds_left: Until the query has to end.

        Returns:
            False if a segment is not registered any more: then readers see others by now.

        Raises:
            SegmentDamaged: A file is gone, or is not what was pushed.
            TimeoutError: The time has passed.
        """
        known = self._known.setdefault(table, {})
        found = {name: _identity(self._files.path(table, name)) for name in segments}
        unknown = _unknown(found, known)
        checksums = {info.name: info.sha256 for info in self._registry.infos(table, unknown)}
        if len(checksums) < len(unknown):
            return False
        for name in unknown:
            if seconds_left() <= 0:
                raise TimeoutError
            _compare(table, name, self._files.path(table, name), checksums[name])
            known[name] = found[name]  # one by one: a query that is stopped leaves less to the next one
        _remove(known, known.keys() - found.keys())
        return True


def _unknown(found: Identities, known: Identities) -> list[str]:
    """Return the segments that are gone, or differ from what was compared."""
    return [name for name, identity in found.items() if identity is None or known.get(name) != identity]


def _remove(known: Identities, segments: Iterable[str]) -> None:
    """Another query may have removed them."""
    for name in segments:
        known.pop(name, None)


def _compare(table: str, segment: str, file: Path, expected: str) -> None:
    try:
        found = sha256_of(file)
    except OSError as error:
        raise SegmentDamaged(table, segment) from error
    if found != expected:
        raise SegmentDamaged(table, segment)


def _identity(file: Path) -> Identity | None:
    """None if there is no such file. Unlike the time of the content, that of the inode cannot be set by a program."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
