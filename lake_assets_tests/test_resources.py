"""A run that has died is noticed, whoever died with it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from dagster._core.launcher.base import WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG
from pydantic import SecretStr

from lake_assets.connections.spark import session_conf
from lake_assets.errors import ServiceError
from lake_assets.resources import lake_resources
from lake_assets.services.service import free_port
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

LAUNCHER = {"run_launcher": {"module": "lake_assets.resources", "class": "WatchedRunLauncher"}}


@dg.job
def nothing() -> None: ...


def test_g18_a_run_whose_server_went_down_with_it_has_failed() -> None:
    with dg.instance_for_test(overrides=LAUNCHER) as instance:
        gone = json.dumps({"host": "127.0.0.1", "port": free_port()})
        run = instance.create_run_for_job(nothing, tags={GRPC_INFO_TAG: gone}, status=dg.DagsterRunStatus.STARTED)
        found = instance.run_launcher.check_run_worker_health(run)
        assert (found.status, found.msg) == (WorkerStatus.FAILED, "The code server that started the run is gone.")


def test_secrets_are_not_in_the_configuration_that_the_ui_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[dict[str, str]] = []
    module = "lake_assets.incremental.dagster.spark_resource"
    monkeypatch.setattr(f"{module}.spark_session_from_config", opened.append)
    monkeypatch.setattr(f"{module}.require_listener", str)
    monkeypatch.setattr(f"{module}.prepare_client", repr)
    settings = Settings(
        home=tmp_path,
        spark_remote="sc://127.0.0.1:1/;token=hidden",
        catalog_uri="postgresql://me:hidden@db/lake",
        catalog_properties={"s3.secret-access-key": SecretStr("hidden")},
    )
    spark: Any = lake_resources(settings)["spark"]
    assert spark.spark_config["spark.sql.catalog.lake.uri"] == "jdbc:postgresql://db/lake"
    assert "hidden" not in str(spark.spark_config)
    spark._init_session()
    assert opened == [session_conf(settings)]
    assert opened[0]["spark.sql.catalog.lake.jdbc.password"] == "hidden"


def test_a_run_without_its_spark_fails_at_once(tmp_path: Path) -> None:
    spark: Any = lake_resources(Settings(home=tmp_path, spark_remote="sc://127.0.0.1:1"))["spark"]
    with pytest.raises(ServiceError, match="No Spark Connect server answers"):
        _ = spark.spark_session


def test_a_run_that_no_server_is_known_to_have_started_is_left_alone() -> None:
    with dg.instance_for_test(overrides=LAUNCHER) as instance:
        run = instance.create_run_for_job(nothing, status=dg.DagsterRunStatus.STARTED)
        assert instance.run_launcher.check_run_worker_health(run).status is WorkerStatus.UNKNOWN
