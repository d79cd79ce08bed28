"""The services that run together: all services of a machine, and those of an engagement lake as child processes.

To add a service, write a function that returns its `Service`, and add it to `services_of`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lake_assets.base.extras import installed
from lake_assets.connections.addresses import create_spark_token, spark_address
from lake_assets.errors import LakeError
from lake_assets.services.dagster_services import code_server, daemon, dagster_environment, webserver
from lake_assets.services.kafka import kafka
from lake_assets.services.memory.budget import STREAMS_OF
from lake_assets.services.service import Service, all_running, free_port, log_says, python_module
from lake_assets.services.spark import spark
from lake_assets.services.zookeeper import zookeeper
from lake_assets.settings import pipeline_names

if TYPE_CHECKING:
    from lake_assets.settings import Settings

PORT_NAMES = ("spark", "zookeeper", "kafka", "kafka-controller", "code", "webserver")
"""Names of the ports that `services_of` takes."""

ZONES = ("a", "b")

LANDING_STARTED = "Landing has started"
"""Begins a line that each process of landing prints when it is connected."""

SIMULATED = "lake_assets.membership:"
"""Begins the names of the demo's pipeline. Heartbeats of now would complete its simulated hours too early."""


def services_of(settings: Settings, ports: Mapping[str, int]) -> list[Service]:
    """Return the services to run on this machine: those that what is declared needs.

    Spark, ZooKeeper or Kafka is left out if the settings have an address of it: then somebody else runs it. ZooKeeper
    is there for engagement lakes and served tables, Kafka for engagement lakes and feeds, and the processes of landing
    for feeds. Kafka is also left out if the extra `landing` is not installed: nothing could connect to it.

    Args:
        settings: The settings of the home.
        ports: A port for each of `PORT_NAMES`.
    """
    parts = _declared_parts(settings)
    services = []
    if not settings.spark_remote:
        services.append(spark(settings, ports["spark"]))
    if not settings.zookeeper and parts & {"engagement", "serving"}:
        services.append(zookeeper(settings.home, ports["zookeeper"]))
    if not settings.kafka and parts & {"engagement", "landing"} and installed("landing"):
        services.append(kafka(settings, ports["kafka"], ports["kafka-controller"]))
    connected = _with_addresses(settings, ports)
    services += [
        code_server(connected, ports["code"]),
        webserver(connected, ports),
        daemon(connected, ports),
    ]
    if "landing" in parts and installed("landing"):
        services += landing_processes(connected, kafka_port=None if settings.kafka else ports["kafka"])
    if "engagement" in parts and installed("landing"):
        services += continuous_streams(connected, kafka_port=None if settings.kafka else ports["kafka"])
    return services


def _declared_parts(settings: Settings) -> set[str]:
    """Return which of landing, engagement and serving are declared. What cannot be read, the code server reports."""
    from lake_assets.incremental.declaration import Topic
    from lake_assets.incremental.from_settings import open_pipeline

    if any(name.startswith(SIMULATED) for name in pipeline_names(settings.pipelines)):
        return {"engagement", "serving"}
    try:
        pipeline = open_pipeline(settings)
    except LakeError:
        return {"engagement", "serving"}
    declared = {
        "landing": any(isinstance(raw.feed, Topic) for raw in pipeline.raw),
        "engagement": bool(settings.lakes),
        "serving": bool(settings.serving_groups) or any(target.served for target in pipeline.targets),
    }
    return {part for part, is_declared in declared.items() if is_declared}


def landing_processes(settings: Settings, *, kafka_port: int | None) -> list[Service]:
    """Return the processes of landing: one for each zone, and one that loads files and sends heartbeats.

    Each of them uses about 175 MB before the first message.

    Args:
        settings: With the address of Kafka.
        kafka_port: The port of the local broker, for which they wait; None if somebody else runs Kafka.
    """
    commands = {**{f"landing-{zone}": ("tail", zone) for zone in ZONES}, "landing-load": ("load",)}
    return [
        _command(settings, name, ("landing", *words), LANDING_STARTED, "the feeds of the pipeline", kafka_port)
        for name, words in commands.items()
    ]


def continuous_streams(settings: Settings, *, kafka_port: int | None) -> list[Service]:
    """Return a process for each engagement lake that is declared as continuous, with a Spark of its own.

    Args:
        settings: With the addresses of Kafka and ZooKeeper.
        kafka_port: The port of the local broker, for which they wait; None if somebody else runs Kafka.
    """
    from lake_assets.engagement.model.lakes import configured_lakes

    try:
        lakes = configured_lakes(settings)
    except LakeError:  # the code server reports it
        return []
    services = []
    for lake in lakes:
        if lake.continuous:
            name, words = f"{STREAMS_OF}{lake.name}", ("engagement", "run", lake.name)
            started = f"{lake.name} runs on"
            services.append(_command(settings, name, words, started, "the file of the lake", kafka_port))
    return services


def _command(
    settings: Settings, name: str, words: tuple[str, ...], started: str, declared: str, kafka_port: int | None
) -> Service:
    """Return a command of `lake` that runs on, as a service that reads Kafka.

    Args:
        settings: With the addresses of the other services.
        name: Of the service.
        words: Of the command.
        started: How a line of its log begins when it is ready.
        declared: What may be declared wrongly.
        kafka_port: The port that it waits for; None for none.
    """
    return Service(
        name=name,
        command=python_module("lake_assets.cli.main", *words),
        home=settings.home,
        after=kafka_port,
        environment=dagster_environment(settings),
        ready=log_says(settings.home / "logs" / f"{name}.log", started),
        remedy=f"Correct what the log names, such as LAKE_KAFKA, or {declared}.",
    )


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
