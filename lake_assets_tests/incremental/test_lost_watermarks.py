"""Where a watermark was lost, all is read anew: an old plan that comes again is not taken for done."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lake_assets.errors import TableDamaged
from lake_assets.incremental.diagnosis.forget import forget
from lake_assets.incremental.maintenance.stored_files import bare_path
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.metadata.damaged_files import damaged_file
from lake_assets.incremental.metadata.state_tables import SESSION
from lake_assets.incremental.planning.session import SessionPlan
from lake_assets.membership.raw import RAW
from lake_assets_tests.incremental.scenario import START, Lake, signup

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession


@pytest.fixture
def lake(catalog: Catalog, spark: SparkSession) -> Lake:
    return Lake(catalog, spark)


def complete(lake: Lake, hour: int) -> None:
    for raw in RAW:
        lake.complete(raw.table, START + hour)


def test_hours_that_carry_the_state_are_built_though_the_first_session_comes_again(lake: Lake) -> None:
    lake.append("raw.signups", [signup(1, 1)])
    complete(lake, 2)
    lake.catch_up()
    first = lake.published("core.account_state_dim")
    lake.lose_watermark("account_state_dim")
    again = lake.session("account_state_dim")
    assert again.status == "committed"
    assert again.plan.session_id not in first
    assert again.hours_built == again.plan.hour_numbers
    complete(lake, 4)  # nobody does anything
    lake.catch_up()
    lake.assert_true()
    lake.append("raw.signups", [signup(2, 6, account_id="b")])
    complete(lake, 6)
    lake.catch_up()
    lake.assert_true()


def test_rows_that_a_source_has_no_more_go_though_the_session_before_them_comes_again(lake: Lake) -> None:
    lake.append("raw.signups", [signup(1, 1), signup(2, 2)])
    complete(lake, 2)
    lake.session("signup_fact")
    before = lake.main("raw.signups")
    assert before is not None
    lake.append("raw.signups", [signup(3, 1, account_id="c")])
    lake.session("signup_fact")
    lake.set_main("raw.signups", before)
    lake.lose_watermark("signup_fact")
    lake.catch_up("signup_fact")
    lake.assert_true("signup_fact")


def test_an_hour_whose_rows_were_all_deleted_is_emptied(lake: Lake, spark: SparkSession) -> None:
    lake.append("raw.signups", [signup(1, 1), signup(2, 2)])
    complete(lake, 2)
    lake.session("signup_fact")
    spark.sql("DELETE FROM lake.raw.signups WHERE event_ts >= timestamp'2026-01-01 02:00:00Z'")
    lake.lose_watermark("signup_fact")
    assert lake.session("signup_fact").hours_built == (START + 2,)
    lake.assert_true("signup_fact")


def test_what_is_decided_again_and_again_has_one_id(lake: Lake) -> None:
    lake.append("raw.signups", [signup(1, 1)])
    complete(lake, 1)
    lake.session("signup_fact")
    lake.lose_watermark("signup_fact")
    target = lake.target("signup_fact")
    found, repeated = (lake.engine.decide(target) for _ in range(2))
    assert isinstance(found, SessionPlan)
    assert found == repeated
    assert not publish.is_published(tables.load(lake.catalog, target.table), found.session_id)


def test_a_process_that_a_damaged_log_made_forget_doubles_no_row(lake: Lake) -> None:
    lake.append("raw.signups", [signup(1, 1), signup(2, 2)])
    complete(lake, 2)
    lake.session("signup_fact")
    lake.append("raw.signups", [signup(3, 2, account_id="c")])
    for path in tables.load(lake.catalog, SESSION).inspect.files()["file_path"].to_pylist():
        Path(bare_path(path)).write_bytes(b"")
    with pytest.raises(TableDamaged, match="forgets the sessions"):
        lake.run("signup_fact")
    damaged = damaged_file(lake.catalog, SESSION)
    assert damaged is not None
    forget(lake.catalog, SESSION, damaged)
    lake.catch_up("signup_fact")
    lake.assert_true("signup_fact")
