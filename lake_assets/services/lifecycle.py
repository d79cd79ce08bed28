"""Start, stop and show the services of a home: `lake up`, `lake down` and `lake status`.

The supervisor process in `supervisor.py` runs them; nothing here keeps a process. To add a service, write a function
that returns its `Service`, and add it to `services_of`.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lake_assets.base.extras import installed
from lake_assets.connections import addresses
from lake_assets.connections.addresses import create_secrets, create_spark_token, spark_address
from lake_assets.errors import LakeError, ServiceError, UsageError, suggestion
from lake_assets.services import servers as dagster_services
from lake_assets.services import supervisor
from lake_assets.services.memory import STREAMS_OF, choose_runs, memory_bytes
from lake_assets.services.servers import (
    apply_login,
    code_server,
    daemon,
    dagster_environment,
    kafka,
    spark,
    webserver,
    zookeeper,
)
from lake_assets.services.service import (
    POLL_SECONDS,
    STOP_SECONDS,
    Service,
    all_running,
    free_port,
    log_says,
    python_module,
    uninterrupted,
)
from lake_assets.settings import pipeline_names

if TYPE_CHECKING:
    import psutil

    from lake_assets.settings import Settings

PORT_NAMES = ("spark", "zookeeper", "kafka", "kafka-controller", "code", "webserver")
"""Names of the ports that `services_of` takes."""

ZONES = ("a", "b")

LANDING_STARTED = "Landing has started"
"""Begins a line that each process of landing prints when it is connected."""

SIMULATED = "lake_assets.membership:"
"""Begins the names of the demo's pipeline. Heartbeats of now would complete its simulated hours too early."""


def services_of(settings: Settings, ports: Mapping[str, int]) -> list[Service]:
    """Return the services to run on this machine: those that what is declared needs.

    Spark, ZooKeeper or Kafka is left out if the settings have an address of it: then somebody else runs it. ZooKeeper
    is there for engagement lakes and served tables, Kafka for engagement lakes and feeds, and the processes of landing
    for feeds. Kafka is also left out if the extra `landing` is not installed: nothing could connect to it.

    Args:
        settings: The settings of the home.
        ports: A port for each of `PORT_NAMES`.
    """
    parts = _declared_parts(settings)
    services = []
    if not settings.spark_remote:
        services.append(spark(settings, ports["spark"]))
    if not settings.zookeeper and parts & {"engagement", "serving"}:
        services.append(zookeeper(settings.home, ports["zookeeper"]))
    if not settings.kafka and parts & {"engagement", "landing"} and installed("landing"):
        services.append(kafka(settings, ports["kafka"], ports["kafka-controller"]))
    connected = _with_addresses(settings, ports)
    services += [
        code_server(connected, ports["code"]),
        webserver(connected, ports),
        daemon(connected, ports),
    ]
    if "landing" in parts and installed("landing"):
        services += landing_processes(connected, kafka_port=None if settings.kafka else ports["kafka"])
    if "engagement" in parts and installed("landing"):
        services += continuous_streams(connected, kafka_port=None if settings.kafka else ports["kafka"])
    return services


def _declared_parts(settings: Settings) -> set[str]:
    """Return which of landing, engagement and serving are declared. What cannot be read, the code server reports."""
    from lake_assets.incremental.declaration import Topic
    from lake_assets.incremental.from_settings import open_pipeline

    if any(name.startswith(SIMULATED) for name in pipeline_names(settings.pipelines)):
        return {"engagement", "serving"}
    try:
        pipeline = open_pipeline(settings)
    except LakeError:
        return {"engagement", "serving"}
    declared = {
        "landing": any(isinstance(raw.feed, Topic) for raw in pipeline.raw),
        "engagement": bool(settings.lakes),
        "serving": bool(settings.serving_groups) or any(target.served for target in pipeline.targets),
    }
    return {part for part, is_declared in declared.items() if is_declared}


def landing_processes(settings: Settings, *, kafka_port: int | None) -> list[Service]:
    """Return the processes of landing: one for each zone, and one that loads files and sends heartbeats.

    Each of them uses about 175 MB before the first message.

    Args:
        settings: With the address of Kafka.
        kafka_port: The port of the local broker, for which they wait; None if somebody else runs Kafka.
    """
    commands = {**{f"landing-{zone}": ("tail", zone) for zone in ZONES}, "landing-load": ("load",)}
    return [
        _command(settings, name, ("landing", *words), LANDING_STARTED, "the feeds of the pipeline", kafka_port)
        for name, words in commands.items()
    ]


