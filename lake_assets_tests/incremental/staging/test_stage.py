"""A prepared session has each valid row of its hours once, rejects the others, and leaves out hours that are equal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lake_assets.base.hours import hour_start
from lake_assets.incremental.engine.model import PlannedHour, SessionPlan
from lake_assets.incremental.engine.stage import PreparedRows, Stager
from lake_assets_tests.incremental.scenario import START, Lake, signup

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

FACT = "core.signup_fact"


def next_plan(lake: Lake) -> SessionPlan:
    decision = lake.engine.decide(lake.target("signup_fact"))
    assert isinstance(decision, SessionPlan)
    return decision


def stager(lake: Lake, *, last_built: float | None = None) -> Stager:
    return Stager(
        lake.spark,
        lake.target("signup_fact"),
        start=START,
        main=lake.main(FACT),
        complete_through=START + 3,
        last_built=last_built,
        catalog=lake.catalog,
    )


def ids(prepared: PreparedRows) -> list[str]:
    return sorted(row["signup_id"] for row in prepared.rows.collect())


def test_an_append_has_each_valid_new_row_once(catalog: Catalog, spark: SparkSession) -> None:
    lake = Lake(catalog, spark)
    again = signup(1, 3, landed_at=hour_start(START + 9))
    lake.append("raw.signups", [signup(1, 3), again, signup(2, 4), signup(3, 4, event_ts=None)])

    prepared = stager(lake).prepare(next_plan(lake))

    assert (prepared.load, prepared.hours) == ("append", (START + 3, START + 4))
    assert ids(prepared) == ["s01-3", "s02-4"]
    counts = prepared.row_counts
    assert (counts.read, counts.duplicates, counts.quarantined, counts.late) == (4, 1, 1, 1)
    assert [row["reason"] for row in prepared.quarantined_rows(9)] == ["event_ts is null"]
    assert (prepared.count_quarantined(), prepared.has_rows) == (1, True)
    assert lake.main(FACT) is None, "nothing is written yet"


def test_an_hour_is_overwritten_only_if_its_rows_change(catalog: Catalog, spark: SparkSession) -> None:
    lake = Lake(catalog, spark)
    late = hour_start(START + 9)
    lake.append("raw.signups", [signup(1, 3, landed_at=late), signup(2, 4), signup(3, 5)])
    lake.session("signup_fact")
    lake.append("raw.signups", [signup(2, 4, landed_at=late, plan="family")])
    repeated = next_plan(lake)
    prepared = stager(lake).prepare(repeated)
    assert (prepared.load, prepared.has_rows, prepared.row_counts.duplicates) == ("append", False, 1)

    lake.append("raw.signups", [signup(1, 3, plan="family")])  # it landed before the stored one, so it counts
    contested = next_plan(lake)
    hours = tuple(PlannedHour(START + hour, "") for hour in (3, 4, 5, 6))
    prepared = stager(lake, last_built=START + 6).prepare(replace(contested, hours=hours))
    assert (prepared.load, prepared.hours) == ("overwrite", (START + 3,))
    assert (prepared.unchanged, prepared.rows_unchanged) == ((START + 4, START + 5, START + 6), 2)
    assert [row["plan"] for row in prepared.rows.collect()] == ["family"]
