"""What others do to a target is noticed from metadata, and the next session makes it equal a full rebuild again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lake_assets.base.hours import hour_start
from lake_assets.errors import TargetRolledBack
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.model import NoSession, SessionPlan, SessionReport
from lake_assets.membership.raw import RAW
from lake_assets_tests.incremental.scenario import START, Lake, signup

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

DIM = "core.account_state_dim"
FACT = "core.signup_fact"


@pytest.fixture
def lake(catalog: Catalog, spark: SparkSession) -> Lake:
    found = Lake(catalog, spark)
    found.append("raw.signups", [signup(n, n, account_id=f"a{n}") for n in range(5)])
    complete(found, 4)
    found.catch_up("signup_fact")
    return found


def complete(lake: Lake, hour: int) -> None:
    for raw in RAW:
        lake.complete(raw.table, START + hour)


def problem(lake: Lake, name: str) -> str:
    found = lake.engine.problem(lake.target(name))
    return found.problem if found else ""


def repaired(lake: Lake, name: str) -> list[int]:
    """Repair a target; the hours that were built, counted from the start."""
    report = lake.engine.repair(lake.target(name))
    assert isinstance(report, SessionReport), report
    assert problem(lake, name) == ""
    return [hour - START for hour in report.hours_built]


def built(lake: Lake, name: str) -> set[int]:
    """The hours that the sessions which are due have built, counted from the start."""
    return {hour - START for report in lake.catch_up(lake.target(name).name) for hour in report.hours_built}


def test_rows_that_others_delete_change_or_append_are_healed_by_the_next_session(
    lake: Lake, spark: SparkSession
) -> None:
    lake.catch_up("plan_fact", "cancel_request_fact", "cancel_fact", "account_state_dim")
    lake.compact(FACT)
    assert isinstance(lake.run(FACT), NoSession)

    spark.sql(f"DELETE FROM lake.{FACT} WHERE signup_id = 's02-2'")
    spark.sql(f"UPDATE lake.{FACT} SET monthly_price = 1 WHERE signup_id = 's03-3'")
    assert problem(lake, FACT) == ""
    planned = lake.engine.decide(lake.target(FACT))
    assert isinstance(planned, SessionPlan)
    assert [hour - START for hour in planned.hour_numbers] == [2, 3]
    assert f"of {FACT}, which no session made" in planned.reason
    lake.append("raw.signups", [signup(7, 1, account_id="a7")])
    assert built(lake, FACT) == {1, 2, 3}
    assert isinstance(lake.engine.repair(lake.target(FACT)), NoSession)
    lake.assert_true("signup_fact")
    lake.catch_up("account_state_dim")

    # Rows by hand, of hours that no session may build, as well: these go.
    rows = iceberg.load(lake.catalog, DIM).scan(limit=1).to_arrow()
    for hour in (-30, 3, 4000):
        moved = pa.array([hour_start(START + hour)], pa.timestamp("us", "UTC"))
        position = rows.schema.get_field_index("state_hour")
        lake.append(DIM, rows.set_column(position, rows.schema.field(position), moved))
    assert 3 in built(lake, DIM)
    lake.assert_true("signup_fact", "account_state_dim")
    assert isinstance(lake.run(DIM), NoSession)


def test_a_rollback_is_noticed_and_repaired_also_if_its_snapshots_have_expired(lake: Lake) -> None:
    first = lake.main(FACT)
    assert first is not None
    lake.append("raw.signups", [signup(8, 2, account_id="a8")])
    lake.session("signup_fact")
    lake.set_main(FACT, first)
    with pytest.raises(TargetRolledBack, match="lake repair core"):
        lake.run(FACT)
    assert repaired(lake, FACT) == [2]
    lake.assert_true("signup_fact")

    lake.append("raw.signups", [signup(9, 3, account_id="a9")])
    lake.catch_up("signup_fact")
    lake.set_main(FACT, first)
    lake.expire(FACT)
    assert "was rolled back" in problem(lake, FACT)
    assert repaired(lake, FACT) != []
    lake.assert_true("signup_fact")


def test_a_rebuild_of_some_hours_that_others_changed_leaves_the_rest_to_the_next_session(
    lake: Lake, spark: SparkSession
) -> None:
    spark.sql(f"DELETE FROM lake.{FACT} WHERE signed_up_at < timestamp'2026-01-01 02:00:00Z'")
    report = lake.engine.rebuild(lake.target(FACT), [START])
    assert isinstance(report, SessionReport)
    assert report.hours_built == (START,)
    assert built(lake, FACT) == {1}
    lake.assert_true("signup_fact")
