"""How many rows an hour has: by metadata where these can tell, by Spark where not; compared with earlier days."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_assets.base.hours import hour_key, hour_start
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.audits import odd_hours, row_count_like_earlier
from lake_assets.incremental.engine.iceberg import rows_by_hour, rows_in_hours
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.scenario import START, Lake, signup, with_target

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

HOURS = st.integers(0, 99)
COUNTS = st.dictionaries(HOURS, st.integers(1, 50))


@given(COUNTS, COUNTS, st.frozensets(HOURS), st.integers(1, 4), st.sampled_from([1.0, 1.5, 10.0]))
def test_an_hour_is_odd_beside_the_mean_of_the_days_before_it(
    now: dict[int, int], earlier: dict[int, int], hours: frozenset[int], days: int, factor: float
) -> None:
    expected = []
    for hour in range(100):
        same = [n for h, n in earlier.items() if h in range(hour - 24 * days, hour) and (hour - h) % 24 == 0]
        if hour in hours and same:
            ratio = now.get(hour, 0) / mean(same)
            expected += [hour] if ratio < 1 / factor or ratio > factor else []
    found = odd_hours(now, earlier, hours, days=days, factor=factor)
    near = [h for h in {*found} ^ {*expected} if not _on_the_edge(now.get(h, 0), earlier, h, days, factor)]
    assert found == sorted(found)
    assert not near


def _on_the_edge(rows: int, earlier: dict[int, int], hour: int, days: int, factor: float) -> bool:
    """Whether rounding decides."""
    usual = mean([earlier[hour - 24 * d] for d in range(1, days + 1) if hour - 24 * d in earlier])
    return min(abs(rows - usual * factor), abs(rows - usual / factor)) < 1e-9


def test_manifests_tell_the_rows_of_each_hour_as_of_any_snapshot(catalog: Catalog) -> None:
    fact = PIPELINE.target("signup_fact")
    iceberg.create_target(catalog, fact)
    table = iceberg.load(catalog, fact.table)
    assert rows_in_hours(table, None, fact.time_column, range(START, START + 9)) == {}
    schema = table.schema().as_arrow()
    for hours in ([1, 1, 3], [1, 7], [50]):
        rows = [{"signup_id": "s", fact.time_column: hour_start(START + hour)} for hour in hours]
        table.append(pa.Table.from_pylist(rows, schema=schema))
    second = table.metadata.snapshots[1].snapshot_id
    assert rows_in_hours(table, second, fact.time_column, range(START, START + 99)) == {
        START + 1: 3,
        START + 3: 1,
        START + 7: 1,
    }
    assert rows_in_hours(table, second, fact.time_column, [START, START + 3]) == {START + 3: 1}
    assert rows_in_hours(table, second, fact.time_column, []) == {}
    any_hours = range(START - 10**11, START + 10**11)  # whoever looks at each of them comes to no end
    assert rows_by_hour(table, fact.time_column, any_hours) == {START + 1: 3, START + 3: 1, START + 7: 1, START + 50: 1}

    daily = PIPELINE.target("account_state_daily")
    iceberg.create_target(catalog, daily)
    table = iceberg.load(catalog, daily.table)
    schema = table.schema().as_arrow()
    table.append(pa.Table.from_pylist([{daily.time_column: hour_start(START)}], schema=schema))
    only = table.metadata.snapshots[0].snapshot_id
    assert rows_in_hours(table, only, daily.time_column, [START]) is None
    assert rows_by_hour(table, daily.time_column, [START + 7]) == {START: 1}
    assert rows_by_hour(table, daily.time_column, [START + 24]) == {}


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_rows_that_were_deleted_count_for_nothing(catalog: Catalog, spark: SparkSession, mode: str) -> None:
    fact = replace(PIPELINE.target("signup_fact"), audits=(row_count_like_earlier(factor=2, blocking=True),))
    lake = Lake(catalog, spark, with_target(PIPELINE, fact))
    lake.append("raw.signups", [signup(n, hour) for n in range(12) for hour in (3, 4)])
    lake.session("signup_fact")
    lake.set_property(fact.table, "write.delete.mode", mode)
    spark.sql(f"DELETE FROM lake.{fact.table} WHERE signup_id < 's06' AND hour(signed_up_at) = 3")
    told = rows_in_hours(iceberg.load(catalog, fact.table), lake.main(fact.table), fact.time_column, [START + 3])
    assert told == (None if mode == "merge-on-read" else {START + 3: 6})
    lake.append("raw.signups", [signup(n, hour) for n in range(15) for hour in (27, 28)])
    report = lake.session("signup_fact")
    assert [(h.hour - START, h.why) for h in report.held] == [(27, "audit row_count_like_earlier: 1 odd hours")]
    (verdict,) = [a for a in report.audits if not a.passed]
    assert (verdict.sample, verdict.hours) == ((hour_key(START + 27),), {hour_key(START + 27): 1})