def continuous_streams(settings: Settings, *, kafka_port: int | None) -> list[Service]:
    """Return a process for each engagement lake that is declared as continuous, with a Spark of its own.

    Args:
        settings: With the addresses of Kafka and ZooKeeper.
        kafka_port: The port of the local broker, for which they wait; None if somebody else runs Kafka.
    """
    from lake_assets.engagement.lakes import configured_lakes

    try:
        lakes = configured_lakes(settings)
    except LakeError:  # the code server reports it
        return []
    services = []
    for lake in lakes:
        if lake.continuous:
            name, words = f"{STREAMS_OF}{lake.name}", ("engagement", "run", lake.name)
            started = f"{lake.name} runs on"
            services.append(_command(settings, name, words, started, "the file of the lake", kafka_port))
    return services


def _command(
    settings: Settings, name: str, words: tuple[str, ...], started: str, declared: str, kafka_port: int | None
) -> Service:
    """Return a command of `lake` that runs on, as a service that reads Kafka.

    Args:
        settings: With the addresses of the other services.
        name: Of the service.
        words: Of the command.
        started: How a line of its log begins when it is ready.
        declared: What may be declared wrongly.
        kafka_port: The port that it waits for; None for none.
    """
    return Service(
        name=name,
        command=python_module("lake_assets.cli.main", *words),
        home=settings.home,
        after=kafka_port,
        environment=dagster_environment(settings),
        ready=log_says(settings.home / "logs" / f"{name}.log", started),
        remedy=f"Correct what the log names, such as LAKE_KAFKA, or {declared}.",
    )


@contextmanager
def lake_services(settings: Settings) -> Iterator[Settings]:
    """Run Spark, ZooKeeper and Kafka as children of this process until the block ends. For demos and measurements.

    Yields:
        The settings with the addresses of the three services.
    """
    create_spark_token(settings.home)
    ports = {name: free_port() for name in PORT_NAMES}
    services = [
        spark(settings, ports["spark"]),
        zookeeper(settings.home, ports["zookeeper"]),
        kafka(settings, ports["kafka"], ports["kafka-controller"]),
    ]
    own = settings.model_copy(update={"spark_remote": None, "zookeeper": None, "kafka": None})
    with all_running(services):
        yield _with_addresses(own, ports)


def _with_addresses(settings: Settings, ports: Mapping[str, int]) -> Settings:
    addresses = {
        "spark_remote": settings.spark_remote or spark_address(settings.home, ports["spark"]),
        "zookeeper": settings.zookeeper or f"127.0.0.1:{ports['zookeeper']}",
        "kafka": settings.kafka or f"127.0.0.1:{ports['kafka']}",
    }
    # The broker that is started here takes no properties: they belong to the brokers that LAKE_KAFKA names.
    properties = settings.kafka_properties if settings.kafka else {}
    return settings.model_copy(update={**addresses, "kafka_properties": properties})


Report = Callable[[str], None]
"""Receives one line for the person who waits."""

PROGRESS_SECONDS = 5
"""A start that is silent for this long reports what it waits for."""


def start_services(services: list[Service], home: Path, *silent: Service, report: Report, patience: float = 1) -> None:
    """Start services under the supervisor of a data directory, and return when all are ready.

    Services that run are left as they are if this fails: the caller stops them by `down`.

    Args:
        services: The services that are waited for.
        home: The data directory.
        silent: Services that nobody waits for.
        report: Receives lines for the person who waits.
        patience: How many times longer than usual a service may take to become ready.

    Raises:
        ServiceError: A service did not become ready.
    """
    addresses.write_records(home, [addresses.ServiceRecord(service.name, service.port) for service in services])
    process = supervisor.start([*services, *silent], home)
    began = reported = time.monotonic()
    report(f"Starting {_names(services)} ...")
    waiting = list(services)
    while waiting:
        if process.poll() is not None or supervisor.first_to_end(home):
            raise supervisor.died(services, home)
        ready = [service for service in waiting if service.ready()]
        waiting = [service for service in waiting if service not in ready]
        now = time.monotonic()
        seconds = now - began
        lines = []
        for service in ready:
            port = f", port {service.port}" if service.port else ""
            lines.append(f"  {service.name:<10} ready after {seconds:4.1f} s{port}")
        for service in waiting:
            if seconds > service.patience * patience:
                raise service.stuck()
        if waiting and not lines and now - reported > PROGRESS_SECONDS:
            lines.append(f"  {seconds:4.0f} s: still waiting for {_names(waiting)}")
        for line in lines:
            report(line)
            reported = now
        time.sleep(POLL_SECONDS)


def _names(services: list[Service]) -> str:
    return ", ".join(service.name for service in services)


TITLES = {"webserver": "Dagster's UI", "code": "the code server"}

FAILING = 3
"""A service that has ended this often in a row, soon after its start, is reported as failing."""

CODE_SECONDS = 600
"""The longest wait for the runs of the code server, when it is to start again."""

PATIENCE_OF_GUARD = 10
"""How many times longer than usual a start may take when nobody waits for it; the machine may be busy."""

