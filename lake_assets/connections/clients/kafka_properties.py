"""The properties of Kafka's clients: as librdkafka reads them, and in Java's words, for Spark.

They are named as librdkafka names them. Java reads most of them under the same name; what it reads in another form is
translated: names and passwords of SASL, and the file with the certificates of those whom a client trusts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lake_assets.connections.addresses import is_own_address
from lake_assets.connections.clients.own_login import kafka_login
from lake_assets.errors import ConfigurationError
from lake_assets.passed_properties import KAFKA

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lake_assets.settings import Settings

SERVERS = "bootstrap.servers"
MECHANISM = "sasl.mechanism"
MECHANISM_OF_LIBRDKAFKA = "sasl.mechanisms"
"""Its other name of the same."""

USERNAME, PASSWORD = "sasl.username", "sasl.password"
CERTIFICATES = "ssl.ca.location"
JAAS = "sasl.jaas.config"
LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
"""Mechanisms with a name and a password → the class with which Java logs in."""


def librdkafka_properties(settings: Settings, servers: str) -> dict[str, str]:
    """Return the properties of clients of some brokers.

    The local broker has the login of the data directory, if any; those that LAKE_KAFKA names have the properties of the
    settings; others have none.

    Raises:
        ConfigurationError: The properties name the brokers.
    """
    if is_own_address(settings.home, "kafka", servers):
        return kafka_login(settings.home)
    if servers != settings.kafka:
        return {}
    found = {name: value.get_secret_value() for name, value in settings.kafka_properties.items()}
    if SERVERS in found:
        raise ConfigurationError(
            f"{KAFKA.variable_of(SERVERS)} sets {SERVERS}, which the engine sets itself.",
            remedy="Remove it. Set LAKE_KAFKA.",
        )
    return found


def java_properties(given: Mapping[str, str]) -> dict[str, str]:
    """Return properties of librdkafka in Java's words.

    Raises:
        ConfigurationError: There are a name and a password, but Java has no login for the mechanism.
    """
    found = dict(given)
    if MECHANISM_OF_LIBRDKAFKA in found:
        found[MECHANISM] = found.pop(MECHANISM_OF_LIBRDKAFKA)
    username, password = found.pop(USERNAME, None), found.pop(PASSWORD, None)
    if username is not None and password is not None and JAAS not in found:
        found[JAAS] = _login(found.get(MECHANISM, ""), username, password)
    certificates = found.pop(CERTIFICATES, None)
    if certificates is not None:
        found["ssl.truststore.type"] = "PEM"
        found["ssl.truststore.location"] = certificates
    return found


def _login(mechanism: str, username: str, password: str) -> str:
    if mechanism not in LOGIN_MODULES:
        raise ConfigurationError(
            f"{KAFKA.variable_of(MECHANISM)} is {mechanism!r}, for which Spark has no login with name and password.",
            remedy=f"Set it to one of {', '.join(LOGIN_MODULES)}.",
        )
    return f"{LOGIN_MODULES[mechanism]} required username={_quoted(username)} password={_quoted(password)};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
