"""Rows are counted by metadata exactly, or not at all."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import pyarrow as pa

from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.audit_reads import count_appended, count_in_hours
from lake_assets.membership.raw import SIGNUPS
from lake_assets_tests.incremental.scenario import START, signup
from lake_assets_tests.membership.in_memory import ARROW, COLUMNS

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets_tests.membership.oracle import Row

TABLE = "raw.signups"
FILES: list[list[Row]] = [
    [signup(0, 1), signup(59, 1)],
    [signup(0, 2), signup(1, 4)],
    [signup(0, 5), signup(1, 6), signup(2, 6, event_ts=None)],
    [signup(1, 7, event_ts=None)],
]


def append(catalog: Catalog, rows: list[Row]) -> int | None:
    table = iceberg.load(catalog, TABLE)
    schema = pa.schema([(name, ARROW[kind]) for name, kind in COLUMNS[TABLE].items()])
    # One landing partition, so that the rows are one file.
    same = [{**row, "landing_hour": 0, "batch_id": "1"} for row in rows]
    table.append(pa.Table.from_pylist(same, schema=schema).cast(table.schema().as_arrow()))
    return publish.main_id(iceberg.load(catalog, TABLE))


def test_appended_rows_are_counted_by_the_manifests_of_the_range(catalog: Catalog) -> None:
    iceberg.create_raw(catalog, SIGNUPS)
    heads = [append(catalog, rows) for rows in FILES]
    table = iceberg.load(catalog, TABLE)
    assert [count_appended(table, None, head) for head in heads] == [2, 4, 7, 8]
    assert [count_appended(table, heads[0], head) for head in heads] == [0, 2, 5, 6]
    assert count_appended(table, heads[3], heads[0]) is None, "the range is no range"
    assert count_appended(table, None, None) == 0

    table.delete("signup_id = 's00-2'")
    changed = iceberg.load(catalog, TABLE)
    main = publish.main_id(changed)
    assert main is not None
    assert count_appended(changed, heads[3], main) is None, "rows were removed"
    assert count_appended(changed, None, main) == 7


def test_rows_of_hours_are_counted_by_bounds_and_by_the_times_of_files_whose_bounds_do_not_tell(
    catalog: Catalog,
) -> None:
    iceberg.create_raw(catalog, SIGNUPS)
    head = [append(catalog, rows) for rows in FILES][-1]
    table = iceberg.load(catalog, TABLE)
    assert head is not None
    for number in range(5):
        for chosen in combinations(range(1, 8), number):
            found = count_in_hours(table, head, "event_ts", [START + hour for hour in chosen])
            times = [row["event_ts"] for rows in FILES for row in rows]
            exact = sum(time is not None and time.hour in chosen for time in times)
            assert found == exact, chosen