RETRY_SECONDS = 5

MAX_STOP_ROUNDS = 5
"""A process that starts another one while it ends makes one more round necessary."""


State = Literal["ready", "starting", "failing", "stopped"]


@dataclass(frozen=True)
class ServiceStatus:
    """The state of one service.

    Attributes:
        name: Name of the service.
        state: `ready`; `starting`; `failing` if it has ended several times in a row and is started again; `stopped`.
        pid: Process id; None if it is stopped.
        port: Port on loopback; None if it is stopped or listens to none.
        log: Path of its log.
        memory_mb: Resident memory of the process and its descendants, in MiB.
        detail: How often it has ended by itself; empty if it has not.
    """

    name: str
    state: State
    pid: int | None = None
    port: int | None = None
    log: str = ""
    memory_mb: int = 0
    detail: str = ""


def up(settings: Settings, *, report: Report, patience: float = 1) -> None:
    """Start all services and return when all are ready. Do nothing if they run already.

    Args:
        settings: The settings of the home.
        report: Receives lines for the person who waits.
        patience: How many times longer than usual a service may take to become ready.

    Raises:
        ServiceError: A service did not become ready, and all were stopped; or another `lake up` is at work.
    """
    with exclusive(settings.home):
        if _all_ready(settings):
            report("Already up.")
        else:
            _stop_all(settings.home, report)
            _start(settings, report, patience)
    report(f"Dagster's UI: {ui_address(settings)}")


def down(settings: Settings, *, report: Report) -> None:
    """Stop every process that was started for this home, and return when all have ended.

    This includes services whose supervisor was killed.

    Raises:
        ServiceError: A process does not end.
    """
    any_found = _stop_all(settings.home, report)
    if not any_found:
        report("No service is running.")


def start_again() -> None:
    """Start the services of the home that the environment names: their supervisor was killed.

    If they do not start, their records stay: the guard tries again as long as there are any. `lake down` ends the guard
    and this process before it removes the records for good.
    """
    from lake_assets.settings import settings

    print("The supervisor was killed. All services are started anew.", flush=True)
    home = settings().home
    records = addresses.read_records(home)
    try:
        up(settings(), report=print, patience=PATIENCE_OF_GUARD)
    except (LakeError, OSError):
        while True:  # until the disk is not full any more
            try:
                addresses.write_records(home, records)
                break
            except OSError:
                time.sleep(RETRY_SECONDS)
        raise


def restart(settings: Settings, name: str, *, report: Report) -> None:
    """Have one service end and start again, and return when it is ready. The others go on.

    The code server ends after its runs; any other service is killed if it does not end in time.

    Raises:
        UsageError: There is no such service.
        ServiceError: The services do not run, or this one does not become ready.
    """
    services = {service.name: service for service in _services(settings)}
    if name not in services:
        raise UsageError(f"There is no service {name!r}.", remedy=suggestion(name, [*services]))
    service = services[name]
    with exclusive(settings.home):
        if addresses.process_of(settings.home, supervisor.NAME) is None:
            raise ServiceError("The services do not run.", remedy="Start them: `lake up`.")
        if name not in {record.name for record in addresses.read_records(settings.home)}:
            raise ServiceError(
                f"The service {name} was not started: what needs it was declared later.", remedy="Run `lake up`."
            )
        before = addresses.process_of(settings.home, name)
        if before is not None:
            report(f"Stopping {name} ...")
            _end([before], seconds=CODE_SECONDS if name == "code" else STOP_SECONDS)
        began = time.monotonic()
        while (now := addresses.process_of(settings.home, name)) is None or now == before or not service.ready():
            if time.monotonic() - began > service.patience:
                raise service.stuck()
            time.sleep(POLL_SECONDS)
        report(f"{name} is ready.")


def status(settings: Settings) -> list[ServiceStatus]:
    """Return the state of every service, also of those that do not run."""
    started = {record.name for record in addresses.read_records(settings.home)}
    failures = supervisor.failures(settings.home) if started else {}
    found = []
    for service in _services(settings):
        process = addresses.process_of(settings.home, service.name) if service.name in started else None
        failed = failures.get(service.name)
        state: State = "stopped"
        if failed is not None and failed.in_a_row >= FAILING:
            state = "failing"
        elif process is not None:
            state = "ready" if service.ready() else "starting"
        detail = ""
        if failed is not None:
            times = "once" if failed.count == 1 else f"{failed.count} times"
            detail = f"ended by itself {times}, last with code {failed.code}"
        found.append(
            ServiceStatus(
                name=service.name,
                state=state,
                pid=process.pid if process else None,
                port=service.port if process else None,
                log=str(service.log),
                memory_mb=_memory_mb(process) if process else 0,
                detail=detail,
            )
        )
    return found


