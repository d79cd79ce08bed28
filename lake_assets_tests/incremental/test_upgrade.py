"""A data directory of an earlier version, with its storage of Dagster, goes on with this one."""

from __future__ import annotations

import tarfile
from pathlib import Path

import boto3
import pytest
from dagster import AssetKey, DagsterInstance

from lake_assets import Pipeline
from lake_assets.connections.catalog import open_catalog, read_remembered
from lake_assets.connections.spark import open_spark
from lake_assets.incremental.engine.erasures import erasure_key
from lake_assets.incremental.engine.iceberg import load
from lake_assets.incremental.operations.health import problems
from lake_assets.landing.manifest import open_manifest, topics_of
from lake_assets.membership import PIPELINE
from lake_assets.settings import Settings, settings
from lake_assets_tests.incremental.scenario import START, Lake, signup
from lake_assets_tests.object_store import KEY, KEY_ID, on_s3

PACKED = Path(__file__).with_name("home_before.tar.xz")
SIGNUPS = Pipeline(raw=PIPELINE.raw, targets=(PIPELINE.target("signup_fact"),), start=PIPELINE.start)


@pytest.fixture
def upgraded(home: Settings, s3: str, tmp_path: Path) -> Settings:
    """The data directory at another path than it was made at, and its tables in a bucket."""
    with tarfile.open(PACKED) as packed:
        packed.extractall(tmp_path, filter="data")
    found = on_s3(home, s3)
    client = boto3.client(
        "s3", endpoint_url=s3, region_name="us-east-1", aws_access_key_id=KEY_ID, aws_secret_access_key=KEY
    )
    bucket = tmp_path / "bucket"
    for file in bucket.rglob("*"):
        if file.is_file():
            client.upload_file(str(file), "lake", file.relative_to(bucket).as_posix())
    return found


def test_a_home_of_an_earlier_version_goes_on(upgraded: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, spark = open_catalog(upgraded), open_spark(upgraded)
    lake = Lake(catalog, spark, SIGNUPS)
    assert accounts(lake) == ["a1", "a2", "a3", "a4"]
    assert {problem.level for problem in problems(lake.engine)} <= {"warning"}
    before = lake.published("core.signup_fact")
    assert len(before) == 2

    lake.append("raw.signups", [signup(5, 2, signup_id="s6", account_id="a6")])
    reports = lake.catch_up()
    spark.stop()
    # s2 was delivered twice, s5 had landed before the upgrade; nothing that was built is built again.
    assert accounts(lake) == ["a1", "a2", "a3", "a4", "a5", "a6"]
    assert [(report.rows_written, report.hours_built) for report in reports] == [(2, (START + 1, START + 2))]
    assert lake.published("core.signup_fact")[:2] == before
    sessions = lake.history("signup_fact")
    assert [session.state for session in sessions] == ["committed"] * 3

    assert read_remembered(upgraded.home) is not None
    assert len(erasure_key(upgraded)) == 64
    assert topics_of(open_manifest(upgraded)) == []
    monkeypatch.setenv("LAKE_HOME", str(upgraded.home))
    settings.cache_clear()
    assert settings().tick_seconds == 3
    settings.cache_clear()
    with DagsterInstance.from_config(str(upgraded.home / "dagster")) as instance:
        assert instance.get_materialized_partitions(AssetKey(["core", "signup_fact"])) == {"2026-01-01-00:00"}


def accounts(lake: Lake) -> list[str]:
    return sorted(load(lake.catalog, "core.signup_fact").scan().to_arrow()["account_id"].to_pylist())
