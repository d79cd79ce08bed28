"""The services of a data directory: which run, where they listen, and with which secrets one logs in. Starts nothing.

They are read from its `run/` folder: `services.json` and pid files. A record counts only while its process lives,
because pids are reused, after a reboot at the latest. A process of another user of the machine can connect to loopback;
it does not know the secrets, for only the owner can enter the data directory.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, NamedTuple

from lake_assets.errors import ConfigurationError, ServiceError

if TYPE_CHECKING:
    from pathlib import Path

    import psutil

    from lake_assets.settings import Settings

OWNER_VARIABLE = "LAKE_KEPT_FOR"
"""In the environment of every process that `lake up` starts, and of their children: the data directory they serve."""

LOOPBACK = "127.0.0.1"
"""Where services and pages of one machine listen: no other machine reaches them."""

RESTORING_FOLDER = "restoring"
"""In a data directory while `lake restore` fills it."""

SERVICES_FILE = "services.json"
PORTS_FILE = "ports.json"

REPORT_PATH = "/lake-report"
"""Where Dagster's web server of `lake up` shows the report, so that a link without host and port leads there."""

REPORT_FILE = "report-server.json"
"""In the run folder while `lake report --serve` runs: its port, and the process that serves it."""

DASHBOARD_PATH = "/lake-dashboard"
"""Likewise, followed by `/` and the name of an engagement lake: its dashboard."""


@dataclass(frozen=True)
class ServiceRecord:
    """A started service. port: on loopback; None if it does not listen."""

    name: str
    port: int | None


def run_folder(home: Path) -> Path:
    """Return the folder of `services.json`, pid files and logs."""
    return home / "run"


def dagster_folder(home: Path) -> Path:
    """Return Dagster's folder in the data directory."""
    return home / "dagster"


def read_records(home: Path) -> list[ServiceRecord]:
    """Return the services that were started last, whether or not they still run."""
    try:
        content = json.loads((run_folder(home) / SERVICES_FILE).read_text())
        return [ServiceRecord(**row) for row in content["services"]]
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return []


def write_records(home: Path, records: list[ServiceRecord]) -> None:
    """Replace the records in one step: a reader sees the old ones or the new ones."""
    _replace(run_folder(home) / SERVICES_FILE, {"services": [asdict(record) for record in records]})


def remove_records(home: Path) -> None:
    """Remove the records: no service of the data directory is meant to run."""
    (run_folder(home) / SERVICES_FILE).unlink(missing_ok=True)


def read_ports(home: Path) -> dict[str, int]:
    """Return the ports that the services had last, by their names; empty if none are recorded."""
    try:
        ports = json.loads((run_folder(home) / PORTS_FILE).read_text())["ports"]
        return {str(name): int(port) for name, port in ports.items()}
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def write_ports(home: Path, ports: Mapping[str, int]) -> None:
    """Record the ports of the services. They outlive `lake down`."""
    _replace(run_folder(home) / PORTS_FILE, {"version": 1, "ports": dict(ports)})


def process_of(home: Path, name: str) -> psutil.Process | None:
    """Return the living process of a service of this data directory.

    Returns:
        None if it has ended, or if another process has its pid now.
    """
    import psutil

    try:
        pid = int((run_folder(home) / f"{name}.pid").read_text())
        process = psutil.Process(pid)
        return process if _belongs_to(home, process) else None
    except (FileNotFoundError, ValueError, psutil.Error):
        return None


def dashboard_file(lake: str) -> str:
    """Return what `REPORT_FILE` is for the dashboard of an engagement lake."""
    return f"dashboard-{lake}-server.json"


@contextmanager
def recorded_report(home: Path, port: int, *, name: str = REPORT_FILE) -> Iterator[None]:
    """Record that this process serves the report, or another page, on a port of loopback, until the block ends.

    Args:
        name: The file of the record in the run folder.
    """
    import psutil

    file = run_folder(home) / name
    content = {"port": port, "pid": os.getpid(), "started": psutil.Process().create_time()}
    _replace(file, content)
    try:
        yield
    finally:
        if _report_record(file) == content:  # not that of a later server
            file.unlink(missing_ok=True)


def report_port(home: Path, *, name: str = REPORT_FILE) -> int | None:
    """Return the port of the `lake report --serve` that was started last; None if it does not run any more.

    Args:
        name: As for `recorded_report`.
    """
    import psutil

    content = _report_record(run_folder(home) / name)
    try:
        process = psutil.Process(int(content["pid"]))
        return int(content["port"]) if process.create_time() == content["started"] else None
    except (KeyError, TypeError, ValueError, psutil.Error):
        return None


