"""A run that has died is noticed, whoever died with it."""

from __future__ import annotations

import json

import dagster as dg
from dagster._core.launcher.base import WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG

from lake_assets.services.service import free_port

LAUNCHER = {"run_launcher": {"module": "lake_assets.resources", "class": "WatchedRunLauncher"}}


@dg.job
def nothing() -> None: ...


def test_g18_a_run_whose_server_went_down_with_it_has_failed() -> None:
    with dg.instance_for_test(overrides=LAUNCHER) as instance:
        gone = json.dumps({"host": "127.0.0.1", "port": free_port()})
        run = instance.create_run_for_job(nothing, tags={GRPC_INFO_TAG: gone}, status=dg.DagsterRunStatus.STARTED)
        found = instance.run_launcher.check_run_worker_health(run)
        assert (found.status, found.msg) == (WorkerStatus.FAILED, "The code server that started the run is gone.")


def test_a_run_that_no_server_is_known_to_have_started_is_left_alone() -> None:
    with dg.instance_for_test(overrides=LAUNCHER) as instance:
        run = instance.create_run_for_job(nothing, status=dg.DagsterRunStatus.STARTED)
        assert instance.run_launcher.check_run_worker_health(run).status is WorkerStatus.UNKNOWN
