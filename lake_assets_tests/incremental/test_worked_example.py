"""The worked example of the guide comes out exactly: session rows, published partitions, data."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lake_assets.incremental.engine import Engine
from lake_assets.incremental.hours import parse_hour
from lake_assets.incremental.session import SessionReport
from lake_assets.membership import PIPELINE
from lake_assets.membership.simulator import land, worked_example

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

START = PIPELINE.start_hour


def _engine(catalog: Catalog, spark: SparkSession) -> Engine:
    return Engine(catalog, PIPELINE, clock=lambda: datetime(2026, 1, 2, tzinfo=UTC), spark=lambda: spark)


def _catch_up(engine: Engine) -> dict[str, list[SessionReport]]:
    reports: dict[str, list[SessionReport]] = {}
    for target in PIPELINE.in_order():
        while isinstance(report := engine.run(target), SessionReport):
            reports.setdefault(target.name, []).append(report)
    return reports


def _hours(report: SessionReport) -> list[int]:
    return [h - START for h in report.hours_built]


def test_only_the_hours_that_changed_are_rebuilt(catalog: Catalog, spark: SparkSession) -> None:
    engine = _engine(catalog, spark)
    engine.create_tables()
    first, late, rest = worked_example()
    land(spark, catalog, first)
    loaded = _catch_up(engine)
    assert {name: [_hours(r) for r in reports] for name, reports in loaded.items()}["account_state_dim"] == [
        list(range(6))
    ]

    land(spark, catalog, late)
    reports = _catch_up(engine)
    assert {name: [(r.plan.load, _hours(r)) for r in found] for name, found in reports.items()} == {
        "signup_fact": [("append", [2, 3, 6])],
        "plan_fact": [("append", [2, 3, 6])],
        "cancel_request_fact": [("none", [])],
        "cancel_fact": [("overwrite", [5, 6, 7])],
        "account_state_dim": [("overwrite", [2, 3, 4, 5, 6])],
    }
    dimension = engine.store.state("core.account_state_dim")
    assert dimension.committed.pending == {START + 7}
    assert dimension.committed.complete_through == START + 6

    land(spark, catalog, rest)
    reports = _catch_up(engine)
    assert [_hours(r) for r in reports["account_state_dim"]] == [[7]]
    assert "cancel_fact" not in reports or reports["cancel_fact"][0].plan.load == "none"
    assert parse_hour("2026-01-01-07:00") == engine.store.state("core.account_state_dim").committed.complete_through
