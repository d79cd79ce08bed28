"""What others do to a target is noticed from metadata, and one repair makes the target equal a full rebuild again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lake_assets.base.hours import hour_start
from lake_assets.errors import TargetChanged, TargetRolledBack
from lake_assets.incremental.execution.catch_up import catch_up
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.planning.session import NoSession, SessionReport
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


def test_rows_that_others_delete_change_or_append_are_noticed_and_repaired(lake: Lake, spark: SparkSession) -> None:
    lake.catch_up("plan_fact", "cancel_request_fact", "cancel_fact", "account_state_dim")
    assert [problem(lake, name) for name in (FACT, DIM)] == ["", ""]
    lake.compact(FACT)
    assert problem(lake, FACT) == ""

    spark.sql(f"DELETE FROM lake.{FACT} WHERE signup_id = 's02-2'")
    spark.sql(f"UPDATE lake.{FACT} SET monthly_price = 1 WHERE signup_id = 's03-3'")
    assert "2026-01-01-02:00..2026-01-01-03:00" in problem(lake, FACT)
    # Sessions go on, and do not make anybody forget it.
    lake.append("raw.signups", [signup(7, 1, account_id="a7")])
    (committed, waiting) = catch_up(lake.engine, [lake.target(FACT)])
    assert committed.report
    assert "lake repair core.signup_fact" in (waiting.problem or "")
    assert waiting.waiting is not None
    assert "lake repair core.signup_fact" in waiting.waiting.reason
    assert "2026-01-01-02:00..2026-01-01-03:00" in problem(lake, FACT)
    assert repaired(lake, FACT) == [2, 3]
    assert isinstance(lake.engine.repair(lake.target(FACT)), NoSession)
    lake.assert_true("signup_fact")

    # Rows by hand, of hours that no session may build, as well: these go.
    rows = tables.load(lake.catalog, DIM).scan(limit=1).to_arrow()
    for hour in (-30, 3, 4000):
        moved = pa.array([hour_start(START + hour)], pa.timestamp("us", "UTC"))
        position = rows.schema.get_field_index("state_hour")
        lake.append(DIM, rows.set_column(position, rows.schema.field(position), moved))
    assert "2026-01-01-03:00" in problem(lake, DIM)
    assert repaired(lake, DIM) == [3]
    lake.catch_up("signup_fact", "account_state_dim")
    lake.assert_true("signup_fact", "account_state_dim")


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
    assert "all hours" in problem(lake, FACT)
    assert repaired(lake, FACT) != []
    lake.assert_true("signup_fact")


def test_a_rebuild_of_all_suspect_hours_is_a_repair_too(lake: Lake, spark: SparkSession) -> None:
    spark.sql(f"DELETE FROM lake.{FACT} WHERE signed_up_at < timestamp'2026-01-01 02:00:00Z'")
    for hours, suspect in (([START], TargetChanged), ([START, START + 1], type(None))):
        assert isinstance(lake.engine.rebuild(lake.target(FACT), hours), SessionReport)
        assert isinstance(lake.engine.problem(lake.target(FACT)), suspect)
    lake.assert_true("signup_fact")
