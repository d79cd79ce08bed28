"""Which targets a sensor must look at now: those whose inputs have moved since an evaluation that changed nothing.

The inputs of a target are the metadata locations of all tables that its evaluation reads: its own table, which has its
state, its sources, and, to let it settle, those of all targets upstream of it. Each commit gives a table a new metadata
file, so a table whose location is unchanged is unchanged. To forget an evaluation, or to lose the tick that made it,
costs nothing but another one. `lake_assets_tests/incremental/dagster/test_sessions_sensor.py` compares what moved by
these inputs with evaluations of all targets.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from lake_assets.connections.sql_catalog import locations_in
from lake_assets.errors import TableDamaged
from lake_assets.incremental.declaration import Pipeline, Target
from lake_assets.incremental.engine import iceberg

LOADS_PER_LOOK = 100
"""Tables that one look loads at most, if the catalog has to be asked for each table."""


class Locations:
    """Looks at the locations of the tables of a catalog, and remembers those of tables that have to be loaded."""

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {}

    def look(self, catalog: Catalog, names: Collection[str]) -> dict[str, str]:
        """Return table → location of its present metadata. Tables that do not exist are left out.

        A catalog in a database returns all locations in one query. Another catalog is asked for each table: first for
        those that no look has loaded yet, then for those whose turn is the longest time ago. If they are many, some
        locations are those of an earlier look.
        """
        if isinstance(catalog, SqlCatalog):
            found = locations_in(catalog)
        else:
            unknown = [name for name in names if name not in self._known]
            for name in islice([*unknown, *(each for each in self._known if each in names)], LOADS_PER_LOOK):
                self._known.pop(name, None)  # the order of the keys is that of the turns
                try:
                    table = iceberg.find(catalog, name)
                    self._known[name] = None if table is None else table.metadata_location
                except TableDamaged as error:  # a session that reads the table reports it
                    self._known[name] = f"damaged: {error}"
            found = self._known
        return {name: location for name in names if (location := found.get(name)) is not None}


FULL_LOOK_SECONDS = 600
"""Age from which on a quiet target is looked at although nothing has moved, in case that an input is not known."""

STALE_PER_TICK = 2
"""Targets that a tick looks at only because of their age, so that they do not all come at once."""


@dataclass(frozen=True)
class Quiet:
    """An evaluation that changed nothing.

    Attributes:
        inputs: What the target's inputs were before it.
        runs: The ids of the target's active runs before it.
        at: When it was made, in seconds since 1970-01-01 UTC.
        again_at: The moment from which on its result may be another one although no input moves; None for none.
        reason: Why the target has no session to request, for people.
    """

    inputs: Hashable
    runs: Hashable
    at: float
    again_at: float | None
    reason: str

    def is_over(self, inputs: Hashable, runs: Hashable, now: float) -> bool:
        """Return whether the target must be looked at again. While a run of it is active, nothing is requested."""
        if runs != self.runs:
            return True
        if runs:
            return False
        is_due = self.again_at is not None and now >= self.again_at
        return is_due or inputs != self.inputs


def to_look_at(
    targets: Sequence[str],
    quiet: Mapping[str, Quiet],
    *,
    inputs: Mapping[str, Hashable],
    runs: Mapping[str, Hashable],
    looked_at: Mapping[str, float],
    now: float,
) -> list[str]:
    """Return the targets that must be looked at: those that moved, those that are not quiet, then some by their age.

    Within each of the three, the one whose last evaluation is the longest time ago comes first, so a caller that looks
    at the first few of them comes to each one in turn.

    Args:
        targets: All targets.
        quiet: Target → its last evaluation, if that changed nothing.
        inputs: Target → its present inputs.
        runs: Target → its active runs, if it has any.
        looked_at: Target → when it was looked at last, if it ever was, in seconds since 1970-01-01 UTC.
        now: Seconds since 1970-01-01 UTC.
    """
    moved: list[str] = []
    unknown: list[str] = []
    stale: list[str] = []
    for target in sorted(targets, key=lambda name: looked_at.get(name, 0.0)):
        last = quiet.get(target)
        if last is None:
            unknown.append(target)
        elif last.is_over(inputs.get(target), runs.get(target), now):
            moved.append(target)
        elif abs(now - last.at) >= FULL_LOOK_SECONDS:  # a clock may be set back
            stale.append(target)
    return [*moved, *unknown, *stale[:STALE_PER_TICK]]


Inputs = tuple[Hashable, ...]
"""A value that is equal to an earlier one only if nothing has changed that the evaluation of a target reads."""


class TargetInputs:
    """Looks at the inputs of targets, all of them by one look at the catalog.

    Args:
        pipeline: Declares the targets.
        targets: The targets to look at; the others count as inputs of these alone.
    """

    def __init__(self, pipeline: Pipeline, targets: Sequence[Target]) -> None:
        self._read: dict[str, set[str]] = {}
        for target in targets:
            evaluated = [target, *pipeline.upstream_of(target)]
            self._read[target.table] = {name for each in evaluated for name in (each.table, *each.source_tables)}
        self._locations = Locations()

    def look(self, catalog: Catalog) -> dict[str, Inputs]:
        """Return the present inputs of each target, by its table."""
        locations = self._locations.look(catalog, sorted(set().union(*self._read.values())))
        return {table: tuple(locations.get(name) for name in sorted(names)) for table, names in self._read.items()}
