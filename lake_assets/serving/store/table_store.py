"""What all changes of served tables share: registry, files, leases, and the removal of unreferenced files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pyarrow import ArrowException

from lake_assets.base.failpoints import reach
from lake_assets.serving.errors import ColumnsChanged, LineageGone, NameTaken
from lake_assets.serving.lineage.lineage import State
from lake_assets.serving.lineage.registry import Registry, TableState
from lake_assets.serving.store.files import SegmentFiles, columns_of
from lake_assets.serving.store.leases import Leases

NO_VALUE = "Null"
"""The type of a column that has none."""


@dataclass(frozen=True)
class TableStore:
    """The served tables of one ZooKeeper and one folder. clock: UTC, for the timestamps of lineage entries."""

    registry: Registry
    files: SegmentFiles
    leases: Leases
    clock: Callable[[], datetime]

    def check_lineage_exists(self, table: str, state: TableState, stored: Mapping[str, int]) -> None:
        """Check that a table that has files has a lineage.

        Args:
            table: The table.
            state: As it was read after `stored`, and after a `sync` of the registry.
            stored: The files of the table.

        Raises:
            LineageGone: It has none.
        """
        if state.version is None and stored:
            raise LineageGone(table, stored, folder=self.files.folder)

    def refuse_similar(self, tables: Iterable[str]) -> None:
        """Refuse two tables whose names differ only in case: one table in SQL, and one folder on some systems."""
        spellings: dict[str, str] = {}
        for table in (*self.registry.tables(), *tables):
            other = spellings.setdefault(table.lower(), table)
            if other != table:
                raise NameTaken(table, other)

    def check_columns(self, table: str, routed: Iterable[str], file: Path) -> None:
        """Compare the columns of a file with those that readers see; not those without a value, nor a damaged segment.

        Raises:
            ColumnsChanged: They differ.
        """
        for segment in sorted(routed)[:1]:
            with suppress(OSError, ArrowException):
                seen = columns_of(self.files.path(table, segment))
                pushed = columns_of(file)
                for name in seen.keys() | pushed.keys():
                    kinds = {seen.get(name), pushed.get(name)}
                    if len(kinds) > 1 and (None in kinds or NO_VALUE not in kinds):
                        raise ColumnsChanged(table, seen=seen, pushed=pushed)

    def read_before(self, table: str, segments: Iterable[str], erased_at: datetime | None) -> dict[str, datetime]:
        """Return those segments whose rows were read before an erasure, with the time they were read.

        Args:
            table: The table.
            segments: To consider.
            erased_at: Time of the last erasure; None if there was none.
        """
        if erased_at is None:
            return {}
        return self.registry.read_by(table, segments, erased_at)

    def remove_unreferenced(
        self,
        table: str,
        *,
        wait: bool,
        given_up: frozenset[str] = frozenset(),
        failpoint: str | None = None,
    ) -> tuple[str, ...]:
        """Remove the files that neither belong to a segment nor are being uploaded.

        Args:
            table: The table.
            wait: Whether to wait for the leases of this moment. Otherwise nothing is removed while there are leases.
            given_up: Segments to remove although an entry in progress names them.
            failpoint: Reached after the first file is removed.

        Returns:
            The segments whose files were removed, by name.

        Raises:
            LineageGone: There are files, but no lineage.
        """
        garbage = self._unreferenced(table, given_up)
        if not garbage:
            return ()
        if wait:
            self.leases.drain(table)
        elif self.leases.active(table):
            return ()
        self.files.remove(table, garbage[:1])
        if failpoint:
            reach(failpoint)
        self.files.remove(table, garbage[1:])
        return tuple(garbage)

    def _unreferenced(self, table: str, given_up: frozenset[str]) -> list[str]:
        stored = self.files.stored(table)  # listed before the lineage is read: an upload starts after its entry
        self.registry.sync()
        state = self.registry.read(table)[table]
        self.check_lineage_exists(table, state, stored)
        referenced = set(state.segments)
        for entry in state.lineage.in_state(State.IN_PROGRESS):
            referenced.update(entry.segments_to)
        return sorted(set(stored) - (referenced - given_up))
