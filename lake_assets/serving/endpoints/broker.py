"""Routing: which files a query reads. One version of the lineage from start to end, under a lease."""

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
    """Tables as they were at one moment: the files of each, and the version of its lineage."""

    files: Mapping[str, tuple[Path, ...]]
    versions: Mapping[str, int | None]
    lease: Lease


class Broker:
    """Pins served tables for readers. Writes nothing but leases."""

    def __init__(self, registry: Registry, files: SegmentFiles, leases: Leases) -> None:
        self.registry = registry
        self._files, self._leases = files, leases

    @contextmanager
    def pin(self, *tables: str, seconds: float) -> Iterator[Pinned]:
        """The tables as they are now, for the block, which must end within so many seconds.

        Tables that are switched together are seen together, before it or after it. `TableNotServed`. Lease and lineage
        come in one round trip.
        """
        self._refuse_unknown({name for name in tables if not is_table(name)})
        with self._leases.hold(tables, seconds=seconds) as lease:
            states = self.registry.read(*tables)
            self._refuse_unknown({name for name, state in states.items() if not state.routed})
            lease.taken()
            yield Pinned(
                {name: self._routed_files(name, states) for name in tables},
                {name: state.version for name, state in states.items()},
                lease,
            )

    def _refuse_unknown(self, names: set[str]) -> None:
        if names:
            raise TableNotServed(min(names), set(self.registry.tables()) - names)

    def _routed_files(self, table: str, states: States) -> tuple[Path, ...]:
        return tuple(self._files.path(table, segment) for segment in sorted(states[table].routed))