def _report_record(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def processes_of(home: Path) -> list[psutil.Process]:
    """Return every living process that was started for this data directory, also orphaned ones.

    These are the services, their workers and the supervisor; this process and its parents are left out.
    """
    import psutil

    own_pids = {os.getpid()}
    for parent in psutil.Process().parents():
        own_pids.add(parent.pid)
    psutil.process_iter.cache_clear()  # otherwise a reused pid would return the process that had it before
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid not in own_pids and _belongs_to(home, process):
                found.append(process)
        except (psutil.Error, OSError):  # another user's, or ended meanwhile
            continue
    return found


def spark_remote(settings: Settings) -> str | None:
    """Return the address of a Spark Connect server: the setting, else the running one, else None."""
    port = None if settings.spark_remote else _port(settings.home, "spark")
    return spark_address(settings.home, port) if port else settings.spark_remote


def kafka_address(settings: Settings) -> str | None:
    """Return the bootstrap servers of Kafka: the setting, else the running broker, else None."""
    return settings.kafka or _address(settings.home, "kafka")


def zookeeper_address(settings: Settings) -> str | None:
    """Return the hosts of a ZooKeeper ensemble: the setting, else the running server, else None."""
    return settings.zookeeper or _address(settings.home, "zookeeper")


def is_own_address(home: Path, name: str, address: str) -> bool:
    """Return whether an address is that of the service that `lake up` of a data directory starts, running or not."""
    port = read_ports(home).get(name)
    return port is not None and address == f"127.0.0.1:{port}"


def required(address: str | None, what: str) -> str:
    """Return the address of a service that is needed.

    Args:
        address: As one of the functions above returned it.
        what: The name of the service: `Kafka`.

    Raises:
        ServiceError: There is no address.
    """
    if address is None:
        raise ServiceError(
            f"No {what} runs for this home, and none is named.", remedy=f"Run `lake up`, or set LAKE_{what.upper()}."
        )
    return address


def _replace(file: Path, content: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(content, indent=1))
    partial.replace(file)


def _address(home: Path, name: str) -> str | None:
    port = _port(home, name)
    return f"127.0.0.1:{port}" if port else None


def _port(home: Path, name: str) -> int | None:
    """Return the port of a service that runs; None if it does not."""
    for record in read_records(home):
        if record.name == name and process_of(home, name):
            return record.port
    return None


def _belongs_to(home: Path, process: psutil.Process) -> bool:
    import psutil

    owner = process.environ().get(OWNER_VARIABLE)
    return owner == str(home) and process.status() != psutil.STATUS_ZOMBIE


SPARK_TOKEN = "spark.token"
KAFKA_PASSWORD = "kafka.password"
ZOOKEEPER_PASSWORD = "zookeeper.password"
USER = "lake"
"""The name that belongs to the passwords of Kafka and ZooKeeper."""

SECRET_BYTES = 32
OWNER_ONLY = 0o700


def make_private(home: Path) -> None:
    """Create a data directory that only its owner can enter, if there is none. Raises `OSError`."""
    if not home.exists():
        if not home.parent.exists():
            home.parent.mkdir(parents=True, exist_ok=True)
        home.mkdir(mode=OWNER_ONLY, exist_ok=True)


def spark_token(home: Path) -> str | None:
    """Return the token that the local Spark Connect server requires; None if it was started by a version without."""
    return _read(home / SPARK_TOKEN)


def create_spark_token(home: Path) -> None:
    """Generate the token of the local Spark Connect server, if there is none."""
    _create(home / SPARK_TOKEN)


def create_secrets(home: Path, *, login: bool) -> None:
    """Generate the secrets of the services that are about to start.

    Args:
        home: The data directory.
        login: Whether Kafka and ZooKeeper require a login. If not, Kafka's password is removed. ZooKeeper's stays until
            its nodes are open to all again.
    """
    create_spark_token(home)
    if login:
        _create(home / KAFKA_PASSWORD)
        _create(home / ZOOKEEPER_PASSWORD)
    else:
        (home / KAFKA_PASSWORD).unlink(missing_ok=True)


def kafka_password(home: Path) -> str | None:
    """Return the password that the local Kafka requires; None if it requires none."""
    return _read(home / KAFKA_PASSWORD)


def zookeeper_password(home: Path) -> str | None:
    """Return the password to which the nodes of the local ZooKeeper are open; None if they are open to all."""
    return _read(home / ZOOKEEPER_PASSWORD)


def spark_address(home: Path, port: int | None) -> str:
    """Return the address of the local Spark Connect server, with its token if there is one.

    pyspark sends a token without TLS only to the host `localhost`.
    """
    token = spark_token(home)
    return f"sc://localhost:{port}/;token={token}" if token else f"sc://127.0.0.1:{port}"


def _read(file: Path) -> str | None:
    try:
        return file.read_text() or None
    except FileNotFoundError:
        return None


def _create(file: Path) -> None:
    """Create a file with a secret; after a crash, or with concurrent calls, it is complete."""
    if file.exists():
        return
    make_private(file.parent)
    with NamedTemporaryFile("w", dir=file.parent, prefix=f"{file.name}.") as draft:  # only its owner can read it
        draft.write(secrets.token_urlsafe(SECRET_BYTES))
        draft.flush()
        with suppress(FileExistsError):  # another process created it first
            os.link(draft.name, file)


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
