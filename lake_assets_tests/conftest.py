"""Real parts for every test: one Spark Connect server for all, and for each test a home, a catalog and a session.

The server is started by the code that `lake up` uses; homes share it, each by the configuration of its own sessions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lake_assets.local.catalog import open_catalog
from lake_assets.local.kafka import kafka as kafka_service
from lake_assets.local.service import free_port, running
from lake_assets.local.spark import open_spark
from lake_assets.local.stack import spark as spark_service
from lake_assets.local.zookeeper import zookeeper as zookeeper_service
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

QUICK_JVM = {
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"
    " -Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
}
"""Half the processor time of a test run goes to the optimizing compiler, and much of the rest to Spark's own, for code
that then runs on a few rows. So Spark interprets its expressions here; the demo has them compiled."""


@pytest.fixture(scope="session")
def spark_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running Spark Connect server."""
    server_home = tmp_path_factory.mktemp("spark-server")
    service = spark_service(Settings(home=server_home), free_port())
    with running(replace(service, environment={**service.environment, **QUICK_JVM})) as service:
        yield f"sc://127.0.0.1:{service.port}"


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running ZooKeeper server; each test takes paths of its own on it."""
    with running(zookeeper_service(tmp_path_factory.mktemp("zookeeper"), free_port())) as service:
        yield f"127.0.0.1:{service.port}"


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The bootstrap address of a running Kafka broker; each test takes topics of its own on it."""
    settings = Settings(home=tmp_path_factory.mktemp("kafka"))
    with running(kafka_service(settings, free_port(), free_port())) as service:
        yield f"127.0.0.1:{service.port}"


@pytest.fixture
def bare_home(tmp_path: Path) -> Settings:
    """The settings of a fresh, empty home, without Spark."""
    return Settings(home=tmp_path / "home")


@pytest.fixture
def home(bare_home: Settings, spark_server: str) -> Settings:
    """The settings of a fresh, empty home on the shared Spark server."""
    return bare_home.model_copy(update={"spark_remote": spark_server})


@pytest.fixture
def catalog(bare_home: Settings) -> Catalog:
    """The pyiceberg catalog of the test's home."""
    return open_catalog(bare_home)


@pytest.fixture
def spark(home: Settings) -> Iterator[SparkSession]:
    """A Spark session of its own on the test's home."""
    session = open_spark(home)
    yield session
    session.stop()
