"""How every stage connects to Kafka: the configuration of clients, and the first and last offsets of partitions.

Properties are named as librdkafka names them. Java reads most of them under the same name; what it reads in another
form is translated: names and passwords of SASL, and the file with the certificates of those whom a client trusts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tenacity import retry, retry_if_exception, stop_after_delay, wait_random_exponential

from lake_assets.base.described import KAFKA_IS_SILENT, recognise
from lake_assets.connections.addresses import is_own_address, kafka_login
from lake_assets.errors import ConfigurationError, ErrorText, ServiceError
from lake_assets.settings import KAFKA, settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lake_assets.settings import Settings

TIMEOUT_SECONDS = 20
UNANSWERED = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError.REQUEST_TIMED_OUT,
}
"""Errors of a client that has no answer. All others are answers."""

LOG_NOTHING = 0
LOG_ERRORS = 3
"""Syslog level of the client's own log: it does not log what it retries by itself."""

TRANSIENT_ERRORS = {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}
"""Answers of brokers about a partition that is new or is being moved. Kafka's own consumers retry, too."""

EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
END = OffsetSpec.latest()  # type: ignore[no-untyped-call]


def client(servers: str) -> dict[str, str | int | float | bool]:
    """Return the configuration that all clients share, with the properties of the settings of this process.

    Args:
        servers: `host:port`, comma-separated.
    """
    passed = librdkafka_properties(settings(), servers)
    return {"log_level": LOG_ERRORS, **passed, "bootstrap.servers": servers}


def spark_options(servers: str) -> dict[str, str]:
    """Return the options with which Spark reads from the same brokers."""
    passed = java_properties(librdkafka_properties(settings(), servers))
    return {f"kafka.{name}": value for name, value in {**passed, "bootstrap.servers": servers}.items()}


@contextmanager
def asking(servers: str, admin: AdminClient | None = None) -> Iterator[AdminClient]:
    """Yield a client for requests, which is kept until all of them have answered: without it they would wait for ever.

    It prints nothing of the connections that it tries again; the error of the block says why the last one failed.

    Args:
        servers: `host:port`, comma-separated.
        admin: A client of these servers; None opens one.

    Raises:
        ServiceError: Kafka refuses a request of the block, or does not answer it.
    """
    said: list[KafkaError] = []
    if admin is None:
        configuration: dict[str, Any] = {**client(servers), "log_level": LOG_NOTHING, "error_cb": said.append}
        admin = AdminClient(configuration)
    try:
        yield admin
    except (KafkaException, TimeoutError) as error:
        admin.poll(0)  # calls `error_cb`
        raise kafka_error(servers, error, said) from error


def kafka_error(servers: str, error: Exception, said: Iterable[KafkaError] = ()) -> ServiceError:
    """Return what Kafka refused, or that it did not answer, and what to do.

    Args:
        servers: `host:port`, comma-separated.
        error: Of a request: a `KafkaException`, or a `TimeoutError` if it was not answered in time.
        said: What the client reported of its connections meanwhile.
    """
    own = [error.args[0]] if isinstance(error, KafkaException) else []
    reported = [found for found in said if found.code() != KafkaError._ALL_BROKERS_DOWN]
    for found in (*own, *reported):
        known = known_answer(found)
        if known is not None:
            problem = known.problem.replace("Kafka", f"Kafka at {servers}", 1).removesuffix(".")
            return ServiceError(f"{problem}: {found.str()}.", remedy=known.remedy)
        if found.code() not in UNANSWERED:
            return ServiceError(
                f"Kafka at {servers} answers with an error: {found.str()}.",
                remedy="Correct what it names, then run the command again.",
            )
    reason = next((found.str() for found in (*reversed(reported), *own)), f"no answer in {TIMEOUT_SECONDS} s")
    return ServiceError(
        f"Kafka at {servers} does not answer: {reason}.",
        remedy="Start it with `lake up`, or correct LAKE_KAFKA, or the protocol and the login in LAKE_KAFKA__….",
    )


def known_answer(error: KafkaError) -> ErrorText | None:
    """Return what Kafka refused, and what to do; None if the error is no answer of Kafka, or not one that is known."""
    known = recognise(f"KafkaError{{code={error.name()}, {error.str()}")
    return None if known is None or known.problem == KAFKA_IS_SILENT else known


def remedy_of(error: KafkaError, otherwise: str) -> str:
    """Return what to do about what Kafka has refused; `otherwise` if no better is known."""
    known = known_answer(error)
    return otherwise if known is None else known.remedy


def _is_transient(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in TRANSIENT_ERRORS


@retry(
    retry=retry_if_exception(_is_transient),
    stop=stop_after_delay(TIMEOUT_SECONDS),
    wait=wait_random_exponential(multiplier=0.05, max=1),
    reraise=True,
)
def offsets(
    admin: AdminClient, partitions: Collection[TopicPartition], which: OffsetSpec
) -> dict[tuple[str, int], int]:
    """Return the first or last offsets of partitions, for readers of committed messages.

    Args:
        admin: A client.
        partitions: Any number.
        which: `EARLIEST`; or `END`, the offset after the last message, or of the first message of an open transaction.

    Returns:
        (topic, partition) → offset.

    Raises:
        KafkaException: Kafka does not answer, or does not have such a partition.
    """
    requests = admin.list_offsets(
        dict.fromkeys(partitions, which),
        isolation_level=IsolationLevel.READ_COMMITTED,
        request_timeout=TIMEOUT_SECONDS,
    )
    found = {}
    for partition, request in requests.items():
        found[partition.topic, partition.partition] = request.result().offset
    return found


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
