"""Kafka and ZooKeeper of `lake up` serve who has the passwords of the data directory, and nobody else. Real servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from pydantic import SecretStr

from lake_assets.connections import addresses
from lake_assets.connections.addresses import Login, write_ports, zookeeper_login
from lake_assets.connections.kafka import client, spark_options
from lake_assets.connections.zookeeper import zookeeper_client
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.errors import ConfigurationError
from lake_assets.landing.kafka import partitions
from lake_assets.services.servers import apply_login, kafka, zookeeper
from lake_assets.services.service import free_port, running
from lake_assets.settings import Settings, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


GUESSED = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "lake",
    "sasl.password": "guessed",
}


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("LAKE_HOME", str(tmp_path))
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


def test_kafka_of_a_home_made_before_requires_the_password_once_that_is_switched_on(bare_home: Settings) -> None:
    home = settings().home
    found = bare_home.model_copy(update={"home": home})
    with running(kafka(found, free_port(), free_port())) as before:
        assert KafkaTopic(f"127.0.0.1:{before.port}", "kept").create(1)

    addresses.create_secrets(home, login=True)
    assert (home / addresses.KAFKA_PASSWORD).stat().st_mode & 0o777 == 0o600
    with running(kafka(found, free_port(), free_port())) as service:
        servers = f"127.0.0.1:{service.port}"
        for login in ({}, GUESSED):
            with pytest.raises(KafkaException):
                AdminClient({**login, "bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=3)
        write_ports(home, {"kafka": service.port or 0})
        assert partitions(servers, ["kept"]) == {"kept": (0,)}
        assert KafkaTopic(servers, "new").create(2)
        assert 'username="lake"' in spark_options(servers)["kafka.sasl.jaas.config"]
        assert client("127.0.0.1:1").keys() == {"log_level", "bootstrap.servers"}, "another server gets no password"
        assert all(file.stat().st_mode & 0o077 == 0 for file in service.files)

    addresses.create_secrets(home, login=False)
    assert addresses.kafka_password(home) is None
    assert client(servers).keys() == {"log_level", "bootstrap.servers"}


def stranger(hosts: str) -> KazooClient:
    zk = KazooClient(hosts)
    zk.start(60)
    return zk


def test_zookeepers_nodes_are_closed_to_others_and_opened_again(home: Path) -> None:
    with running(zookeeper(home, free_port())) as service:
        hosts = f"127.0.0.1:{service.port}"
        write_ports(home, {"zookeeper": service.port or 0})
        other = stranger(hosts)
        try:
            other.create("/old/child", b"before", makepath=True)
            addresses.create_secrets(home, login=True)
            apply_login(Settings(home=home, service_login=True), service.port or 0)
            refuse(other, "/old/child")
            with zookeeper_client(hosts) as zk:
                assert zk.get("/old/child")[0] == b"before"
                zk.create("/new", b"after")
                together = zk.transaction()
                together.create("/moved")
                assert together.commit() == ["/moved"]
                with zk.Lock("/lock", "me"):
                    pass
                refuse(other, "/new")
                refuse(other, "/lock")
                refuse(other, "/moved")
            other.add_auth("digest", "lake:guessed")
            refuse(other, "/old")

            apply_login(Settings(home=home, service_login=False), service.port or 0)
            assert addresses.zookeeper_password(home) is None
            assert (other.get("/old/child")[0], other.get("/new")[0]) == (b"before", b"after")
            other.create("/open")
        finally:
            other.stop()
            other.close()


def refuse(zk: KazooClient, path: str) -> None:
    """Whoever connects to the server can neither read nor write."""
    attempts: list[Callable[[], object]] = [
        lambda: zk.get(path),
        lambda: zk.set(path, b"changed"),
        lambda: zk.create(f"{path}/added"),
        lambda: zk.create("/added"),
        lambda: zk.delete("/old/child"),
        lambda: zk.get_children("/"),
    ]
    for attempt in attempts:
        with pytest.raises(NoAuthError):
            attempt()


def test_an_ensemble_of_somebody_else_gets_the_login_of_the_settings(home: Path) -> None:
    found = Settings(home=home, zookeeper="far:2181", zookeeper_auth=SecretStr("me:se:same"))
    assert zookeeper_login(found, "far:2181") == Login("me", "se:same")
    assert zookeeper_login(found, "other:2181") is None
    assert zookeeper_login(Settings(home=home, zookeeper="far:2181"), "far:2181") is None
    wrong = found.model_copy(update={"zookeeper_auth": SecretStr("hidden")})
    with pytest.raises(ConfigurationError, match="LAKE_ZOOKEEPER_AUTH") as caught:
        zookeeper_login(wrong, "far:2181")
    assert "hidden" not in str(caught.value)
