"""Maintenance through Dagster: a run of one table's asset, with figures that the UI plots."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING

import dagster as dg

from lake_assets.incremental.engine import utc_now
from lake_assets.incremental.retention import Policy
from lake_assets.incremental.upkeep.assets import maintenance_asset
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.scenario import START, Lake, signup

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession


def test_a_run_maintains_one_table_and_tells_its_figures(catalog: Catalog, spark: SparkSession) -> None:
    lake = Lake(catalog, spark)
    for hour in range(3):
        lake.append("raw.signups", [signup(1, hour)])
    lake.complete("raw.signups", START + 2)
    lake.session("signup_fact")
    asset = maintenance_asset(PIPELINE, "raw.signups", Policy(retain=timedelta(0), newest=1), utc_now)
    handed = {"iceberg": SimpleNamespace(catalog=lambda: catalog), "spark": SimpleNamespace(spark_session=spark)}

    result = dg.materialize(
        [asset], resources={name: dg.ResourceDefinition.hardcoded_resource(value) for name, value in handed.items()}
    )

    assert result.success
    (event,) = result.asset_materializations_for_node("maintenance__raw__signups")
    figures = {name: value.value for name, value in event.metadata.items()}
    assert (figures["snapshots before"], figures["snapshots"]) == (3, 1)
    assert (figures["files before"], figures["files"]) == (3, 3)
