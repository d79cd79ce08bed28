"""The logins of clients to Kafka and ZooKeeper: with the passwords of the data directory, or as the settings say."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lake_assets.connections.addresses import is_own_address
from lake_assets.connections.own_secrets import USER, kafka_password, zookeeper_password
from lake_assets.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from lake_assets.settings import Settings


class Login(NamedTuple):
    """A name and a password."""

    user: str
    password: str


def kafka_login(home: Path) -> dict[str, str]:
    """Return the properties with which clients log in to the local broker; none if it requires no login."""
    password = kafka_password(home)
    if password is None:
        return {}
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": password,
    }


def zookeeper_login(settings: Settings, hosts: str) -> Login | None:
    """Return the login of clients of an ensemble; None if it needs none.

    Args:
        settings: Of the process.
        hosts: Of the ensemble: `host:port,...`.

    Raises:
        ConfigurationError: The login in the settings is not `name:password`. The message does not contain it.
    """
    if is_own_address(settings.home, "zookeeper", hosts):
        password = zookeeper_password(settings.home)
        return None if password is None else Login(USER, password)
    if hosts != settings.zookeeper or settings.zookeeper_auth is None:
        return None
    user, separator, password = settings.zookeeper_auth.get_secret_value().partition(":")
    if not (user and separator and password):
        raise ConfigurationError(
            "LAKE_ZOOKEEPER_AUTH is not a name and a password.", remedy="Write it as name:password."
        )
    return Login(user, password)
