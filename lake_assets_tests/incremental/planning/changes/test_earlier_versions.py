"""The hours of earlier versions of changed keys, against a plain search of all rows. No Spark."""

from __future__ import annotations

from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lake_assets.base.hours import hour_of, hour_start
from lake_assets.incremental.declaration import Source
from lake_assets.incremental.engine import iceberg, source_changes
from lake_assets.incremental.engine.source_changes import EarlierVersions, SourceChanges, Watermark, changes
from lake_assets_tests.incremental.payments import LAST, PAYMENTS, START, arrow, is_sound, standing, version

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

Row = dict[str, Any]
names = count()

VERSIONS = st.builds(
    version,
    st.sampled_from(["p1", "p2", "p3", "p4", "p5", None]),
    st.one_of(st.none(), st.integers(-2, 9)),
    st.one_of(st.none(), st.integers(0, 30)),
    amount=st.integers(-1, 9),
    op=st.sampled_from(["U", "U", "U", "D"]),
)
BATCHES = st.lists(st.lists(VERSIONS, min_size=1, max_size=4), min_size=1, max_size=4)


@pytest.fixture
def payments(catalog: Catalog) -> Table:
    iceberg.create_raw(catalog, PAYMENTS)
    return iceberg.load(catalog, "raw.payments")


def append(table: Table, *rows: Row) -> None:
    table.append(arrow(rows).cast(table.schema().as_arrow()))


def read(table: Table, since: Watermark | None) -> SourceChanges:
    return changes(table, LAST, since, start=START)


def earlier(table: Table, since: Watermark | None) -> set[int]:
    found = read(table, since).earlier.hours
    return {hour - START for first, last in found for hour in range(first, last + 1)}


def is_dated(row: Row) -> bool:
    """Whether a row has an hour that counts."""
    return row["event_ts"] is not None and row["event_ts"] >= hour_start(START)


def searched(before: list[Row], new: list[Row]) -> set[int]:
    """The hours of the rows of before whose key a new row has."""
    keys = {row["payment_id"] for row in new} - {None}
    return {hour_of(row["event_ts"]) - START for row in before if is_dated(row) and row["payment_id"] in keys}


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=BATCHES, new=BATCHES)
def test_the_hours_found_are_those_of_a_search_and_cover_every_row_that_changes(
    catalog: Catalog, before: list[list[Row]], new: list[list[Row]]
) -> None:
    name = f"raw.payments_{next(names)}"
    raw = type(PAYMENTS)(name, PAYMENTS.columns, PAYMENTS.time_column)
    iceberg.create_raw(catalog, raw)
    table = iceberg.load(catalog, name)
    for batch in before:
        append(table, *batch)
    since = read(table, None)
    assert not since.earlier.exist, "everything is new"
    for batch in new:
        append(table, *batch)
    old_rows, new_rows = list(chain(*before)), list(chain(*new))
    found = earlier(table, since.head)
    assert found == searched(old_rows, new_rows)
    keys = {row["payment_id"] for row in new_rows} - {None}
    exist = read(table, since.head).earlier.exist
    assert exist == any(row["payment_id"] in keys for row in old_rows), "also of a version without a time"

    then, now = standing(old_rows), standing([*old_rows, *new_rows])
    differing = [row for row in [*then, *now] if row not in then or row not in now]
    in_new_files = {hour_of(row["event_ts"]) - START for row in new_rows if is_dated(row) and is_sound(row)}
    assert {hour_of(row["paid_at"]) - START for row in differing} <= found | in_new_files


def test_nothing_is_read_of_files_whose_keys_lie_elsewhere(payments: Table) -> None:
    append(payments, version("a", 1, 1), version("c", 2, 1))
    append(payments, version("x", 5, 1), version("z", 6, 1))
    since = read(payments, None).head
    for file in payments.inspect.files().to_pylist()[:1]:  # the newest: x and z
        Path(file["file_path"].removeprefix("file://")).unlink()
    append(payments, version("b", 3, 1), version("c", 4, 2))
    assert earlier(payments, since) == {2}


def test_all_hours_change_if_rows_are_removed_or_a_file_is_gone_or_new_rows_are_too_many(
    payments: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(payments, version("a", 1, 1), version("c", 5, 1))
    since = read(payments, None).head
    append(payments, version("b", 3, 1))
    assert earlier(payments, since) == set()
    with monkeypatch.context() as patch:
        patch.setattr(source_changes, "MAX_CHANGED_ROWS", 0)
        assert earlier(payments, since) == {1, 2, 3, 4, 5}
    last = read(payments, None).head
    payments.delete("payment_id = 'b'")
    assert earlier(payments, last) >= {1, 3, 5}, "an earlier version may count again"

    append(payments, version("c", 7, 2))
    since = read(payments, None).head
    append(payments, version("c", 8, 3))
    oldest = payments.inspect.files().to_pylist()[-1]["file_path"]
    assert earlier(payments, since) == {5, 7}
    Path(oldest.removeprefix("file://")).unlink()
    assert earlier(payments, since) >= {5, 7}


def test_a_source_that_keeps_the_first_looks_nothing_up(payments: Table) -> None:
    append(payments, version("a", 1, 1))
    first = Source("raw.payments", time_column="event_ts", key="payment_id")
    since = changes(payments, first, None, start=START).head
    append(payments, version("a", 2, 2))
    assert changes(payments, first, since, start=START).earlier == EarlierVersions()


def test_an_expired_watermark_finds_the_versions_in_the_head(payments: Table) -> None:
    append(payments, version("a", 1, 1))
    since = read(payments, None).head
    assert since.snapshot_id is not None
    append(payments, version("a", 4, 2))
    payments.maintenance.expire_snapshots().by_id(since.snapshot_id).commit()
    assert earlier(payments, since) >= {1}
