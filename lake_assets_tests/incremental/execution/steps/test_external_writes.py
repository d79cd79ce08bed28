"""What another program removed, or left, against its plan, in snapshots of pyiceberg; those of Spark are in
`test_external_jobs.py`."""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThan, Or
from pyiceberg.io.pyarrow import schema_to_pyarrow

from lake_assets.base.grain import DAY, HOUR, Grain
from lake_assets.base.hours import hour_key, hour_start, parse_hour
from lake_assets.errors import NotAsPlanned
from lake_assets.incremental.execution.steps.external_writes import check_written
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.metadata.partitions import TRANSFORMS
from lake_assets.incremental.planning.session import PlannedHour, SessionPlan

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

START = parse_hour("2026-01-01-00:00")
WAP = "fact-1.1"
numbers = count()
hours = st.frozensets(st.integers(0, 4), min_size=1)


def table_with(catalog: Catalog, there: Collection[int | None], grain: Grain = HOUR) -> Table:
    """A table with a row in each of the hours, counted from START; None: without a time."""
    name = f"core.fact_{next(numbers)}"
    tables.create(catalog, name, {"at": "timestamptz"}, {"at": TRANSFORMS[grain]}, {})
    table = tables.load(catalog, name)
    rows = [{"at": None if hour is None else hour_start(START + hour)} for hour in there]
    table.append(pa.Table.from_pylist(rows, schema=schema_to_pyarrow(table.schema(), include_field_ids=False)))
    return table


def in_hours(found: Collection[int]) -> BooleanExpression:
    spans = [(hour_start(START + h).isoformat(), hour_start(START + h + 1).isoformat()) for h in sorted(found)]
    each: list[BooleanExpression] = []
    for a, b in spans:
        each.append(And(GreaterThanOrEqual("at", a), LessThan("at", b)))  # type: ignore[arg-type, call-arg]
    return reduce(Or, each)


def remove(table: Table, which: BooleanExpression) -> bool:
    """Rows, in a snapshot that carries the WAP id; whether there were any."""
    table.delete(which, snapshot_properties={publish.WAP_ID: WAP})
    return bool(publish.staged_snapshots(table, WAP))


def check(table: Table, load: str, planned: Collection[int]) -> None:
    due = tuple(PlannedHour(START + hour, "") for hour in sorted(planned))
    plan = SessionPlan("core.fact", "fact-1", "session", load, (), due)  # type: ignore[arg-type]
    check_written(table, "core.fact", plan, WAP, "at")


@given(there=hours, planned=hours, removed=hours)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_overwrite_removes_all_that_the_planned_hours_had_and_nothing_else(
    catalog: Catalog, there: frozenset[int], planned: frozenset[int], removed: frozenset[int]
) -> None:
    table = table_with(catalog, there)
    if not remove(table, in_hours(removed)):
        assert not there & removed
    elif there & removed == there & planned:
        check(table, "overwrite", planned)
    else:
        with pytest.raises(NotAsPlanned):
            check(table, "overwrite", planned)
    if gone := there & removed:
        with pytest.raises(NotAsPlanned, match=f"removes rows of {hour_key(START + min(gone))}"):
            check(table, "append", planned)


def test_rows_without_a_time_are_of_no_planned_hour(catalog: Catalog) -> None:
    table = table_with(catalog, [1, None])
    assert remove(table, AlwaysTrue())
    with pytest.raises(NotAsPlanned, match="removes rows of no hour, which was not planned"):
        check(table, "overwrite", [1])


def test_a_day_is_removed_as_a_whole(catalog: Catalog) -> None:
    table = table_with(catalog, [1, 30], DAY)
    assert remove(table, in_hours(range(24)))
    check(table, "overwrite", range(24))
    with pytest.raises(NotAsPlanned, match=r"2026-01-01-00:00\.\.2026-01-01-23:00, .* rows of 2026-01-02-00:00\.\."):
        check(table, "overwrite", range(24, 48))
