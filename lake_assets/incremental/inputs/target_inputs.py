"""What the evaluation of a target depends on: the tables that it reads, in one place.

An evaluation decides about the target and, to let it settle, about all targets upstream of it. A decision reads the
target's table, which has its state, and its sources.
`lake_assets_tests/incremental/dagster/test_sessions_sensor.py` compares what moved by these inputs with evaluations of
all targets.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from pyiceberg.catalog import Catalog

from lake_assets.incremental.declaration import Pipeline, Target
from lake_assets.incremental.inputs.locations import Locations

Inputs = tuple[Hashable, ...]
"""A value that is equal to an earlier one only if nothing has changed that the evaluation of a target reads."""


class TargetInputs:
    """Looks at the inputs of targets, all of them by one look at the catalog.

    Args:
        pipeline: Declares the targets.
        targets: The targets to look at; the others count as inputs of these alone.
    """

    def __init__(self, pipeline: Pipeline, targets: Sequence[Target]) -> None:
        self._reach = {target.table: _reach(pipeline, target) for target in targets}
        self._names = sorted({name for names in self._reach.values() for name in names})
        self._locations = Locations()

    def look(self, catalog: Catalog) -> dict[str, Inputs]:
        """Return the present inputs of each target, by its table."""
        locations = self._locations.look(catalog, self._names)
        return {table: tuple(locations.get(name) for name in names) for table, names in self._reach.items()}


def _reach(pipeline: Pipeline, target: Target) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for each in [target, *pipeline.upstream_of(target)]:
        names.update(dict.fromkeys((each.table, *each.source_tables)))
    return tuple(names)
