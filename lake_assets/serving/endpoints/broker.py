"""Routing: which files a query reads. A query uses one version of the lineage from start to end, under a lease."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lake_assets.serving.endpoints.checked_files import CheckedFiles
from lake_assets.serving.errors import LineageBusy, SegmentDamaged, TableNotServed
from lake_assets.serving.lineage.registry import MAX_TRIES, Registry, States
from lake_assets.serving.lineage.znrecord import is_table
from lake_assets.serving.store.files import SegmentFiles
from lake_assets.serving.store.leases import Lease, Leases


@dataclass(frozen=True)
class Pinned:
    """Tables as they were at one moment.

    Attributes:
        files: Of each table.
        versions: Of each table's lineage.
        lease: Under which the files may be read.
    """

    files: Mapping[str, tuple[Path, ...]]
    versions: Mapping[str, int | None]
    lease: Lease

    def paths(self) -> dict[str, list[str]]:
        """Return the paths of each table's files."""
        found = {}
        for table, files in self.files.items():
            found[table] = [str(file) for file in files]
        return found


class Broker:
    """Pins served tables for readers. It writes only leases."""

    def __init__(self, registry: Registry, files: SegmentFiles, leases: Leases) -> None:
        self.registry = registry
        self._files = files
        self._leases = leases
        self._checked = CheckedFiles(registry, files)
        self._spellings: dict[str, str] = {}

    def named(self, names: Iterable[str]) -> list[str]:
        """Return the served tables that names in lower case mean: SQL ignores case. Unknown names stay as they are.

        Tables are never removed, so what is known is not read again.
        """
        wanted = sorted(names)
        if not self._spellings.keys() >= set(wanted):
            self._spellings = {table.lower(): table for table in self.registry.tables()}
        return [self._spellings.get(name, name) for name in wanted]

    @contextmanager
    def pin(self, *tables: str, seconds: float) -> Iterator[Pinned]:
        """Pin the current state of tables for the block.

        Tables that are switched together are read together, either before or after the switch. The lease and the
        lineage are read in one round trip.

        Args:
            tables: To be read.
            seconds: Within which the block has to end.

        Raises:
            TableNotServed: There is no such table, or readers see nothing of it.
        """
        invalid = {name for name in tables if not is_table(name)}
        self._refuse_unknown(invalid)
        with self._leases.lease(tables, seconds=seconds, read=lambda: self._routed(tables, seconds)) as (lease, states):
            yield self._pinned(states, lease)

    def checked(self, pinned: Pinned) -> Pinned:
        """Compare the pinned files with their registered checksums, those that this process has not compared yet.

        Returns:
            The tables as they are now, under the same lease, if segments were given up meanwhile; otherwise the same.

        Raises:
            SegmentDamaged: A file is gone, or is not what was pushed.
            QueryStopped: The lease was lost.
            TimeoutError: The time of the lease has passed.
            LineageBusy: Other clients kept writing the lineage.
        """
        for _ in range(MAX_TRIES):
            try:
                if self._is_whole(pinned):
                    return pinned
            except SegmentDamaged:
                pinned.lease.confirm()  # without the lease, files may be gone
                raise
            pinned = self._pinned(self._routed(pinned.files, pinned.lease.seconds_left), pinned.lease)
        raise LineageBusy(pinned.files, MAX_TRIES)

    def _is_whole(self, pinned: Pinned) -> bool:
        """Whether all of its segments are still registered; their files are compared on the way."""
        for table, files in pinned.files.items():
            names = [file.stem for file in files]
            if not self._checked.check(table, names, seconds_left=lambda: pinned.lease.seconds_left):
                return False
        return True

    def _routed(self, tables: Iterable[str], seconds: float) -> States:
        """The states of tables, all of which readers see something of."""
        states = self.registry.read(*tables, seconds=seconds)
        self._refuse_unknown({name for name, state in states.items() if not state.routed})
        return states

    def _refuse_unknown(self, names: set[str]) -> None:
        if names:
            served = set(self.registry.tables()) - names
            raise TableNotServed(min(names), served)

    def _pinned(self, states: States, lease: Lease) -> Pinned:
        files = {}
        versions = {}
        for table, state in states.items():
            files[table] = tuple(self._files.path(table, segment) for segment in sorted(state.routed))
            versions[table] = state.version
        return Pinned(files, versions, lease)
