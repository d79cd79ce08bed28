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

HEAP_MB = 256
CLEANER_BYTES = 4 << 20
METADATA_SECONDS = 1


def kafka(settings: Settings, port: int, controller_port: int) -> Service:
    """Return the broker. It keeps its topics in the home through restarts.

    Args:
        settings: The home, and the folder of Kafka's jars.
        port: Port for clients, on loopback.
        controller_port: Port for the controller, on loopback.
    """
    folder = settings.home / "kafka"
    config = folder / "server.properties"
    data = folder / "data"
    program = java(str(settings.kafka_jars / "*"), heap_mb=HEAP_MB)
    storage_format = (
        "kafka.tools.StorageTool",
        "format",
        f"--cluster-id={_cluster_id(folder)}",
        "--config",
        str(config),
    )
    is_formatted = f"test -e {shlex.quote(str(data / 'meta.properties'))}"
    format_once = f"({is_formatted} || {shlex.join((*program, *storage_format))})"
    serve = f"exec {shlex.join((*program, 'kafka.Kafka', str(config)))}"
    return Service(
        name="kafka",
        command=("sh", "-c", f"{format_once} && {serve}"),
        home=settings.home,
        port=port,
        files={config: _properties(data, port, controller_port)},
        ready=has_broker(f"127.0.0.1:{port}"),
        remedy="Run `lake setup`, which downloads its jars, or set LAKE_KAFKA_JARS. Kafka needs Java 17 or 21.",
    )


def _cluster_id(folder: Path) -> str:
    """Return the id of the folder's cluster. It is always the same: a broker refuses data of another cluster."""
    number = uuid.uuid5(uuid.NAMESPACE_URL, folder.as_uri())
    return base64.urlsafe_b64encode(number.bytes).decode().rstrip("=")


def _properties(data: Path, port: int, controller_port: int) -> str:
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        # Simulated messages have timestamps of the past, so any retention would delete them at once.
        "log.retention.ms": "-1",
        # There is one broker, so Kafka's internal topics have one replica.
        "default.replication.factor": "1",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        # By default the log cleaner alone takes half of the heap.
        "log.cleaner.dedupe.buffer.size": str(CLEANER_BYTES),
        "num.network.threads": "2",
        "num.io.threads": "2",
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())


def has_broker(servers: str) -> Check:
    """Return a check that a client gets a broker from these bootstrap servers."""

    def check() -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        client = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        try:
            metadata = client.list_topics(timeout=METADATA_SECONDS)
        except KafkaException:
            return False
        return bool(metadata.brokers)

    return check
