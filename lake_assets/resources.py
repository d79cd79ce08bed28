"""What Dagster is handed: an Iceberg catalog, a Spark session, where the engagement lakes are, served tables; and a run
launcher that notices when a run has died.

Domain objects, no Dagster contexts. The daemon and the webserver load this module too, so it imports no Spark.
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
from lake_assets.connections.catalog import open_catalog
from lake_assets.engagement.model.tables import open_tables
from lake_assets.settings import Settings, settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.engagement.model.lake import EngagementLake
    from lake_assets.engagement.model.tables import LakeTables
    from lake_assets.landing.landing_service import LandingService
    from lake_assets.serving.served_tables import Serving


class IcebergResource(dg.ConfigurableResource[Any]):
    """Hands out the pyiceberg catalog `lake`, as the settings of this process name it."""

    def catalog(self) -> Catalog:
        """One catalog per process: opening one costs a connection and a look at its schema, at every tick."""
        return _catalog()


class LandingResource(dg.ConfigurableResource[Any]):
    """Hands out landing as the settings of this process name it; `ServiceError` when no Kafka runs."""

    def service(self) -> LandingService:
        """One for each call: what it says of Kafka and the manifest is of now."""
        from lake_assets.incremental.execution.engine import utc_now
        from lake_assets.incremental.from_settings import open_pipeline
        from lake_assets.landing.landing_service import LandingService

        found = settings()
        return LandingService(found, required(kafka_address(found), "Kafka"), _catalog(), open_pipeline(found), utc_now)


@lru_cache(maxsize=1)
def _catalog() -> Catalog:
    return open_catalog(settings())


class ServingResource(dg.ConfigurableResource[Any]):
    """Hands out the served tables, for the length of a block."""

    def tables(self) -> AbstractContextManager[Serving]:
        """`ServiceError` if no ZooKeeper is named or runs."""
        from lake_assets.incremental.execution.engine import utc_now
        from lake_assets.serving.served_tables import serving_at

        hosts = required(zookeeper_address(settings()), "ZooKeeper")
        return serving_at(hosts, settings(), clock=utc_now)


class EngagementResource(dg.ConfigurableResource[Any]):
    """Where the engagement lakes are, as the settings of this process say: tables, Kafka and ZooKeeper.

    The addresses raise `ServiceError` if the service is neither named nor runs for this home.
    """

    def tables(self, lake: EngagementLake) -> LakeTables:
        return open_tables(settings(), lake)

    def kafka(self) -> str:
        return required(kafka_address(settings()), "Kafka")

    def zookeeper(self) -> str:
        return required(zookeeper_address(settings()), "ZooKeeper")


def lake_resources(settings: Settings) -> dict[str, dg.ConfigurableResource[Any]]:
    """`iceberg`, `spark`, `engagement`, `landing` and `serving`.

    Lazy, for a session without rows needs no Spark, which takes seconds without a server.
    """
    from dagster_pyspark import LazyPySparkResource

    from lake_assets.connections.spark import session_conf

    spark = LazyPySparkResource(spark_config=session_conf(settings))
    return {
        "iceberg": IcebergResource(),
        "spark": spark,
        "engagement": EngagementResource(),
        "landing": LandingResource(),
        "serving": ServingResource(),
    }


class WatchedRunLauncher(dg.DefaultRunLauncher):
    """Launches runs as children of the code server, and asks it whether they still live.

    The code server itself reports a child that died. Dagster's launcher leaves it at that: when the server dies with
    its runs (the machine went down), they count as started for ever and hold their pools. Here `run_monitoring` asks
    the server that started a run; one that is gone, or knows nothing of the run, has lost it.
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
