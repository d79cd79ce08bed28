"""A run that has died is noticed, whoever died with it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from dagster._core.launcher.base import WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG
from pydantic import SecretStr

from lake_assets import incremental_definitions, utc_now
from lake_assets.connections.spark import session_conf
from lake_assets.errors import ServiceError
from lake_assets.resources import lake_resources
from lake_assets.services.service import free_port
from lake_assets.settings import Settings
from lake_assets_tests.incremental.clicks import CLICKS

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
    module = "lake_assets.incremental.dagster.lake_resource"
    monkeypatch.setattr(f"{module}.spark_session_from_config", opened.append)
    monkeypatch.setattr(f"{module}.require_listener", str)
    monkeypatch.setattr(f"{module}.prepare_client", repr)
    settings = Settings(
        home=tmp_path,
        spark_remote="sc://127.0.0.1:1/;token=hidden",
        catalog_uri="postgresql://me:hidden@db/lake",
        catalog_properties={"s3.secret-access-key": SecretStr("hidden")},
    )
    lake: Any = lake_resources(settings)["lake_assets"]
    assert "hidden" not in str(lake)
    lake._init_session()
    assert opened == [session_conf(settings)]
    assert opened[0]["spark.sql.catalog.lake.jdbc.password"] == "hidden"


def test_a_run_without_its_spark_fails_at_once(tmp_path: Path) -> None:
    lake: Any = lake_resources(home=str(tmp_path), spark_remote="sc://127.0.0.1:1")["lake_assets"]
    with pytest.raises(ServiceError, match="No Spark Connect server answers"):
        _ = lake.spark_session


def test_no_resource_has_a_key_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a user's `spark`, `iceberg` and `io_manager`, an `EnvVar` says where the lake is."""

    @dg.asset
    def where(spark: dg.ResourceParam[str], lake_assets: dg.ResourceParam[Any]) -> str:
        return f"{spark} beside {lake_assets.settings().home}"

    monkeypatch.setenv("SHOP_LAKE", str(tmp_path))
    users = {name: dg.ResourceDefinition.hardcoded_resource(name) for name in ("spark", "iceberg", "landing")}
    own = dg.Definitions(assets=[where], resources={**users, "io_manager": dg.mem_io_manager})
    ours = dg.Definitions(resources=lake_resources(home=dg.EnvVar("SHOP_LAKE")))
    tables = incremental_definitions(CLICKS, clock=utc_now)
    merged = dg.Definitions.merge(own, tables, ours)
    result = merged.resolve_implicit_global_asset_job_def().execute_in_process(asset_selection=[where.key])
    assert result.output_for_node("where") == f"spark beside {tmp_path}"


def test_a_run_that_no_server_is_known_to_have_started_is_left_alone() -> None:
    with dg.instance_for_test(overrides=LAUNCHER) as instance:
        run = instance.create_run_for_job(nothing, status=dg.DagsterRunStatus.STARTED)
        assert instance.run_launcher.check_run_worker_health(run).status is WorkerStatus.UNKNOWN
