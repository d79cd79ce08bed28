"""A backfill gives the same data, moves no watermark, and loses nothing that landed meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lake_assets.base.hours import hour_start
from lake_assets.demo.membership_simulator import EXAMPLE, worked_example
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.compare import row_hashes
from lake_assets.incremental.engine.model import NoSession, SessionReport
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.scenario import START, Lake, signup

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets_tests.membership.oracle import Row

FIRST, LATE, _ = worked_example(replace(EXAMPLE, accounts=150))
TABLES = [target.table for target in PIPELINE.targets]


def rebuilt(lake: Lake, name: str, *hours: int, reset: bool = False) -> list[int]:
    """Rebuild hours, counted from the start; those that were built, or came out equal."""
    report = rebuild(lake, name, *hours, reset=reset)
    return [h - START for h in sorted((*report.hours_built, *report.hours_unchanged))]


def rebuild(lake: Lake, name: str, *hours: int, reset: bool = False) -> SessionReport:
    report = lake.engine.rebuild(lake.target(name), [START + h for h in hours], reset=reset)
    assert isinstance(report, SessionReport)
    assert report.plan.kind == "rebuild"
    return report


@pytest.mark.journey
def test_any_hours_rebuilt_are_as_before_and_what_landed_meanwhile_comes_once(
    catalog: Catalog, spark: SparkSession
) -> None:
    lake = Lake(catalog, spark)
    lake.land(FIRST)
    lake.catch_up()
    lake.land(LATE)
    rows, states = lake.rows(*TABLES), {t: lake.state(t) for t in TABLES}

    assert rebuilt(lake, "signup_fact", 1, 3) == [1, 3]
    assert rebuilt(lake, "signup_fact", 1, 3) == [1, 3]  # the same hours once more are another session
    assert rebuilt(lake, "cancel_fact", 2, 4, 9) == [2, 4]  # 9 is beyond complete-through
    assert rebuilt(lake, "account_state_dim", 3) == [3, 4, 5]  # each hour hangs on the one before
    assert isinstance(lake.engine.rebuild(lake.target("cancel_fact"), [START + 9]), NoSession)
    assert lake.rows(*TABLES) == rows
    for table, before in states.items():
        after = lake.state(table)
        assert (after.watermarks, after.committed) == (before.watermarks, before.committed)

    lake.catch_up()
    lake.assert_true()


@pytest.mark.journey
def test_a_rebuild_before_any_session_leaves_the_other_hours_to_the_next(catalog: Catalog, spark: SparkSession) -> None:
    lake = Lake(catalog, spark)
    lake.land(FIRST)
    assert rebuilt(lake, "signup_fact", 2, 4) == [2, 4]
    state = lake.state("signup_fact")
    assert state.watermarks["raw.signups"].snapshot_id == lake.main("raw.signups")
    assert state.committed.pending == {START + h for h in (0, 1, 3, 5)}
    lake.catch_up("signup_fact", "plan_fact", "cancel_request_fact")
    assert rebuilt(lake, "cancel_fact", 3) == [3]
    lake.catch_up("cancel_fact")
    assert rebuilt(lake, "account_state_dim", 2) == [0, 1, 2]
    assert lake.complete_through("core.account_state_dim") == 2
    assert rebuilt(lake, "account_state_dim", 4) == [3, 4]  # no hour in between may be missing
    lake.catch_up()
    lake.assert_true()
    whole = {"core.account_state_daily": None}  # its day is not complete
    assert {t: lake.complete_through(t) for t in TABLES} == dict.fromkeys(TABLES, 5) | whole


def test_a_replaced_source_is_read_again_by_itself(catalog: Catalog, spark: SparkSession) -> None:
    lake = Lake(catalog, spark)
    lake.land(FIRST)
    lake.catch_up("signup_fact")
    catalog.drop_table("raw.signups")
    iceberg.create_raw(catalog, PIPELINE.raw[0])
    lake.land(replace(LATE, rows={**LATE.rows, "raw.signups": FIRST.rows["raw.signups"].slice(20)}), ["raw.signups"])
    report = lake.session("signup_fact")
    assert report.plan.load == "overwrite"
    assert "was replaced" in report.plan.reason
    lake.catch_up("signup_fact")
    lake.assert_true("signup_fact")
    rebuilt(lake, "signup_fact", 3, reset=True)
    lake.catch_up("signup_fact")
    lake.assert_true("signup_fact")
    assert isinstance(lake.run("signup_fact"), NoSession)


def test_hours_that_come_out_equal_are_left_as_they_are_and_a_damaged_one_is_published(
    catalog: Catalog, spark: SparkSession
) -> None:
    lake = Lake(catalog, spark)
    lake.land(FIRST)
    lake.catch_up()
    for name in ("signup_fact", "account_state_dim"):
        files, rows = files_of(lake, name), lake.rows(f"core.{name}")
        report = rebuild(lake, name, *range(6))
        assert (report.hours_built, report.hours_unchanged) == ((), tuple(range(START, START + 6)))
        assert report.rows_written == 0
        assert all(audit.passed for audit in report.audits if audit.blocking)
        assert report.published_snapshot_id is None
        assert files_of(lake, name) == files

        time = lake.target(name).time_column
        damaged = f"{time} >= timestamp'2026-01-01 03:00:00Z' and {time} < timestamp'2026-01-01 04:00:00Z'"
        spark.sql(f"UPDATE lake.core.{name} SET monthly_price = 0 WHERE {damaged}")
        last = lake.history(name)[-1]
        assert last.unchanged == report.hours_unchanged
        report = rebuild(lake, name, *range(6))
        assert report.hours_built == (START + 3,)
        assert lake.rows(f"core.{name}") == rows
    lake.assert_true()


def test_a_value_that_moves_to_another_column_is_a_change(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("a", None), (None, "a"), ("a", "a"), (None, None)], "x string, y string")
    assert all(len(set(column)) == 4 for column in zip(*rows.select(*row_hashes(["x", "y"])).collect(), strict=True))


@pytest.mark.journey
def test_a_late_row_that_changes_nothing_downstream_wakes_nobody(catalog: Catalog, spark: SparkSession) -> None:
    lake = Lake(catalog, spark)
    lake.land(FIRST)
    lake.catch_up()
    files = files_of(lake, "account_state_dim")
    # A plan change of a stranger: the fact gets a row, one hour of the dimension is recomputed, and stays as it was.
    lake.append("raw.plan_changes", [change_of_a_stranger()])
    built = {r.plan.process: (r.hours_built, r.hours_unchanged) for r in lake.catch_up()}
    assert built["core.plan_fact"] == ((START + 2,), ())
    assert built["core.account_state_dim"] == ((), (START + 2,))
    assert files_of(lake, "account_state_dim") == files
    lake.assert_true()


def files_of(lake: Lake, name: str) -> set[str]:
    """The data files of a target."""
    return {task.file.file_path for task in iceberg.load(lake.catalog, f"core.{name}").scan().plan_files()}


def change_of_a_stranger() -> Row:
    row = signup(9, 2, account_id="nobody", landed_at=hour_start(START + 5))
    return {**row, "change_id": row["signup_id"]}
