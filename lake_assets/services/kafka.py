"""Kafka as a local service: one broker that is its own controller (KRaft), on the jars of `ivy-kafka.xml`."""

from __future__ import annotations

import base64
import shlex
import uuid
from typing import TYPE_CHECKING

from lake_assets.services.service import Check, Service, java

if TYPE_CHECKING:
    from pathlib import Path

    from lake_assets.settings import Settings


def kafka(settings: Settings, port: int, controller_port: int) -> Service:
    """The broker. It listens to `port` on loopback, and keeps its topics in the home through restarts."""
    folder = settings.home / "kafka"
    config, data = folder / "server.properties", folder / "data"
    program = java(str(settings.kafka_jars / "*"), heap_mb=256)
    tool = ("kafka.tools.StorageTool", "format", f"--cluster-id={_cluster_id(folder)}", "--config", str(config))
    formatting = f"test -e {shlex.quote(str(data / 'meta.properties'))} || {shlex.join((*program, *tool))}"
    return Service(
        name="kafka",
        command=("sh", "-c", f"({formatting}) && exec {shlex.join((*program, 'kafka.Kafka', str(config)))}"),
        home=settings.home,
        port=port,
        files={config: _properties(data, port, controller_port)},
        ready=has_broker(f"127.0.0.1:{port}"),
        remedy="Run `make setup`, which fetches its jars, or set LAKE_KAFKA_JARS; Java 17 or 21 must be there.",
    )


def _cluster_id(folder: Path) -> str:
    """The folder's own, always the same: a broker refuses data of another cluster."""
    return base64.urlsafe_b64encode(uuid.uuid5(uuid.NAMESPACE_URL, folder.as_uri()).bytes).decode().rstrip("=")


def _properties(data: Path, port: int, controller_port: int) -> str:
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        # Nothing expires: simulated messages bear times of the past, by which a broker would delete them.
        "log.retention.ms": "-1",
        # One broker holds all there is, also Kafka's own topics.
        "default.replication.factor": "1",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        # Local sizes: by default the cleaner alone takes half of the heap.
        "log.cleaner.dedupe.buffer.size": str(4 << 20),
        "num.network.threads": "2",
        "num.io.threads": "2",
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())


def has_broker(servers: str) -> Check:
    """Ready when a client is told of a broker that takes requests."""

    def check() -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        client = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        try:
            return bool(client.list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    return check
