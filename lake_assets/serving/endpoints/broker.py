"""Routing: which files a query reads. A query uses one version of the lineage from start to end, under a lease."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lake_assets.serving.errors import TableNotServed
from lake_assets.serving.lineage.registry import Registry, States
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
        with self._leases.lease(tables, seconds=seconds) as lease:
            states = self.registry.read(*tables)
            unknown = {name for name, state in states.items() if not state.routed}
            self._refuse_unknown(unknown)
            lease.wait_until_acquired()
            yield self._pinned(states, lease)

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
