"""Kafka as a service: a record comes back, also after the broker was restarted on another port."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lake_assets.services.servers import brokers, kafka
from lake_assets.services.service import free_port, running
from lake_assets.settings import Settings

TOPIC = "kept"


def test_records_outlive_a_restart_on_another_port(bare_home: Settings) -> None:
    with running(kafka(bare_home, free_port(), free_port())) as service:
        servers: dict[str, str | int | float | bool] = {"bootstrap.servers": f"127.0.0.1:{service.port}"}
        admin = AdminClient(servers)
        admin.create_topics([NewTopic(TOPIC, 2)])[TOPIC].result(20)
        producer = Producer(servers)
        producer.produce(TOPIC, b"value", partition=1)
        assert producer.flush(20) == 0
    with running(kafka(bare_home, free_port(), free_port())) as service:
        assert first_value(f"127.0.0.1:{service.port}") == b"value"


def first_value(servers: str) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    try:
        message = consumer.poll(20)
        return message.value() if message else None
    finally:
        consumer.close()


def test_brokers_of_a_cluster_know_each_other_and_copy_each_message(bare_home: Settings) -> None:
    """`make cluster` runs them; here their files are compared, for three brokers take long to start."""
    found = {}
    for service in brokers(bare_home):
        (text,) = service.files.values()
        found[service.name] = dict(line.split("=", 1) for line in text.splitlines())
    assert [values["node.id"] for values in found.values()] == ["1", "2", "3"]
    assert len({values["log.dirs"] for values in found.values()}) == 3
    (voters,) = {values["controller.quorum.voters"] for values in found.values()}
    own = [values["listeners"].rpartition("/")[2] for values in found.values()]
    assert voters.split(",") == [f"{number}@{address}" for number, address in enumerate(own, start=1)]
    for values in found.values():
        assert (values["default.replication.factor"], values["min.insync.replicas"]) == ("3", "2")
        assert values["offsets.topic.replication.factor"] == "3"
