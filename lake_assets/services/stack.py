"""The services that run together: all services of a machine, and those of an engagement lake as child processes.

To add a service, write a function that returns its `Service`, and add it to `services_of`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lake_assets.base.extras import installed
from lake_assets.connections.addresses import create_spark_token, spark_address
from lake_assets.services.dagster_services import code_server, daemon, webserver
from lake_assets.services.kafka import kafka
from lake_assets.services.landing.processes import landing_processes
from lake_assets.services.service import Service, all_running, free_port
from lake_assets.services.spark import spark
from lake_assets.services.zookeeper import zookeeper

if TYPE_CHECKING:
    from lake_assets.settings import Settings

PORT_NAMES = ("spark", "zookeeper", "kafka", "kafka-controller", "code", "webserver")
"""Names of the ports that `services_of` takes."""


def services_of(settings: Settings, ports: Mapping[str, int]) -> list[Service]:
    """Return the services to run on this machine.

    Spark, ZooKeeper or Kafka is left out if the settings have an address of it: then somebody else runs it. Kafka is
    also left out if the extra `landing` is not installed: nothing could connect to it. The processes of landing run if
    the pipeline declares feeds.

    Args:
        settings: The settings of the home.
        ports: A port for each of `PORT_NAMES`.
    """
    services = []
    if not settings.spark_remote:
        services.append(spark(settings, ports["spark"]))
    if not settings.zookeeper:
        services.append(zookeeper(settings.home, ports["zookeeper"]))
    if not settings.kafka and installed("landing"):
        services.append(kafka(settings, ports["kafka"], ports["kafka-controller"]))
    connected = _with_addresses(settings, ports)
    services += [
        code_server(connected, ports["code"]),
        webserver(connected, ports),
        daemon(connected, ports),
    ]
    if installed("landing"):
        services += landing_processes(connected, kafka_port=None if settings.kafka else ports["kafka"])
    return services


@contextmanager
def lake_services(settings: Settings) -> Iterator[Settings]:
    """Run Spark, ZooKeeper and Kafka as children of this process until the block ends. For demos and measurements.

    Yields:
        The settings with the addresses of the three services.
    """
    create_spark_token(settings.home)
    ports = {name: free_port() for name in PORT_NAMES}
    services = [
        spark(settings, ports["spark"]),
        zookeeper(settings.home, ports["zookeeper"]),
        kafka(settings, ports["kafka"], ports["kafka-controller"]),
    ]
    own = settings.model_copy(update={"spark_remote": None, "zookeeper": None, "kafka": None})
    with all_running(services):
        yield _with_addresses(own, ports)


def _with_addresses(settings: Settings, ports: Mapping[str, int]) -> Settings:
    addresses = {
        "spark_remote": settings.spark_remote or spark_address(settings.home, ports["spark"]),
        "zookeeper": settings.zookeeper or f"127.0.0.1:{ports['zookeeper']}",
        "kafka": settings.kafka or f"127.0.0.1:{ports['kafka']}",
    }
    # The broker that is started here takes no properties: they belong to the brokers that LAKE_KAFKA names.
    properties = settings.kafka_properties if settings.kafka else {}
    return settings.model_copy(update={**addresses, "kafka_properties": properties})
