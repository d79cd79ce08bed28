"""The servers that a lake beyond one machine uses, and the settings that name them.

They have a data directory of their own, with a supervisor that starts each of them again when it ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.cluster import other_project
from benchmarks.cluster.postgresql import create_databases, database_address, postgresql
from benchmarks.cluster.standalone import EXECUTOR_CONF, master, master_address, worker
from lake_assets.connections.spark import MASTER
from lake_assets.services import lifecycle
from lake_assets.services.lifecycle import Report, start_services
from lake_assets.services.servers import brokers, ensemble
from lake_assets.services.service import LOOPBACK, Service, accepts, free_port, python_module
from lake_assets.settings import Settings

WORKERS = ("worker-1", "worker-2")
DATABASES = ("catalog", "landing", "dagster")
DATABASES_OF_ENGAGEMENT = ("engagement_catalog", "engagement_dagster")
BUCKET = "lake"
KEY_ID, KEY = "cluster", "cluster-key"
PATIENCE = 5
"""How many times longer than usual a server may take to become ready: many start at once."""


@dataclass(frozen=True)
class Cluster:
    """The servers. home: their data directory. lake: the data directory of the lake that uses them."""

    home: Path
    lake: Path
    ports: Mapping[str, int]
    kafka: tuple[Service, ...]
    zookeeper: tuple[Service, ...]

    @cached_property
    def services(self) -> list[Service]:
        """All servers, those first that others need."""
        home, ports = self.home, self.ports
        first = [postgresql(home, ports["postgresql"]), s3(home, ports["s3"]), master(home, ports["master"])]
        workers = [worker(home, name, ports["master"]) for name in WORKERS]
        project = other_project.code_server(home, self.lake, self.variables(), ports[other_project.NAME])
        return [*first, *workers, *self.zookeeper, *self.kafka, project]

    def variables(self, through: Mapping[str, int] | None = None) -> dict[str, str]:
        """Return the settings of a lake that uses the servers.

        Args:
            through: Name of a server → port of a proxy that leads to it.
        """
        ports = {**self.ports, **(through or {})}
        catalog, landing, dagster = (database_address(ports["postgresql"], name) for name in DATABASES)
        spark = {MASTER: master_address(ports["master"]), **EXECUTOR_CONF}
        return {
            "LAKE_HOME": str(self.lake),
            "LAKE_CODE_LOCATIONS": f"{other_project.NAME}={LOOPBACK}:{ports[other_project.NAME]}",
            "LAKE_SPARK_PROPERTIES": json.dumps(spark),
            "LAKE_CATALOG_URI": catalog,
            "LAKE_LANDING_MANIFEST_URI": landing,
            "LAKE_DAGSTER_URI": dagster,
            "LAKE_WAREHOUSE": f"s3://{BUCKET}/warehouse",
            "LAKE_SERVING_FOLDER": f"s3://{BUCKET}/serving",
            "LAKE_CATALOG__S3__ENDPOINT": f"http://{LOOPBACK}:{ports['s3']}",
            "LAKE_CATALOG__S3__ACCESS_KEY_ID": KEY_ID,
            "LAKE_CATALOG__S3__SECRET_ACCESS_KEY": KEY,
            "LAKE_KAFKA": _addresses(self.kafka),
            "LAKE_ZOOKEEPER": _addresses(self.zookeeper),
        }

    def variables_of_engagement(self) -> dict[str, str]:
        """Return the settings of a lake with Delta tables: they are in a folder that all processes share."""
        home = self.lake.with_name("engagement")
        catalog, dagster = (database_address(self.ports["postgresql"], name) for name in DATABASES_OF_ENGAGEMENT)
        return {
            **self.variables(),
            "LAKE_HOME": str(home),
            "LAKE_CODE_LOCATIONS": "",
            "LAKE_CATALOG_URI": catalog,
            "LAKE_DAGSTER_URI": dagster,
            "LAKE_WAREHOUSE": f"file://{home / 'warehouse'}",
        }


def cluster(home: Path, lake: Path) -> Cluster:
    """Return servers on free ports, with data in the home, for the lake of another data directory."""
    ports = {name: free_port() for name in ("postgresql", "s3", "master", other_project.NAME)}
    return Cluster(home, lake, ports, tuple(brokers(Settings(home=home))), tuple(ensemble(home)))


def s3(home: Path, port: int) -> Service:
    """Return the server of S3. It keeps all objects in memory, so they end with it."""
    return Service(
        name="s3",
        command=python_module("moto.server", "-H", LOOPBACK, "-p", str(port)),
        home=home,
        port=port,
        ready=accepts(port),
    )


@contextmanager
def serving(found: Cluster, report: Report) -> Iterator[Cluster]:
    """Run the servers until the block ends, with empty databases and an empty bucket."""
    owner = Settings(home=found.home)
    try:
        start_services(found.services, found.home, report=report, patience=PATIENCE)
        create_databases(found.ports["postgresql"], (*DATABASES, *DATABASES_OF_ENGAGEMENT))
        _create_bucket(found.ports["s3"])
        yield found
    finally:
        lifecycle.down(owner, report=report)


def _create_bucket(port: int) -> None:
    import boto3

    keys = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": KEY}
    client = boto3.client("s3", endpoint_url=f"http://{LOOPBACK}:{port}", region_name="us-east-1", **keys)
    client.create_bucket(Bucket=BUCKET)


def _addresses(services: tuple[Service, ...]) -> str:
    return ",".join(f"{LOOPBACK}:{service.port}" for service in services)
