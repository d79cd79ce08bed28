"""Dagster's resources (Iceberg catalog, Spark session, landing, served tables, engagement lakes) and its run launcher.

Resources return domain objects and take no Dagster contexts. The daemon and the webserver load this module too, so it
imports no Spark.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster._grpc.types import CanCancelExecutionRequest, CanCancelExecutionResult
from dagster_shared.serdes import deserialize_value

from lake_assets.connections.addresses import kafka_address, required, zookeeper_address
from lake_assets.connections.catalog import open_catalog, public_conf
from lake_assets.engagement.model.tables import open_tables
from lake_assets.settings import Settings, settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.engagement.model.lake import EngagementLake
    from lake_assets.engagement.model.tables import LakeTables
    from lake_assets.landing.landing_service import LandingService
    from lake_assets.serving.served_tables import Serving


class IcebergResource(dg.ConfigurableResource[Any]):
    """The pyiceberg catalog `lake`, according to the settings of this process."""

    def catalog(self) -> Catalog:
        """Return the catalog. All calls in a process return the same one, because opening one takes a connection."""
        return _catalog()


class LandingResource(dg.ConfigurableResource[Any]):
    """Landing, according to the settings of this process."""

    def service(self) -> LandingService:
        """Return a new landing service, which reads the present state of Kafka and the manifest.

        Raises:
            ServiceError: No Kafka is named, and none runs for this data directory.
        """
        from lake_assets.incremental.engine.engine import utc_now
        from lake_assets.incremental.from_settings import open_pipeline
        from lake_assets.landing.landing_service import LandingService

        found = settings()
        kafka = required(kafka_address(found), "Kafka")
        return LandingService(found, kafka, _catalog(), open_pipeline(found), utc_now)


@lru_cache(maxsize=1)
def _catalog() -> Catalog:
    return open_catalog(settings())


class ServingResource(dg.ConfigurableResource[Any]):
    """The served tables, according to the settings of this process."""

    def tables(self) -> AbstractContextManager[Serving]:
        """Return a context manager that opens the served tables.

        Raises:
            ServiceError: No ZooKeeper is named, and none runs for this data directory.
        """
        from lake_assets.incremental.engine.engine import utc_now
        from lake_assets.serving.served_tables import serving_at

        hosts = required(zookeeper_address(settings()), "ZooKeeper")
        return serving_at(hosts, settings(), clock=utc_now)


class EngagementResource(dg.ConfigurableResource[Any]):
    """The tables and services of the engagement lakes, according to the settings of this process."""

    def tables(self, lake: EngagementLake) -> LakeTables:
        """Return the tables of a lake."""
        return open_tables(settings(), lake)

    def kafka(self) -> str:
        """Return the address of Kafka.

        Raises:
            ServiceError: No Kafka is named, and none runs for this data directory.
        """
        return required(kafka_address(settings()), "Kafka")

    def zookeeper(self) -> str:
        """Return the address of ZooKeeper.

        Raises:
            ServiceError: No ZooKeeper is named, and none runs for this data directory.
        """
        return required(zookeeper_address(settings()), "ZooKeeper")


def lake_resources(chosen: Settings | None = None) -> dict[str, dg.ConfigurableResource[Any]]:
    """Return the resources by name: `iceberg`, `spark`, `engagement`, `landing` and `serving`.

    The Spark session is opened on first use, because a session without rows needs none.

    Args:
        chosen: Configures Spark. None for the settings of this process.
    """
    return {
        "iceberg": IcebergResource(),
        "spark": _spark_resource(chosen or settings()),
        "engagement": EngagementResource(),
        "landing": LandingResource(),
        "serving": ServingResource(),
    }


def _spark_resource(found: Settings) -> dg.ConfigurableResource[Any]:
    """Return the Spark session. Dagster's UI shows the configuration of a resource, so that one has no secrets."""
    from lake_assets.connections.spark import session_conf
    from lake_assets.incremental.dagster.spark_resource import spark_resource

    conf = session_conf(found)
    return spark_resource(conf, shown=public_conf(conf, found))


class WatchedRunLauncher(dg.DefaultRunLauncher):
    """Launches runs as children of the code server, and asks it whether they are still running.

    The code server reports a child that died. With Dagster's own launcher, runs that die together with the server (for
    example because the machine went down) count as started forever and occupy their pools. Here `run_monitoring` asks
    the server that started a run. If the server is gone, or does not know the run, the run has failed.
    """

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        client = self._get_grpc_client_for_termination(run.run_id)  # type: ignore[no-untyped-call]
        if client is None:
            return CheckRunHealthResult(WorkerStatus.UNKNOWN, "No code server is recorded as having started the run.")
        try:
            answer = client.can_cancel_execution(CanCancelExecutionRequest(run_id=run.run_id))
        except DagsterUserCodeUnreachableError:
            return CheckRunHealthResult(WorkerStatus.FAILED, "The code server that started the run is gone.")
        if deserialize_value(answer, CanCancelExecutionResult).can_cancel:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.FAILED, "The code server does not have the run: it was restarted.")
