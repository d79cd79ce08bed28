"""Maintenance with executors that are processes of their own, as on a cluster: no file keeps a deleted row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import duckdb
import pytest
from deltalake import DeltaTable

from benchmarks.cluster.standalone import EXECUTOR_CONF, master, master_address, worker
from lake_assets.connections.addresses import create_spark_token, spark_address
from lake_assets.connections.spark import MASTER, open_spark
from lake_assets.engagement.maintenance import rewrite_files
from lake_assets.engagement.tables import ENGAGEMENT
from lake_assets.services.servers import spark as connect_server
from lake_assets.services.service import free_port, running
from lake_assets_tests.engagement.scenario import Traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

PATIENCE_SECONDS = 600


@pytest.fixture
def on_cluster(bare_home: Settings) -> Iterator[Settings]:
    """The home with another Spark, which has an executor beside the driver."""
    home, master_port, port = bare_home.home, free_port(), free_port()
    properties = {MASTER: master_address(master_port), **EXECUTOR_CONF}
    create_spark_token(home)
    server = connect_server(bare_home.model_copy(update={"spark_properties": properties}), port)
    with ExitStack() as stack:
        for service in (master(home, master_port), worker(home, "worker", master_port), server):
            stack.enter_context(running(replace(service, patience=PATIENCE_SECONDS)))
        yield bare_home.model_copy(update={"spark_remote": spark_address(home, port)})


@pytest.mark.cluster
@pytest.mark.timeout(3 * PATIENCE_SECONDS)
def test_d8_deletion_vectors_are_purged_by_executors(
    home: Settings, spark: SparkSession, on_cluster: Settings, kafka: str
) -> None:
    """The Spark of all tests writes the tables: the other one would take its first minute for it."""
    mail = Traffic(home, spark, kafka)
    mail.send(range(30))
    mail.run()
    mail.ask("acme", "delete", "lead 1")
    mail.run("mutation")
    location = mail.tables.location(ENGAGEMENT)
    assert stored(location) > set(mail.truth())
    other = open_spark(on_cluster)
    with pytest.raises(Exception, match="No active or default Spark session"):
        other.sql(f"REORG TABLE {mail.tables.identifier(ENGAGEMENT)} APPLY (PURGE)")
    files = set(DeltaTable(location).file_uris())
    assert rewrite_files(mail.tables, other, orgs=[], confirm=lambda: None) == ["acme"]
    other.stop()
    mail.assert_true()
    assert stored(location) == set(mail.truth())
    assert files & set(DeltaTable(location).file_uris())  # those of other orgs stay


def stored(location: str) -> set[str]:
    """The ids in the files of the present version, whatever their deletion vectors say."""
    files = DeltaTable(location).file_uris()
    return {row for (row,) in duckdb.execute("SELECT engagement_id FROM read_parquet($1)", [files]).fetchall()}
