"""The local services as commands: Kafka, ZooKeeper, Spark Connect, and Dagster's three processes, with their files.

Dagster runs in processes of its own; nothing here imports it. Spark's executors are in the process of its server, or
on the cluster whose master LAKE_SPARK_PROPERTIES names.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from pydantic import SecretStr

from lake_assets.connections.addresses import (
    USER,
    ZOOKEEPER_PASSWORD,
    Login,
    dagster_folder,
    kafka_login,
    kafka_password,
    run_folder,
    spark_token,
    zookeeper_password,
)
from lake_assets.connections.spark import jvm_conf, spark_environment, spark_home
from lake_assets.errors import ConfigurationError
from lake_assets.services.memory import MOST_RUNS
from lake_assets.services.service import (
    CONNECT_SECONDS,
    Check,
    Service,
    accepts,
    answers,
    free_port,
    java,
    log_says,
    python_module,
)
from lake_assets.settings import CHECKOUT, Settings

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


ZOOKEEPER_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
ZOOKEEPER_HEAP_MB = 256
TICK_MS = 500
"""ZooKeeper's unit of time. A session lasts at least 2 ticks, so tests can use sessions of 1 s."""

MAX_SESSION_MS = 60_000
ROLE_PREFIX = "Mode: "


def zookeeper(home: Path, port: int) -> Service:
    """Return one server. It listens to `port` on loopback and keeps its data in the home."""
    listen = [f"clientPort={port}", "clientPortAddress=127.0.0.1"]
    return _server(home, "zookeeper", port, number=1, lines=listen)


def ensemble(home: Path, size: int = 3) -> list[Service]:
    """Return the servers of one ensemble, on free ports. It serves while more than half of them run."""
    ports = {number: free_port() for number in range(1, size + 1)}
    # The line of a peer also says where it listens for clients.
    peers = []
    for number, port in ports.items():
        peers.append(f"server.{number}=127.0.0.1:{free_port()}:{free_port()};127.0.0.1:{port}")
    return [_server(home, f"zookeeper-{number}", port, number=number, lines=peers) for number, port in ports.items()]


def _server(home: Path, name: str, port: int, *, number: int, lines: Sequence[str]) -> Service:
    folder = home / name
    config = folder / "zoo.cfg"
    text = "\n".join((*_common(folder), *lines, ""))
    return Service(
        name=name,
        command=(*java(str(spark_home() / "jars" / "*"), heap_mb=ZOOKEEPER_HEAP_MB), ZOOKEEPER_MAIN, str(config)),
        home=home,
        port=port,
        files={config: text, folder / "data" / "myid": f"{number}\n"},
        ready=serves(port),
        remedy=f"ZooKeeper needs Java 17 or 21. If its folder {folder} is damaged, restore the folder from a backup. Do"
        " not remove it: it also holds the lineage of served tables.",
    )


def _common(folder: Path) -> tuple[str, ...]:
    return (
        f"dataDir={folder / 'data'}",
        f"tickTime={TICK_MS}",
        "initLimit=20",
        "syncLimit=6",
        f"maxSessionTimeout={MAX_SESSION_MS}",
        "admin.enableServer=false",
        "4lw.commands.whitelist=srvr",
        "autopurge.purgeInterval=24",
        "autopurge.snapRetainCount=3",
    )


def serves(port: int) -> Check:
    """Return a check that the server has a role: standalone, leader, or follower of a quorum."""

    def check() -> bool:
        return mode(port) is not None

    return check


def mode(port: int) -> str | None:
    """Return the role of a server: `standalone`, `leader` or `follower`; None while it serves no client."""
    try:
        answer = _ask(port, b"srvr")
    except OSError:
        return None
    for line in answer.splitlines():
        if line.startswith(ROLE_PREFIX):
            return line.removeprefix(ROLE_PREFIX)
    return None


def _ask(port: int, command: bytes) -> str:
    """Send a four-letter command and return the whole answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=CONNECT_SECONDS) as connection:
        connection.sendall(command)
        with connection.makefile("rb") as answer:
            return answer.read().decode(errors="replace")


def apply_login(settings: Settings, port: int) -> None:
    """Close the nodes of the local server to all who do not have its password, or open them to all again.

    Args:
        settings: Whether the services require a login, and the home.
        port: Of the server, on loopback.
    """
    from lake_assets.connections.zookeeper import access_of, set_access, zookeeper_client

    password = zookeeper_password(settings.home)
    if settings.zookeeper or password is None:
        return
    login = Login(USER, password)
    with zookeeper_client(f"127.0.0.1:{port}", login=login) as zk:
        set_access(zk, access_of(login if settings.service_login else None))
    if not settings.service_login:
        (settings.home / ZOOKEEPER_PASSWORD).unlink(missing_ok=True)


TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""With it, a Spark Connect server refuses clients that do not send its value."""

