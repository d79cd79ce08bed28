"""The resources of a code location, by their keys, and the run launcher.

The daemon and the webserver load this module, too, so it imports no Spark.
"""

from __future__ import annotations

from typing import Any

import dagster as dg
from dagster_shared.serdes import deserialize_value

from lake_assets.base.extras import installed
from lake_assets.connections import dagster as private
from lake_assets.settings import Settings


def lake_resources(chosen: Settings | None = None, **fields: str) -> dict[str, Any]:
    """Return the resources of a code location by their keys, which all begin with `lake_assets`.

    Of each engagement lake there is a `DeltaTableResource` for each table that assets take as input, such as
    `lake_assets_LAKE_notification`, and for all lakes the I/O manager `lake_assets_delta_io_manager`.

    Nothing is opened before it is used; a session without rows needs no Spark.

    Args:
        chosen: The settings; Dagster does not show them. None for those of this process, with the fields.
        fields: `home`, `catalog_uri`, `warehouse`, `spark_remote`, `kafka` and `zookeeper`, as texts or as
            `dagster.EnvVar`, which Dagster reads in each process. The others are those of this process.
    """
    from lake_assets.engagement.dagster.graph import EngagementResource, delta_resources
    from lake_assets.incremental.dagster.lake_resource import LAKE, LakeResource
    from lake_assets.serving.dagster import ServingResource

    kinds: dict[str, Any] = {
        LAKE: LakeResource,
        f"{LAKE}_engagement": EngagementResource,
        f"{LAKE}_serving": ServingResource,
    }
    if installed("landing"):
        from lake_assets.landing.dagster import LandingResource

        kinds[f"{LAKE}_landing"] = LandingResource
    found = {key: kind(**fields) if chosen is None else kind.of(chosen) for key, kind in kinds.items()}
    here = {name: value.get_value() if isinstance(value, dg.EnvVar) else value for name, value in fields.items()}
    known = chosen or EngagementResource(**here).settings()
    return {**found, **delta_resources(known)}


class WatchedRunLauncher(dg.DefaultRunLauncher):
    """Launches runs as children of the code server, and asks it whether they are still running.

    The code server reports a child that died. With Dagster's own launcher, runs that die together with the server (for
    example because the machine went down) count as started forever and occupy their pools. Here `run_monitoring` asks
    the server that started a run. If the server is gone, or does not know the run, the run has failed. With a version
    of Dagster that is not known, such runs count as with Dagster's own launcher.
    """

    @property
    def supports_check_run_worker_health(self) -> bool:
        try:
            return None not in (private.WorkerStatus, private.CanCancelExecutionResult)
        except private.Moved:
            return False

    def check_run_worker_health(self, run: dg.DagsterRun) -> private.CheckRunHealthResult:
        from lake_assets.connections.dagster import (
            CanCancelExecutionRequest,
            CanCancelExecutionResult,
            CheckRunHealthResult,
            DagsterUserCodeUnreachableError,
            WorkerStatus,
        )

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
