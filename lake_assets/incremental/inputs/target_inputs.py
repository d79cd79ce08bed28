"""What the evaluation of a target depends on: the tables and the states of processes that it reads, in one place.

An evaluation decides about the target and, to let it settle, about all targets upstream of it. A decision reads the
target's table, its sources, and the newest state of its process in both log tables.
`lake_assets_tests/incremental/dagster/test_sessions_sensor.py` compares what moved by these inputs with evaluations of
all targets.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog

from lake_assets.incremental.declaration import Pipeline, Target
from lake_assets.incremental.inputs.locations import Locations
from lake_assets.incremental.inputs.log_marks import LogMarks, Mark
from lake_assets.incremental.metadata.state_tables import HIGH_WATERMARK, SESSION

Inputs = tuple[Hashable, ...]
"""A value that is equal to an earlier one only if nothing has changed that the evaluation of a target reads."""


@dataclass(frozen=True)
class _Reach:
    """What one evaluation reads: tables, and the processes whose states it reads."""

    tables: tuple[str, ...]
    processes: tuple[str, ...]


class TargetInputs:
    """Looks at the inputs of targets, all of them by one look at the catalog.

    Args:
        pipeline: Declares the targets.
        targets: The targets to look at; the others count as inputs of these alone.
    """

    def __init__(self, pipeline: Pipeline, targets: Sequence[Target]) -> None:
        self._reach = {target.table: _reach(pipeline, target) for target in targets}
        names = {SESSION, HIGH_WATERMARK}
        for reach in self._reach.values():
            names.update(reach.tables)
        self._names = sorted(names)
        self._locations = Locations()
        self._logs = (LogMarks(SESSION), LogMarks(HIGH_WATERMARK))

    def look(self, catalog: Catalog) -> dict[str, Inputs]:
        """Return the present inputs of each target, by its table."""
        locations = self._locations.look(catalog, self._names)
        marks = [_Marks(locations.get(log.name), log.look(catalog, locations.get(log.name))) for log in self._logs]
        found: dict[str, Inputs] = {}
        for table, reach in self._reach.items():
            of_tables = tuple(locations.get(name) for name in reach.tables)
            of_processes = tuple(mark.of(process) for mark in marks for process in reach.processes)
            found[table] = (of_tables, of_processes)
        return found


@dataclass(frozen=True)
class _Marks:
    """The marks of a log table; its location stands for each of them if its files do not tell."""

    location: str | None
    marks: Mapping[str, Mark] | None

    def of(self, process: str) -> Hashable:
        return self.location if self.marks is None else self.marks.get(process)


def _reach(pipeline: Pipeline, target: Target) -> _Reach:
    decided = [target, *pipeline.upstream_of(target)]
    names: dict[str, None] = {}
    for each in decided:
        names.update(dict.fromkeys((each.table, *each.source_tables)))
    return _Reach(tuple(names), tuple(each.table for each in decided))
