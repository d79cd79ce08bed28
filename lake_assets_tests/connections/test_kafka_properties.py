"""Kafka's clients log in with what the settings pass on; Spark gets the same in Java's words."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from lake_assets.connections.kafka import client, java_properties, librdkafka_properties, spark_options
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.errors import ConfigurationError, ServiceError
from lake_assets.landing.kafka import partitions
from lake_assets.services.servers import kafka as kafka_service
from lake_assets.services.service import accepts, free_port, running
from lake_assets.settings import Settings, settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lake_assets.services.service import Service

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "lake", "sasl.password": 'hid"den\\'}
JAVA = r'"lake" password="hid\"den\\";'

SASL = rf"""
listener.security.protocol.map=CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
security.inter.broker.protocol=SASL_PLAINTEXT
sasl.mechanism.inter.broker.protocol=PLAIN
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config={MODULE} required username="broker" password="b" \
  user_broker="b" user_lake="hidden";
"""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("LAKE_HOME", str(tmp_path))
    settings.cache_clear()
    yield
    settings.cache_clear()


def with_sasl(service: Service) -> Service:
    """The broker with a login, for the users `broker` and `lake`."""
    files = {}
    for file, text in service.files.items():
        files[file] = text.replace("=PLAINTEXT://", "=SASL_PLAINTEXT://") + SASL
    assert service.port
    return replace(service, files=files, ready=accepts(service.port))


def test_the_same_login_in_the_words_of_java() -> None:
    for name in ("sasl.mechanism", "sasl.mechanisms"):
        assert java_properties({**LOGIN, name: "PLAIN", "ssl.ca.location": "/ca.pem", "client.id": "x"}) == {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": rf"{MODULE} required username={JAVA}",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/ca.pem",
            "client.id": "x",
        }
    scram = java_properties({**LOGIN, "sasl.mechanism": "SCRAM-SHA-512"})["sasl.jaas.config"]
    assert scram == rf"org.apache.kafka.common.security.scram.ScramLoginModule required username={JAVA}"
    assert java_properties({**LOGIN, "sasl.jaas.config": "mine"})["sasl.jaas.config"] == "mine"
    with pytest.raises(ConfigurationError, match="LAKE_KAFKA__SASL_MECHANISM is 'GSSAPI'"):
        java_properties({**LOGIN, "sasl.mechanism": "GSSAPI"})


def test_only_the_brokers_that_are_named_get_the_properties(tmp_path: Path) -> None:
    found = Settings(home=tmp_path, kafka="far:9092", kafka_properties={"sasl.username": SecretStr("lake")})
    assert librdkafka_properties(found, "far:9092") == {"sasl.username": "lake"}
    assert librdkafka_properties(found, "127.0.0.1:9092") == {}
    named = found.model_copy(update={"kafka_properties": {"bootstrap.servers": SecretStr("x")}})
    with pytest.raises(ConfigurationError, match="LAKE_KAFKA__BOOTSTRAP_SERVERS sets"):
        librdkafka_properties(named, "far:9092")


def test_clients_log_in_to_a_broker_with_sasl(bare_home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(with_sasl(kafka_service(bare_home, free_port(), free_port()))) as service:
        servers = f"127.0.0.1:{service.port}"
        monkeypatch.setenv("LAKE_KAFKA", servers)
        monkeypatch.setenv("LAKE_KAFKA__SECURITY_PROTOCOL", "SASL_PLAINTEXT")
        monkeypatch.setenv("LAKE_KAFKA__SASL_MECHANISM", "PLAIN")
        monkeypatch.setenv("LAKE_KAFKA__SASL_USERNAME", "lake")
        monkeypatch.setenv("LAKE_KAFKA__SASL_PASSWORD", "hidden")
        settings.cache_clear()
        topic = KafkaTopic(servers, "guarded")
        assert topic.create(2)
        assert topic.state().end == {0: 0, 1: 0}
        assert partitions(servers, ["guarded"]) == {"guarded": (0, 1)}
        assert spark_options(servers)["kafka.sasl.jaas.config"].endswith('username="lake" password="hidden";')
        monkeypatch.setenv("LAKE_KAFKA__SASL_PASSWORD", "wrong")
        settings.cache_clear()
        monkeypatch.setattr("lake_assets.engagement.topics.TIMEOUT_SECONDS", 2)
        assert client(servers)["sasl.password"] == "wrong"
        with pytest.raises(ServiceError, match="refuses the login: "):
            topic.state()