def _services(settings: Settings) -> list[Service]:
    """Return the services of what is declared, at the ports at which they were started."""
    ports: dict[str, int] = dict.fromkeys(PORT_NAMES, 0)
    for record in addresses.read_records(settings.home):
        ports[record.name] = record.port or 0
    return services_of(settings, ports)


def stale_services(settings: Settings) -> list[str]:
    """Return the services that are recorded as started and have no process any more."""
    recorded = addresses.read_records(settings.home)
    return [record.name for record in recorded if addresses.process_of(settings.home, record.name) is None]


def remove_stale_records(settings: Settings) -> None:
    """Remove the records of services that ended.

    Raises:
        ServiceError: A process of the home still runs.
    """
    if addresses.processes_of(settings.home):
        raise ServiceError("Some processes of this home still run.", remedy="Run `lake down`, then `lake up`.")
    _remove_records(settings.home)


def ui_address(settings: Settings) -> str | None:
    """Return the address at which Dagster's UI was started last; None if it was not."""
    for record in addresses.read_records(settings.home):
        if record.name == "webserver":
            return f"http://127.0.0.1:{record.port}"
    return None


def _start(settings: Settings, report: Report, patience: float) -> None:
    create_secrets(settings.home, login=settings.service_login)
    ports = _choose_ports(settings, report)
    services = services_of(settings, ports)
    runs = choose_runs(settings, [service.name for service in services], report)
    dagster_services.write_dagster_files(settings, ports["code"], runs=runs)
    try:
        start_services(services, settings.home, supervisor.guard(settings), report=report, patience=patience)
        if any(service.name == "zookeeper" for service in services):
            apply_login(settings, ports["zookeeper"])
    except BaseException:  # Ctrl-C too: an interrupted start must leave nothing running
        with uninterrupted():
            _stop_all(settings.home, report)
        raise


def _choose_ports(settings: Settings, report: Report) -> Mapping[str, int]:
    """Return a free port for each name. A home keeps its ports, so that clients find the services after a restart."""
    kept = addresses.read_ports(settings.home)
    ports = {}
    for name in PORT_NAMES:
        wanted = settings.webserver_port if name == "webserver" else kept.get(name, 0)
        ports[name] = free_port(wanted)
        if wanted and ports[name] != wanted:
            report(f"Port {wanted} is in use; {TITLES.get(name, name)} uses port {ports[name]}.")
    addresses.write_ports(settings.home, ports)
    return ports


def _stop_all(home: Path, report: Report) -> bool:
    """Stop every process of the home and remove its records. Return whether any process was found."""
    found = addresses.processes_of(home)
    with suppress(OSError):  # if the disk cannot be written, they end all the same, and the removal below fails
        addresses.remove_records(home)  # first: the guard starts nothing without them
    if found:
        report(f"Stopping {len(found)} processes ...")
        process = addresses.process_of(home, supervisor.NAME)
        if process is not None:  # first: it stops its services, kills them after STOP_SECONDS, and must outlive them
            _end([process], seconds=2 * STOP_SECONDS)
    left = addresses.processes_of(home)
    for _ in range(MAX_STOP_ROUNDS):
        if left:
            _end(left)
            left = addresses.processes_of(home)
    _remove_records(home)
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise ServiceError(f"These processes of {home} do not end: {pids}.", remedy="Stop them by hand: kill -9 PID.")
    if found:
        report("All stopped.")
    return bool(found)


def _remove_records(home: Path) -> None:
    folder = addresses.run_folder(home)
    addresses.remove_records(home)
    for file in [*folder.glob("*.pid"), *folder.glob("*.sh")]:
        file.unlink(missing_ok=True)


def _end(processes: list[psutil.Process], *, seconds: float = STOP_SECONDS) -> None:
    """Terminate processes and kill those that do not end in time."""
    import psutil

    # psutil compares start times, so a pid that another process uses by now is left alone.
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=STOP_SECONDS)


def _all_ready(settings: Settings) -> bool:
    if addresses.process_of(settings.home, supervisor.NAME) is None:
        return False
    return all(service.state == "ready" for service in status(settings))


def _memory_mb(process: psutil.Process) -> int:
    import psutil

    total = 0
    with suppress(psutil.Error):
        for part in [process, *process.children(recursive=True)]:
            with suppress(psutil.Error):
                total += memory_bytes(part)
    return total >> 20


@contextmanager
def exclusive(home: Path) -> Iterator[None]:
    """Allow one `lake up`, backup or restore of a home at a time. The lock ends with the process that holds it.

    Raises:
        ServiceError: Another one is at work.
    """
    folder = addresses.run_folder(home)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "up.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ServiceError(
                f"Another `lake up`, `lake backup` or `lake restore` is at work on {home}.",
                remedy="Wait until it ends.",
            ) from None
        os.set_inheritable(lock.fileno(), False)
        yield
