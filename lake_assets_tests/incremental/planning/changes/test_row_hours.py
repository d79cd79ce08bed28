"""A file whose bounds are far apart plans the hours of its rows, as far as a plan's budget goes. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lake_assets.incremental.declaration import Source
from lake_assets.incremental.engine import iceberg, source_changes
from lake_assets.incremental.engine.source_changes import ReadBudget, SourceChanges, Watermark, changes, describe
from lake_assets_tests.incremental.planning.changes.test_changes import (
    RAW,
    START,
    append,
    arrow,
    arrow_of,
    head,
    read,
    row,
    touched,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

LARGE = 1 << 20
names = count()


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> Iterator[None]:
    source_changes._cache.clear()
    yield
    source_changes._cache.clear()


@pytest.fixture
def events(catalog: Catalog) -> Table:
    iceberg.create_raw(catalog, RAW)
    return iceberg.load(catalog, "raw.events")


def exact(table: Table, since: Watermark, budget: ReadBudget | None = None) -> SourceChanges:
    return read(table, since, budget=budget or ReadBudget(LARGE))


def paths(found: SourceChanges) -> list[Path]:
    return [Path(file.path.removeprefix("file://")) for file in found.added]


def test_the_hours_of_a_wide_file_are_those_of_its_rows_and_the_plan_says_so(events: Table) -> None:
    append(events, 0)
    since = head(events)
    append(events, 1, 30, 31, 32, None, -5, 40, landed=33)
    bounds, found = read(events, since, budget=ReadBudget(0)), exact(events, since)
    assert touched(found) == touched(bounds) == [1, 30, 31, 32], "rows that are quarantined: always opened"

    since = head(events)
    append(events, 1, 30, 31, 32, landed=33)
    bounds, found = read(events, since, budget=ReadBudget(0)), exact(events, since)
    assert (touched(bounds), touched(found)) == (list(range(1, 33)), [1, 30, 31, 32])
    (snapshot,) = found.snapshots
    assert describe(found, snapshot, snapshot.hours[0]) == (
        f"append {snapshot.snapshot_id} of raw.events: event_ts 2026-01-01-01:00 (by the rows of 1 file)"
    )
    assert [file.hours for file in found.added] == [(START + 1, START + 32)]


def test_a_row_that_is_repaired_touches_the_exact_hours_of_the_file_before_and_after(events: Table) -> None:
    append(events, 1, 30, 32, landed=33)
    since = head(events)
    events.overwrite(arrow(events, [row(28, landed=33)]), overwrite_filter="event_id = 'e30'")
    found = exact(events, since)
    assert (touched(found), found.appends_only) == ([1, 28, 30, 32], False)


def test_a_file_that_is_gone_has_the_hours_of_its_bounds(events: Table) -> None:
    append(events, 0)
    since = head(events)
    append(events, 1, 9, landed=10)
    (path,) = paths(read(events, since))
    path.unlink()
    assert touched(exact(events, since)) == list(range(1, 10))


def test_a_narrow_file_is_not_opened(events: Table) -> None:
    append(events, 0)
    since = head(events)
    append(events, 1, 4)
    budget = ReadBudget(LARGE)
    assert (touched(exact(events, since, budget)), budget) == ([1, 2, 3, 4], ReadBudget(LARGE))


def test_a_plan_opens_so_many_files_and_bytes_and_then_goes_by_bounds(events: Table) -> None:
    append(events, 0)
    since = head(events)
    append(events, 1, 6)
    append(events, 11, 16, landed=17)
    both, first = [1, 6, 11, 16], [1, 6, *range(11, 17)]
    size = max(file.bytes for file in read(events, since).added)
    assert touched(exact(events, since, ReadBudget(size))) == both
    assert touched(exact(events, since, ReadBudget(size, files=1))) == first
    assert touched(exact(events, since, ReadBudget(size, bytes=size))) == first
    assert touched(exact(events, since, ReadBudget(100))) == [*range(1, 7), *range(11, 17)]


def test_a_file_is_read_once_and_counts_in_every_plan(events: Table) -> None:
    append(events, 0)
    since = head(events)
    append(events, 1, 9, landed=10)
    assert touched(exact(events, since)) == [1, 9]
    for path in paths(read(events, since)):
        path.unlink()
    assert touched(exact(events, since)) == [1, 9]
    assert touched(exact(events, since, ReadBudget(LARGE, files=0))) == list(range(1, 10))


def test_a_time_column_that_was_renamed_since_is_found(catalog: Catalog) -> None:
    iceberg.create(catalog, "core.plain", {"at": "timestamptz"}, {}, {})
    table = iceberg.load(catalog, "core.plain")
    table.append(arrow_of(table, "at", [1, 9]))
    with table.update_schema() as schema:
        schema.rename_column("at", "happened_at")
    found = changes(table, Source("core.plain", "happened_at"), None, start=START, budget=ReadBudget(LARGE))
    assert touched(found) == [1, 9]


@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=4), min_size=1, max_size=4), st.integers(0, 4))
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_the_first_wide_files_have_the_hours_of_their_rows_and_all_others_those_of_their_bounds(
    catalog: Catalog, files: list[list[int]], opened: int
) -> None:
    name = f"core.plain_{next(names)}"
    iceberg.create(catalog, name, {"at": "timestamptz"}, {}, {})
    table = iceberg.load(catalog, name)
    source = Source(name, time_column="at")
    table.append(arrow_of(table, "at", [50]))
    since = changes(table, source, None, start=START).head
    expected: set[int] = set()
    left = opened
    for hours in files:
        table.append(arrow_of(table, "at", hours))
        bounds = range(min(hours), max(hours) + 1)
        is_opened = len(bounds) > 4 and left > 0
        left -= is_opened
        expected |= set(hours) if is_opened else set(bounds)
    found = changes(table, source, since, start=START, budget=ReadBudget(LARGE, files=opened))
    assert touched(found) == sorted(expected)