SPARK_MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"


def spark(settings: Settings, port: int) -> Service:
    """Return the Spark Connect server.

    It has no catalog of its own: every session configures one, so one server can be used with several homes. It
    requires the token of its home, if that has one: see `create_spark_token`.

    Its temporary files are in the home. A server that was killed leaves them, and the next one removes them.

    Args:
        settings: Memory, jars and Java options of the server, and its home.
        port: Port on loopback.
    """
    temporary = run_folder(settings.home) / "spark"
    options = f"{shlex.quote(f'-Djava.io.tmpdir={temporary}')} {settings.spark_java_options}"
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        **jvm_conf(settings.model_copy(update={"spark_java_options": options})),
        "spark.connect.grpc.binding.port": str(port),
    }
    submit = str(spark_home() / "bin" / "spark-submit")
    empty = f"rm -rf {shlex.quote(str(temporary))} && mkdir -p {shlex.quote(str(temporary))}"
    serve = shlex.join((submit, "--class", SPARK_MAIN, *conf_options(conf), "spark-internal"))
    return Service(
        name="spark",
        command=("sh", "-c", f"{empty} && exec {serve}"),
        home=settings.home,
        port=port,
        environment={**spark_environment(), **_token(settings.home)},
        ready=accepts(port),
        remedy="Install Java 17 or 21, and set LAKE_SPARK_MEMORY to what this machine has.",
    )


def _token(home: Path) -> dict[str, str]:
    """Return the variable with the token. Other users can read a command line, but not an environment."""
    token = spark_token(home)
    return {TOKEN_VARIABLE: token} if token else {}


def conf_options(conf: dict[str, str]) -> list[str]:
    """Return Spark properties as command-line options: `--conf name=value` for each."""
    options = []
    for name, value in conf.items():
        options += ["--conf", f"{name}={value}"]
    return options


DEFINITIONS = "lake_assets.definitions"
LOCATION = "lake_assets"
CONFIGURATION = Path(__file__).with_name("configuration")
"""The files of the package that configure Dagster, and name the jars."""

CODE_LOCATION = re.compile(r"(?P<name>[A-Za-z][\w-]*)=(?P<host>[\w.-]+):(?P<port>\d{1,5})")
FOREIGN_LOCATION = '  - grpc_server: {{host: "{host}", port: {port}, location_name: "{name}"}}\n'

WRITTEN_RUNS = re.compile(r"max_concurrent_runs: \d+")

STORAGE_VARIABLE = "LAKE_DAGSTER_URI"
POSTGRESQL_STORAGE = f"""
# LAKE_DAGSTER_URI names a database. Dagster's UI shows this file, so the address is not in it.
storage:
  postgres:
    postgres_url: {{env: {STORAGE_VARIABLE}}}
"""

LOADED_LOCATIONS_QUERY = (
    "%7BworkspaceOrError%7B...on%20Workspace%7BlocationEntries%7BlocationOrLoadError%7B__typename%7D%7D%7D%7D%7D"
)
"""A GraphQL query, URL-encoded. Its answer names the type of each code location: a repository, or an error."""


def code_server(settings: Settings, port: int) -> Service:
    """Return the process that loads the definitions. The other two ask it, and it starts the runs.

    Args:
        settings: The settings that the definitions are loaded with.
        port: Port on loopback.
    """
    place = ("--host", "127.0.0.1", "--port", str(port), "--location-name", LOCATION)
    module = ("--module-name", DEFINITIONS, "--working-directory", str(CHECKOUT or settings.home))
    return Service(
        name="code",
        command=python_module("lake_assets.dagster_processes.code_server", *place, *module),
        home=settings.home,
        port=port,
        environment=dagster_environment(settings),
        ready=accepts(port),
        remedy="The definitions did not load. Correct what the log names, or LAKE_PIPELINES.",
    )


