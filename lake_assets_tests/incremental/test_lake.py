"""`Lake`: what a notebook or another scheduler does with a pipeline, on given parts or on those of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.base.hours import hour_key
from lake_assets.errors import ConfigurationError, InvalidHourKey, TargetGone, UsageError
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.model import NoSession, SessionPlan
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.scenario import START, landed, signup
from lake_assets_tests.incremental.scenario import Lake as Scenario

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

SIGNUPS = Pipeline(raw=PIPELINE.raw[:1], targets=(PIPELINE.target("signup_fact"),), start=PIPELINE.start)
HOUR = hour_key(START + 1)


def test_metadata_is_read_without_spark(bare_home: Settings, catalog: Catalog) -> None:
    lake = Lake.open(SIGNUPS, settings=bare_home)
    assert "core.signup_fact" in lake.create_tables()
    assert lake.create_tables() == []
    assert isinstance(lake.plan("signup_fact"), NoSession)
    assert (lake.sessions("signup_fact"), lake.why("core.signup_fact", HOUR)) == ([], [])
    landed(catalog, "a", "b")
    planned = lake.plan("signup_fact")
    assert isinstance(planned, SessionPlan)
    assert [hour.hour for hour in planned.hours] == [START + 1]
    with pytest.raises(UsageError, match="There is no target 'signups'"):
        lake.plan("signups")
    with pytest.raises(InvalidHourKey):
        lake.why("signup_fact", "2026-01-01")


def test_a_catalog_of_its_own_gets_no_spark_of_the_settings(bare_home: Settings, catalog: Catalog) -> None:
    landed(catalog, "a")
    with Lake.open(SIGNUPS, catalog=catalog, settings=bare_home) as lake:
        assert lake.catalog is catalog
        (outcome,) = lake.catch_up()
        assert "without a Spark session" in (outcome.failure or "")
        with pytest.raises(ConfigurationError, match="without a Spark session"):
            lake.verify()


def test_sessions_run_and_are_explained_and_verified(home: Settings, catalog: Catalog, spark: SparkSession) -> None:
    landed(catalog, "a")
    with Lake.open(SIGNUPS, settings=home) as lake:
        built, rest = lake.catch_up()
        assert built.report
        assert (built.report.hours_built, rest.report) == ((START + 1,), None)
    scenario = Scenario(catalog, spark, SIGNUPS)
    scenario.append("raw.signups", [signup(7, 1), signup(8, 2)])
    given = Lake.open(SIGNUPS, catalog=catalog, spark=spark)
    late = given.catch_up("signup_fact")[0].report
    assert late
    assert late.hours_built == (START + 1, START + 2)

    first, second = given.why("signup_fact", HOUR)
    assert [first.session.plan.session_id, second.session.plan.session_id] == [
        record.plan.session_id for record in given.sessions("signup_fact")
    ]
    assert f"append {scenario.main('raw.signups')} of raw.signups" in second.reason
    assert [b.session for b in given.why("signup_fact", hour_key(START + 2))] == [second.session]

    (right,) = given.verify()
    assert (right.table, right.rows, right.equal) == ("core.signup_fact", 3, True)
    iceberg.load(catalog, "core.signup_fact").delete("signup_id = 's08-2'")
    (wrong,) = given.verify("signup_fact")
    assert (wrong.rows, wrong.missing, wrong.extra, wrong.equal) == (2, 1, 0, False)
    catalog.drop_table("core.signup_fact")
    (gone,) = given.verify()
    assert (gone.equal, "core.signup_fact" in (gone.failure or "")) == (False, True)
    with pytest.raises(TargetGone):
        given.verify("signup_fact")
    given.close()
    assert spark.range(1).count() == 1


def test_a_given_session_must_know_the_catalog(spark: SparkSession, catalog: Catalog) -> None:
    spark.conf.unset("spark.sql.catalog.lake")
    with pytest.raises(ConfigurationError, match="no catalog 'lake'"):
        Lake.open(SIGNUPS, catalog=catalog, spark=spark)
