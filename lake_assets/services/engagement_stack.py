"""Spark, ZooKeeper and Kafka, as children of this process, for an engagement lake: for demos and measurements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lake_assets.services.kafka import kafka
from lake_assets.services.service import all_running, free_port
from lake_assets.services.stack import spark
from lake_assets.services.zookeeper import zookeeper

if TYPE_CHECKING:
    from lake_assets.settings import Settings


@contextmanager
def lake_services(settings: Settings) -> Iterator[Settings]:
    """The settings with the addresses of the three services, which run in the home until the block ends."""
    ports = {name: free_port() for name in ("spark", "zookeeper", "kafka", "controller")}
    services = [
        spark(settings, ports["spark"]),
        zookeeper(settings.home, ports["zookeeper"]),
        kafka(settings, ports["kafka"], ports["controller"]),
    ]
    with all_running(services):
        remote = {"spark_remote": f"sc://127.0.0.1:{ports['spark']}"}
        hosts = {name: f"127.0.0.1:{ports[name]}" for name in ("zookeeper", "kafka")}
        yield settings.model_copy(update={**remote, **hosts})
