"""Maintenance through Dagster: a run of an asset, with figures that the UI plots."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING

import dagster as dg

from lake_assets.incremental.dagster.lake_resource import LAKE
from lake_assets.incremental.dagster.watch.maintenance_assets import erasures_asset, maintenance_asset
from lake_assets.incremental.engine.engine import utc_now
from lake_assets.incremental.engine.erasures import Erasure
from lake_assets.incremental.operations.maintain import Policy
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.scenario import START, Lake, signup

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

FIGURES = ("rows dropped", "snapshots expired", "files removed", "erasures unfinished")


def test_a_run_maintains_one_table_and_tells_its_figures(catalog: Catalog, spark: SparkSession) -> None:
    lake = Lake(catalog, spark)
    for hour in range(3):
        lake.append("raw.signups", [signup(1, hour)])
    lake.complete("raw.signups", START + 2)
    lake.session("signup_fact")
    asset = maintenance_asset(PIPELINE, "raw.signups", Policy(retain=timedelta(0), newest=1), utc_now)
    figures, _ = materialized(lake, asset)
    assert (figures["snapshots before"], figures["snapshots"]) == (3, 1)
    assert (figures["files before"], figures["files"]) == (3, 3)


def test_what_comes_late_of_somebody_erased_is_dropped_and_an_unfinished_erasure_is_told(
    catalog: Catalog, spark: SparkSession
) -> None:
    lake = Lake(catalog, spark)
    lake.append("raw.signups", [signup(1, 1)])
    heard: list[Sequence[Erasure]] = []
    asset = erasures_asset(PIPELINE, utc_now, heard.append)
    assert materialized(lake, asset) == (dict.fromkeys(FIGURES, 0), [True])

    erasures = lake.engine.erasures
    erasures.record("account", "a", "requested", erased_at=utc_now(), now=utc_now())
    figures, passed = materialized(lake, asset)
    assert (figures["rows dropped"], figures["erasures unfinished"], passed) == (1, 1, [False])
    assert lake.rows("raw.signups")["raw.signups"] == []

    erasures.record("account", "a", "done", erased_at=utc_now(), now=utc_now())
    figures, passed = materialized(lake, asset)
    assert (figures["rows dropped"], figures["erasures unfinished"], passed) == (0, 0, [True])
    assert [[erasure.state for erasure in among] for among in heard] == [["requested"], ["done"]]


def materialized(lake: Lake, asset: dg.AssetsDefinition) -> tuple[dict[str, object], list[bool]]:
    """A run of an asset: its figures, and what its checks say."""
    handed = SimpleNamespace(catalog=lambda: lake.catalog, spark_session=lake.spark)
    result = dg.materialize([asset], resources={LAKE: dg.ResourceDefinition.hardcoded_resource(handed)})
    assert result.success
    (event,) = result.asset_materializations_for_node(asset.op.name)
    checks = [evaluation.passed for evaluation in result.get_asset_check_evaluations()]
    return {name: value.value for name, value in event.metadata.items()}, checks