def webserver(settings: Settings, ports: Mapping[str, int]) -> Service:
    """Return Dagster's UI behind the guard that refuses requests of foreign web pages.

    Args:
        settings: The settings of the home.
        ports: The ports `code` and `webserver`.
    """
    port = ports["webserver"]
    options = ("--port", str(port), "--workspace", str(_workspace(settings)))
    return Service(
        name="webserver",
        command=python_module("lake_assets.services.webserver", *options),
        home=settings.home,
        port=port,
        # Dagster's first process creates the tables of its instance; two at once break them.
        after=ports["code"],
        environment=dagster_environment(settings),
        # It serves pages before it has loaded the definitions from the code server.
        ready=answers(f"http://127.0.0.1:{port}/graphql?query={LOADED_LOCATIONS_QUERY}", '"RepositoryLocation"'),
        remedy="Correct what the log names, such as LAKE_WEBSERVER_HOSTS, then run `lake up` again.",
    )


def daemon(settings: Settings, ports: Mapping[str, int]) -> Service:
    """Return Dagster's daemon, which evaluates sensors and schedules and starts queued runs.

    Args:
        settings: The settings of the home.
        ports: The port `code`.
    """
    log = settings.home / "logs" / "daemon.log"
    return Service(
        name="daemon",
        command=python_module("lake_assets.dagster_processes.daemon", "--workspace", str(_workspace(settings))),
        home=settings.home,
        after=ports["code"],
        environment=dagster_environment(settings),
        ready=log_says(log, "Instance is configured with the following daemons"),
    )


def write_dagster_files(settings: Settings, code_port: int, *, runs: int = MOST_RUNS) -> None:
    """Write Dagster's folder in the home: the package's `dagster.yaml`, and the addresses of the code servers.

    Args:
        settings: The settings of the home.
        code_port: The port of the code server.
        runs: How many runs may be at work at once.

    Raises:
        ConfigurationError: LAKE_CODE_LOCATIONS names a code server in another form than it should.
    """
    others = "".join(FOREIGN_LOCATION.format(**each) for each in _foreign_locations(settings.code_locations))
    folder = dagster_home(settings)
    folder.mkdir(parents=True, exist_ok=True)
    configuration = (CONFIGURATION / "dagster.yaml").read_text(encoding="utf-8")
    storage = POSTGRESQL_STORAGE if settings.dagster_uri else ""
    (folder / "dagster.yaml").write_text(WRITTEN_RUNS.sub(f"max_concurrent_runs: {runs}", configuration) + storage)
    workspace = Template((CONFIGURATION / "workspace.yaml").read_text(encoding="utf-8"))
    _workspace(settings).write_text(workspace.substitute(port=code_port, location=LOCATION) + others)


def _foreign_locations(setting: str) -> list[dict[str, str]]:
    """Return name, host and port of each code server of another project."""
    found = []
    for part in filter(None, map(str.strip, setting.split(","))):
        location = CODE_LOCATION.fullmatch(part)
        if location is None or location["name"] == LOCATION:
            raise ConfigurationError(
                f"LAKE_CODE_LOCATIONS has {part!r}, which is not the code server of another project.",
                remedy=f"Write each one as name=host:port, with another name than {LOCATION}: flights=10.0.0.7:4000.",
            )
        found.append(location.groupdict())
    return found


def dagster_home(settings: Settings) -> Path:
    """Return Dagster's folder in the home."""
    return dagster_folder(settings.home)


def dagster_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of Dagster's processes: all settings as `LAKE_*` variables, and Dagster's own."""
    variables = {}
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if value is not None:
            variables[f"LAKE_{name.upper()}"] = _format_setting(value)
    dagster = {"DAGSTER_HOME": str(dagster_home(settings)), "PYTHONUNBUFFERED": "1"}
    return {**variables, **spark_environment(), **_python_path(), **dagster}


def _python_path() -> dict[str, str]:
    """Return PYTHONPATH with absolute folders: services have another working directory than `lake up`."""
    given = os.environ.get("PYTHONPATH")
    if not given:
        return {}
    folders = [str(Path(folder).absolute()) for folder in given.split(os.pathsep)]
    return {"PYTHONPATH": os.pathsep.join(folders)}


def _format_setting(value: object) -> str:
    if isinstance(value, dict):
        return json.dumps({name: _plain(each) for name, each in value.items()})
    return str(_plain(value))


def _plain(value: object) -> object:
    """Return a value without the mask of a secret. The mask would become the key of what is hashed with it."""
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _workspace(settings: Settings) -> Path:
    return dagster_home(settings) / "workspace.yaml"
