"""The report of whatever somebody declares, and of whatever state the tables are in: no part stops the others."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lake_assets import Pipeline, RawTable, Source, Stateless, incremental_asset
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.operations.overview import overview
from lake_assets.pages import report
from lake_assets.pages.data_path import data_path
from lake_assets.pages.report import Verdict, verdict

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame

    from lake_assets import SessionContext
    from lake_assets.settings import Settings

NOW = datetime(2026, 1, 2, tzinfo=UTC)
COLUMNS = {"order_id": "string", "amount": "double", "ordered_at": "timestamptz"}
ORDERS = RawTable("shop.orders", COLUMNS, time_column="ordered_at")


@incremental_asset(
    namespace="mart",
    mode=Stateless(),
    sources=[Source("shop.orders", time_column="ordered_at", key="order_id")],
    key="order_id",
    time_column="ordered_at",
    columns=COLUMNS,
)
def order_fact(session: SessionContext, orders: DataFrame) -> DataFrame:
    return orders


def declared(*raw: RawTable, targets: bool = True) -> Pipeline:
    return Pipeline(raw=raw, targets=(order_fact,) if targets else (), start="2026-01-01-00:00")


def reported(settings: Settings, catalog: Catalog, pipeline: Pipeline) -> tuple[Verdict, str]:
    """The verdict and the page of a pipeline; no check of `lake doctor` finds anything."""
    engine = Engine(catalog, pipeline, clock=lambda: NOW)
    found = overview(catalog, pipeline, now=NOW)
    path = data_path(settings, engine, found)
    judged = verdict([], path)
    assert [stage.name for stage in path.stages] == ["Raw tables", "Facts and dimensions"]
    assert (path.pushes, path.quarantine) == (None, None)
    return judged, report.page(found, path, judged)


def test_any_pipeline_has_a_report(bare_home: Settings, catalog: Catalog) -> None:
    Engine(catalog, declared(targets=False), clock=lambda: NOW).create_tables()
    judged, page = reported(bare_home, catalog, declared(targets=False))
    assert judged.state == "well"
    assert "<h2>Columns</h2>" not in page

    missing, _ = reported(bare_home, catalog, declared(ORDERS))
    assert [each.problem for each in missing.wrong] == ["Table shop.orders is not in the catalog."]
    assert all("`lake init`" in each.remedy for each in missing.wrong)

    Engine(catalog, declared(ORDERS), clock=lambda: NOW).create_tables()
    for pipeline in (declared(ORDERS), declared(ORDERS, targets=False), declared()):
        judged, page = reported(bare_home, catalog, pipeline)
        assert judged.state == "well"
        assert "No session yet." in page


def test_a_table_that_is_not_as_declared_does_not_hide_the_others(bare_home: Settings, catalog: Catalog) -> None:
    Engine(catalog, declared(ORDERS), clock=lambda: NOW).create_tables()
    for name, kind in (("theirs", "timestamptz"), ("texts", "string")):
        iceberg.create(catalog, f"shop.{name}", {"ordered_at": kind, "landed_at": kind}, {}, {})
    iceberg.create(catalog, "shop.bare", {"ordered_at": "timestamptz"}, {}, {})
    others = [replace(ORDERS, table=f"shop.{name}") for name in ("theirs", "bare", "texts")]

    judged, page = reported(bare_home, catalog, declared(ORDERS, *others))
    (wrong,) = judged.wrong
    assert wrong.problem == "shop.texts should have the column ordered_at (timestamptz), but has it as string."
    assert "Not known for shop.bare: it has no column <code>landed_at</code>." in page

    with iceberg.load(catalog, "mart.order_fact").transaction() as transaction:
        transaction.set_properties({iceberg.COMPLETE_THROUGH: "tomorrow"})
    judged, page = reported(bare_home, catalog, declared(ORDERS))
    (wrong,) = judged.wrong
    assert "'tomorrow', which is not an hour key" in wrong.problem
    assert "`lake doctor --repair`" in wrong.remedy
    assert "shop.orders" in page
