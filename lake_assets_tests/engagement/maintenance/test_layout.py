"""Which orgs are sorted: against a slow oracle, and over histories, whose rewritten bytes are bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.engagement.maintenance import DatedFile, dated_files, mean_overlap, orgs_to_sort, rewrite_files
from lake_assets.engagement.tables import ENGAGEMENT, LakeTables
from lake_assets_tests.engagement.prepared import create_tables
from lake_assets_tests.engagement.scenario import lake_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

NEW_YEAR = date(2026, 1, 1)
FULL = 10
"""The size of a full file in rows. A row is a byte here, and its day a number."""

Rows = tuple[int, ...]
DAYS = st.integers(0, 30)


def file_of(rows: Sequence[int]) -> DatedFile:
    return DatedFile("acme", len(rows), NEW_YEAR + timedelta(days=min(rows)), NEW_YEAR + timedelta(days=max(rows)))


def overlap(one: Rows, other: Rows) -> bool:
    """Whether sorting could separate them, or they are the same file, is up to the caller."""
    return bool(set(range(min(one), max(one) + 1)) & set(range(min(other), max(other) + 1)))


@given(st.lists(st.lists(DAYS, min_size=1, max_size=FULL).map(tuple), min_size=1, max_size=12))
def test_the_overlap_is_that_of_all_pairs(files: list[Rows]) -> None:
    expected = 0.0
    for number, one in enumerate(files):
        for place, other in enumerate(files):
            same_day = len({*one, *other}) == 1
            if number == place or (overlap(one, other) and not same_day):
                expected += len(one) * len(other)
    total = sum(map(len, files))
    assert mean_overlap([file_of(rows) for rows in files]) == pytest.approx(expected / total)


def merged(files: list[Rows]) -> list[Rows]:
    """Small files merged as OPTIMIZE does it: by size, until one is full."""
    found: list[Rows] = []
    for rows in sorted(files, key=len):
        if found and len(found[-1]) + len(rows) <= FULL:
            found[-1] += rows
        else:
            found.append(rows)
    return found


def in_order(files: list[Rows]) -> list[Rows]:
    rows = sorted(row for rows in files for row in rows)
    return [tuple(rows[start : start + FULL]) for start in range(0, len(rows), FULL)]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(DAYS, min_size=1, max_size=FULL).map(tuple), min_size=1, max_size=80))
def test_whatever_days_arrive_sorting_rewrites_a_few_times_what_was_written(arrivals: list[Rows]) -> None:
    """The worst arrivals: rows of any day, never of the present one alone. What is sorted is not sorted again."""
    files: list[Rows] = []
    written = rewritten = 0
    for rows in arrivals:
        files = merged([*files, rows])
        written += len(rows)
        if orgs_to_sort(map(file_of, files), FULL):
            files = in_order(files)
            rewritten += sum(map(len, files))
            assert orgs_to_sort(map(file_of, files), FULL) == []
        assert rewritten <= 6 * written + 4 * FULL


def test_an_org_that_gets_rows_of_the_present_day_is_never_sorted_again() -> None:
    old = in_order([tuple(range(20)) for _ in range(20)])
    new = [(20 + number // 5,) * 4 for number in range(50)]
    for count in range(len(new)):
        assert orgs_to_sort(map(file_of, merged([*old, *new[:count]])), FULL) == []


def test_each_org_is_judged_by_itself() -> None:
    wide = [(0, 30)] * 5
    narrow = [(number, number) for number in range(5)]
    files = [replace(file_of(rows), org_id="globex") for rows in narrow] + [file_of(rows) for rows in wide]
    assert orgs_to_sort(files, 2) == ["acme"]


def test_only_the_unsorted_org_is_rewritten_by_date(home: Settings, spark: SparkSession) -> None:
    """acme has five files of the same three days, globex one file for each of five days."""
    tables = LakeTables(lake_of("laid_out", "laid_out"), home.warehouse_address)
    create_tables(tables, spark)
    for number in range(5):
        of_acme = [("acme", NEW_YEAR + timedelta(days=day)) for day in range(3)]
        rows = [*of_acme, ("globex", NEW_YEAR + timedelta(days=number))]
        written = spark.createDataFrame(rows, "org_id string, engagement_date date").coalesce(1)
        written.write.format("delta").mode("append").save(tables.location(ENGAGEMENT))
    before = set(dated_files(tables))
    full = max(file.bytes for file in before)
    tables = replace(tables, lake=replace(tables.lake, max_file_bytes=full))
    assert rewrite_files(tables, spark, ["globex"], confirm=lambda: None) == ["acme"]
    after = set(dated_files(tables))
    assert {file for file in after if file.org_id == "globex"} == {file for file in before if file.org_id == "globex"}
    assert tables.read(spark, ENGAGEMENT).count() == 20
