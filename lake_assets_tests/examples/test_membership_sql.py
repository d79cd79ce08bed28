"""The facts of memberships in SQL: on the same rows they are the tables that the Python declarations build."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from lake_assets.incremental.operations.verify import compare
from lake_assets.membership import PIPELINE
from lake_assets.membership.raw import RAW
from lake_assets.settings import PROJECT
from lake_assets_tests.incremental.scenario import START, Lake, raw_row
from lake_assets_tests.incremental.sql.folders import check_all, pipeline_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets_tests.membership.oracle import Row

FOLDER = PROJECT / "examples" / "membership_sql"
FACTS = ("signup_fact", "plan_fact", "cancel_request_fact", "cancel_fact")

FIRST: dict[str, list[Row]] = {
    "raw.signups": [raw_row("raw.signups", 1, 0), raw_row("raw.signups", 2, 1, plan="unknown")],
    "raw.plan_changes": [raw_row("raw.plan_changes", 1, 1, plan="premium")],
    "raw.cancel_requests": [raw_row("raw.cancel_requests", 5, 1), raw_row("raw.cancel_requests", 7, 2, reason=None)],
    "raw.cancels": [raw_row("raw.cancels", 7, 2), raw_row("raw.cancels", 9, 2), raw_row("raw.cancels", 3, 3)],
}
LATE: dict[str, list[Row]] = {
    "raw.signups": [raw_row("raw.signups", 1, 0), raw_row("raw.signups", 3, 0)],  # one is delivered again
    "raw.plan_changes": [raw_row("raw.plan_changes", 2, 0)],
    "raw.cancel_requests": [raw_row("raw.cancel_requests", 8, 2)],  # makes a cancel of hour 2 voluntary
    "raw.cancels": [raw_row("raw.cancels", 4, 1, account_id="b")],
}


@pytest.mark.journey
def test_the_facts_in_sql_equal_those_in_python(tmp_path: Path, catalog: Catalog, spark: SparkSession) -> None:
    folder = tmp_path / "membership_sql"
    shutil.copytree(FOLDER, folder)
    checked, _ = check_all(folder, lambda: spark, start=PIPELINE.start)
    assert [one.table for one in checked if one.written or one.warnings] == []  # the stored columns are current
    pipeline = pipeline_of(FOLDER, start=PIPELINE.start)
    assert (pipeline.raw[0].all_columns, len(pipeline.raw)) == (RAW[0].all_columns, 4)
    for name in FACTS:
        ours, theirs = pipeline.target(name), PIPELINE.target(name)
        assert dict(ours.columns) == dict(theirs.columns)
    lake = Lake(catalog, spark, pipeline)
    for rows in (FIRST, LATE):
        for table, landed in rows.items():
            lake.append(table, landed)
            lake.complete(table, START + 4)
        lake.catch_up()
    lake.assert_true(*FACTS)
    rows_of_cancels = lake.rows("core.cancel_fact")["core.cancel_fact"]
    assert sorted(row["churn_type"] for row in rows_of_cancels) == [
        "involuntary",
        "involuntary",
        "voluntary",
        "voluntary",
    ]
    in_python = lake.engine_of(PIPELINE)
    for name in FACTS:
        found = compare(in_python, PIPELINE.target(name))
        assert (found.missing, found.extra) == (0, 0), name
        assert found.rows > 0
