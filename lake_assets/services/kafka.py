"""Kafka as local services on the jars of `ivy-kafka.xml`: one broker that is its own controller (KRaft), or several."""

from __future__ import annotations

import base64
import shlex
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.connections.addresses import USER, kafka_login, kafka_password
from lake_assets.services.service import Check, Service, free_port, java

if TYPE_CHECKING:
    from pathlib import Path

    from lake_assets.settings import Settings

HEAP_MB = 256
CLEANER_BYTES = 4 << 20
METADATA_SECONDS = 1


@dataclass(frozen=True)
class _Node:
    """A broker of a cluster. port: for clients. controller_port: for the other brokers' controllers."""

    name: str
    number: int
    port: int
    controller_port: int

    @property
    def voter(self) -> str:
        return f"{self.number}@127.0.0.1:{self.controller_port}"


def kafka(settings: Settings, port: int, controller_port: int) -> Service:
    """Return the broker. It keeps its topics in the home through restarts.

    Args:
        settings: The home, and the folder of Kafka's jars.
        port: Port for clients, on loopback.
        controller_port: Port for the controller, on loopback.
    """
    node = _Node("kafka", 1, port, controller_port)
    return _broker(settings, node, [node])


def brokers(settings: Settings, size: int = 3) -> list[Service]:
    """Return the brokers of one cluster, on free ports. A partition has a replica on each of them.

    A message is accepted when more than half of them have it, and while more than half of them run.
    """
    nodes = [_Node(f"kafka-{number}", number, free_port(), free_port()) for number in range(1, size + 1)]
    return [_broker(settings, node, nodes) for node in nodes]


def _broker(settings: Settings, node: _Node, nodes: Sequence[_Node]) -> Service:
    folder = settings.home / node.name
    config = folder / "server.properties"
    data = folder / "data"
    program = java(str(settings.kafka_jars / "*"), heap_mb=HEAP_MB)
    storage_format = (
        "kafka.tools.StorageTool",
        "format",
        f"--cluster-id={_cluster_id(settings.home / 'kafka')}",
        "--config",
        str(config),
    )
    is_formatted = f"test -e {shlex.quote(str(data / 'meta.properties'))}"
    format_once = f"({is_formatted} || {shlex.join((*program, *storage_format))})"
    serve = f"exec {shlex.join((*program, 'kafka.Kafka', str(config)))}"
    return Service(
        name=node.name,
        command=("sh", "-c", f"{format_once} && {serve}"),
        home=settings.home,
        port=node.port,
        files={config: _properties(data, node, nodes, kafka_password(settings.home))},
        ready=has_broker(f"127.0.0.1:{node.port}", kafka_login(settings.home)),
        remedy="Run `lake setup`, which downloads its jars, or set LAKE_KAFKA_JARS. Kafka needs Java 17 or 21.",
    )


def _cluster_id(folder: Path) -> str:
    """Return the id of the folder's cluster. It is always the same: a broker refuses data of another cluster."""
    number = uuid.uuid5(uuid.NAMESPACE_URL, folder.as_uri())
    return base64.urlsafe_b64encode(number.bytes).decode().rstrip("=")


def _properties(data: Path, node: _Node, nodes: Sequence[_Node], password: str | None) -> str:
    protocol = "SASL_PLAINTEXT" if password else "PLAINTEXT"
    replicas, majority = str(len(nodes)), str(len(nodes) // 2 + 1)
    values = {
        "process.roles": "broker,controller",
        "node.id": str(node.number),
        "controller.quorum.voters": ",".join(each.voter for each in nodes),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{protocol}://127.0.0.1:{node.port},CONTROLLER://127.0.0.1:{node.controller_port}",
        **(_login(password) if password else {}),
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        # Simulated messages have timestamps of the past, so any retention would delete them at once.
        "log.retention.ms": "-1",
        # Topics have a replica on each broker, Kafka's internal ones too.
        "default.replication.factor": replicas,
        "min.insync.replicas": majority,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": majority,
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        # By default the log cleaner alone takes half of the heap.
        "log.cleaner.dedupe.buffer.size": str(CLEANER_BYTES),
        "num.network.threads": "2",
        "num.io.threads": "2",
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())


def _login(password: str) -> dict[str, str]:
    """Return the properties of a broker that lets in one user, at both ports: the controller takes commands, too."""
    user = f'username="{USER}" password="{password}" user_{USER}="{password}"'
    module = f"org.apache.kafka.common.security.plain.PlainLoginModule required {user};"
    return {
        "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": module,
        "listener.name.controller.plain.sasl.jaas.config": module,
    }


def has_broker(servers: str, login: Mapping[str, str]) -> Check:
    """Return a check that a client gets a broker from these bootstrap servers. login: properties of the client."""

    def check() -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        client = AdminClient({**login, "bootstrap.servers": servers, "log_level": 0})
        try:
            metadata = client.list_topics(timeout=METADATA_SECONDS)
        except KafkaException:
            return False
        return bool(metadata.brokers)

    return check
