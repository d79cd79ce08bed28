"""Which files a MERGE may read: those of its orgs that can hold its dates, and no others."""

from __future__ import annotations

from datetime import date, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lake_assets.engagement.delta_log import open_table
from lake_assets.engagement.pruning import (
    MAX_RANGES,
    DateSpan,
    MergeScope,
    merge_scope,
    spans_of_days,
)
from lake_assets.engagement.tables import ENGAGEMENT, LakeTables
from lake_assets_tests.engagement.prepared import create_tables
from lake_assets_tests.engagement.scenario import lake_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.settings import Settings

NEW_YEAR = date(2026, 1, 1)
DAYS = st.none() | st.dates(NEW_YEAR, NEW_YEAR + timedelta(days=4))


def covers(found: MergeScope, org: str, day: date) -> bool:
    """Whether rows of an org and a day are concerned."""
    of_org = (span for span in found.spans if org in span.orgs)
    return any((s.first is None or s.first <= day) and (s.last is None or day <= s.last) for s in of_org)


@given(st.dictionaries(st.sampled_from("abcdef"), st.tuples(DAYS, DAYS)), st.dates(NEW_YEAR, date(2026, 1, 5)))
def test_each_org_has_its_own_dates(dates: dict[str, tuple[date | None, date | None]], day: date) -> None:
    spans = [DateSpan((org,), first, last) for org, (first, last) in dates.items()]
    found = merge_scope(spans)
    assert all(covers(found, org, day) == covers(MergeScope(tuple(spans)), org, day) for org in "abcdef")
    assert len(found.spans) == len(set(dates.values()))


def test_of_many_dates_it_is_those_between_the_first_and_the_last() -> None:
    days = [NEW_YEAR + timedelta(days=number) for number in range(MAX_RANGES + 1)]
    orgs = tuple(sorted(f"org{number}" for number in range(len(days))))
    found = merge_scope(DateSpan((f"org{number}",), day, day) for number, day in enumerate(days))
    assert found == MergeScope((DateSpan(orgs, days[0], days[-1]),))


@given(st.lists(st.dates(NEW_YEAR, date(2026, 12, 31)), min_size=MAX_RANGES + 1, max_size=60, unique=True))
def test_many_dates_leave_out_the_widest_gaps_between_them(days: list[date]) -> None:
    found = merge_scope(DateSpan((f"org{number % 3}",), day, day) for number, day in enumerate(days))
    ordered = sorted(days)
    gaps = sorted((after - before).days - 1 for before, after in pairwise(ordered))
    covered = sum((span.last - span.first).days + 1 for span in found.spans if span.first and span.last)
    assert all(covers(found, org, day) for org in ("org0", "org1", "org2") for day in days)
    assert covered == (ordered[-1] - ordered[0]).days + 1 - sum(gaps[-(MAX_RANGES - 1) :])


def test_files_of_other_orgs_and_of_other_dates_are_not_read(home: Settings, spark: SparkSession) -> None:
    """acme and globex are concerned on a day each, initech has none; each org has a file for each of four days."""
    tables = LakeTables(lake_of("pruned", "pruned"), home.warehouse_address)
    create_tables(tables, spark)
    days = [NEW_YEAR + timedelta(days=number) for number in range(4)]
    for day in days:
        rows = [(org, day) for org in ("acme", "globex", "initech", "umbrella")]
        spark.createDataFrame(rows, "org_id string, engagement_date date").write.format("delta").mode("append").save(
            tables.location(ENGAGEMENT)
        )
    dates = spark.createDataFrame([("acme", days[0]), ("globex", days[3])], "org_id string, engagement_date date")
    found = merge_scope(spans_of_days(dates))
    read = files(tables.read(spark, ENGAGEMENT).where(found.condition))
    held = pa.table(open_table(tables.location(ENGAGEMENT)).get_add_actions(flatten=True)).to_pylist()
    assert len(held) == 16
    may = {f["path"] for f in held if f["partition.org_id"] in ("acme", "globex")}
    may -= {f["path"] for f in held if f["min.engagement_date"] in days[1:3]}
    assert read <= may
    assert rows_of(tables.read(spark, ENGAGEMENT).where(found.condition)) == {("acme", days[0]), ("globex", days[3])}


def files(rows: DataFrame) -> set[str]:
    """The files that are read for some rows, as the log names them."""
    return {"/".join(path.split("/")[-2:]) for path in rows.inputFiles()}


def rows_of(rows: DataFrame) -> set[tuple[str, date]]:
    return {(row["org_id"], row["engagement_date"]) for row in rows.collect()}
