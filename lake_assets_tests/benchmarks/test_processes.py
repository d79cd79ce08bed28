"""Processor time is counted for the service whose command line a process has, also under older revisions."""

from __future__ import annotations

import pytest

from benchmarks.processes import OTHERS, service_of


@pytest.mark.parametrize(
    ("command", "service"),
    [
        ("python -m dagster api grpc --port 4000", "code server"),
        ("python -m lake_assets.dagster_processes.dagster.code_server --port 4000", "code server"),
        ("python -m dagster._daemon run", "daemon"),
        ("python -m lake_assets.dagster_processes.dagster.daemon --workspace workspace.yaml", "daemon"),
        ("python -m lake_assets.services.webserver --port 3000", "web server"),
        ("java -cp jars/kafka-clients.jar org.apache.spark.deploy.SparkSubmit", "Spark"),
        ("java -cp kafka-jars/* kafka.Kafka server.properties", "Kafka and ZooKeeper"),
        ("python -m lake_assets.services.supervisor", OTHERS),
    ],
)
def test_a_command_line_tells_the_service(command: str, service: str) -> None:
    assert service_of(command) == service
