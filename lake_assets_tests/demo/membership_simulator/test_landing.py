"""Landing on real tables, through a real Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lake_assets.demo.membership_simulator import bad_batch, dirty_batch, land, repair, worked_example
from lake_assets.demo.membership_simulator.model import TABLES
from lake_assets.errors import TableMissing
from lake_assets.incremental.engine.iceberg import complete_through, create_raw, load
from lake_assets.membership.raw import RAW, SIGNUPS

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.demo.membership_simulator import Landing


@pytest.fixture
def raw_tables(catalog: Catalog) -> Catalog:
    for raw in RAW:
        create_raw(catalog, raw)
    return catalog


def _sorted(table: pa.Table) -> list[dict[str, object]]:
    return sorted(table.to_pylist(), key=str)


def _state(catalog: Catalog) -> list[tuple[int, int | None]]:
    """Snapshots and complete-through of each raw table."""
    tables = [load(catalog, name) for name in TABLES]
    return [(len(t.snapshots()), complete_through(t, name)) for name, t in zip(TABLES, tables, strict=True)]


def _through(landing: Landing) -> list[int | None]:
    return [landing.complete_through[table] for table in TABLES]


def test_a_batch_lands_once_in_one_commit_each_however_often_it_is_tried(
    spark: SparkSession, raw_tables: Catalog
) -> None:
    first, late, _ = worked_example()
    assert land(spark, raw_tables, first) == TABLES
    for table in TABLES:
        assert _sorted(load(raw_tables, table).scan().to_arrow()) == _sorted(first.rows[table])
    assert _state(raw_tables) == [(1, through) for through in _through(first)]

    # As if the process had died after the signups' rows: their commit is there, what follows is not.
    rows = {table: late.rows[table] if table == SIGNUPS.table else late.rows[table].slice(0, 0) for table in TABLES}
    land(spark, raw_tables, replace(late, rows=rows, complete_through=dict.fromkeys(TABLES)))
    assert _state(raw_tables)[0] == (2, first.complete_through[SIGNUPS.table])

    assert land(spark, raw_tables, late) == ("raw.plan_changes", "raw.cancels")
    assert land(spark, raw_tables, late) == ()
    assert land(spark, raw_tables, first) == ()
    counts = [2, 2, 1, 2]
    assert _state(raw_tables) == list(zip(counts, _through(late), strict=True))


def test_a_bad_batch_is_repaired_in_place(spark: SparkSession, raw_tables: Catalog) -> None:
    bad = bad_batch(hour=8)
    land(spark, raw_tables, bad.landing)
    repair(spark, bad)
    landed, repaired = bad.landing.rows[SIGNUPS.table], load(raw_tables, SIGNUPS.table)
    expected = [{**row, "account_id": row["account_id"] or bad.right[row["signup_id"]]} for row in landed.to_pylist()]
    assert sorted(repaired.scan().to_arrow().to_pylist(), key=str) == sorted(expected, key=str)
    assert complete_through(repaired, SIGNUPS.table) == bad.landing.complete_through[SIGNUPS.table]


def test_rows_for_quarantine_land_like_any_other(spark: SparkSession, raw_tables: Catalog) -> None:
    landing = dirty_batch(hour=8)
    land(spark, raw_tables, landing)
    for table in TABLES:
        assert _sorted(load(raw_tables, table).scan().to_arrow()) == _sorted(landing.rows[table])


def test_a_table_that_is_not_there_is_named(spark: SparkSession, catalog: Catalog) -> None:
    with pytest.raises(TableMissing, match=r"raw\.signups"):
        land(spark, catalog, worked_example()[0])
