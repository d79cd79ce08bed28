"""The services of a machine, really started: up, seen, used, killed, and gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pydantic import SecretStr

from lake_assets.connections import addresses
from lake_assets.connections.addresses import spark_address
from lake_assets.connections.spark import open_spark
from lake_assets.errors import ServiceError, UsageError
from lake_assets.services import lifecycle, supervisor
from lake_assets.services.servers import dagster_environment
from lake_assets.services.service import Service, free_port
from lake_assets.settings import Settings
from lake_assets_tests.processes import lives, wait_until

NO_SPARK = {"spark_remote": "sc://127.0.0.1:1", "zookeeper": "127.0.0.1:1", "kafka": "127.0.0.1:1"}
"""With the others on another machine only Dagster is started here: much quicker, and not asked to run anything."""

PATIENCE_SECONDS = 60.0
"""For what happens soon, on a machine that is slow or stalls."""


class Lines(list[str]):
    """What was reported, as one text."""

    def __str__(self) -> str:
        return "\n".join(self)


@pytest.fixture
def bare_home(bare_home: Settings) -> Iterator[Settings]:
    """A home of which nothing is left running, whatever the test did."""
    chosen = bare_home.model_copy(update={"webserver_port": free_port()})
    yield chosen
    lifecycle.down(chosen, report=print)


def test_nothing_runs_in_a_new_home(bare_home: Settings) -> None:
    said = Lines()
    lifecycle.down(bare_home, report=said.append)
    assert str(said) == "No service is running."
    assert [s.state for s in lifecycle.status(bare_home)] == ["stopped"] * 6
    assert lifecycle.ui_address(bare_home) is None
    assert addresses.spark_remote(bare_home) is None
    assert addresses.kafka_address(bare_home) is addresses.zookeeper_address(bare_home) is None


def test_somebody_elses_services_are_used_and_not_started(bare_home: Settings) -> None:
    theirs = bare_home.model_copy(update={**NO_SPARK, "jars": bare_home.home / "nowhere"})
    assert [s.name for s in lifecycle.status(theirs)] == ["code", "webserver", "daemon"]
    assert addresses.kafka_address(theirs) == addresses.zookeeper_address(theirs) == "127.0.0.1:1"


def test_dagster_gets_every_setting_as_it_is(bare_home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {"erasure_key": SecretStr("the key"), "retain_hours": 5, "serving_groups": {"both": ["one", "other"]}}
    ours = bare_home.model_copy(update=chosen)
    for name, value in dagster_environment(ours).items():
        monkeypatch.setenv(name, value)
    assert Settings(home=ours.home) == ours


def test_what_was_recorded_before_a_reboot_is_not_believed(bare_home: Settings) -> None:
    addresses.write_records(bare_home.home, [addresses.ServiceRecord("spark", 1234)])
    foreign = addresses.run_folder(bare_home.home) / "spark.pid"
    foreign.write_text(str(os.getppid()))  # lives, and is none of ours
    assert addresses.spark_remote(bare_home) is None
    assert lifecycle.status(bare_home)[0].state == "stopped"
    lifecycle.down(bare_home, report=print)
    assert psutil.pid_exists(os.getppid())
    assert not foreign.exists()


def test_a_half_written_record_counts_as_none(bare_home: Settings) -> None:
    addresses.write_records(bare_home.home, [])
    (addresses.run_folder(bare_home.home) / "services.json").write_text('{"services": [{"na')
    assert addresses.read_records(bare_home.home) == []


@pytest.mark.slow
def test_the_whole_life_of_the_services(bare_home: Settings) -> None:
    said = Lines()
    lifecycle.up(bare_home, report=said.append)
    assert f"Dagster's UI: http://127.0.0.1:{bare_home.webserver_port}" in str(said)
    found = {s.name: s for s in lifecycle.status(bare_home)}
    assert {s.state for s in found.values()} == {"ready"}
    assert addresses.spark_remote(bare_home) == spark_address(bare_home.home, found["spark"].port)
    assert addresses.zookeeper_address(bare_home) == f"127.0.0.1:{found['zookeeper'].port}"
    assert addresses.kafka_address(bare_home) == f"127.0.0.1:{found['kafka'].port}"
    session = open_spark(bare_home)
    assert session.range(3).count() == 3
    assert len([*addresses.run_folder(bare_home.home).glob("spark/blockmgr-*")]) == 1
    session.stop()
    assert addresses_listened_to(bare_home) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}

    said.clear()
    lifecycle.up(bare_home, report=said.append)
    assert said[0] == "Already up."
    assert {s.name: s.pid for s in lifecycle.status(bare_home)} == {name: s.pid for name, s in found.items()}

    said.clear()
    lifecycle.restart(bare_home, "webserver", report=said.append)
    assert str(said) == "Stopping webserver ...\nwebserver is ready."
    restarted = {s.name: s for s in lifecycle.status(bare_home)}
    assert [name for name, s in restarted.items() if s.pid != found[name].pid] == ["webserver"]
    assert {(s.state, s.detail) for s in restarted.values()} == {("ready", "")}
    with pytest.raises(UsageError, match="There is no service 'web'"):
        lifecycle.restart(bare_home, "web", report=said.append)
    found = restarted

    processes = [psutil.Process(service.pid) for service in found.values()]
    lifecycle.down(bare_home, report=said.append)
    assert addresses.processes_of(bare_home.home) == []
    assert [process for process in processes if lives(process)] == []
    assert [(s.state, s.detail) for s in lifecycle.status(bare_home)] == [("stopped", "")] * 6
    kept = addresses.read_ports(bare_home.home)
    assert {name: kept[name] for name, s in found.items() if s.port} == {n: s.port for n, s in found.items() if s.port}
    with socket.socket() as used:
        used.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # clients of the broker may have just left it
        used.bind(("127.0.0.1", kept["kafka"]))
        used.listen()
        said.clear()
        again = lifecycle._choose_ports(bare_home, said.append)
    assert str(said) == f"Port {kept['kafka']} is in use; kafka uses port {again['kafka']}."
    assert {**again, "kafka": 0} == {**kept, "kafka": 0}


def test_down_ends_also_what_a_process_starts_while_it_is_asked_to_end(bare_home: Settings) -> None:
    heir = [sys.executable, "-c", "import time; time.sleep(600)"]
    dying = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: (subprocess.Popen({heir!r}), sys.exit()))
print("ready", flush=True)
time.sleep(600)
"""
    environment = {**os.environ, addresses.OWNER_VARIABLE: str(bare_home.home)}
    with subprocess.Popen([sys.executable, "-c", dying], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        lifecycle.down(bare_home, report=print)
    assert addresses.processes_of(bare_home.home) == []


def test_down_waits_until_the_supervisor_has_killed_a_service_that_does_not_end(bare_home: Settings) -> None:
    ignoring = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""
    stubborn = Service("stubborn", (sys.executable, "-c", ignoring), bare_home.home, ready=lambda: True)
    process = supervisor.start([stubborn], bare_home.home)
    wait_until(lambda: stubborn.log.exists() and "ready" in stubborn.log.read_text(), PATIENCE_SECONDS)
    lifecycle.down(bare_home, report=print)
    assert process.wait(PATIENCE_SECONDS) == 0
    assert "stopped: stubborn (terminated by SIGKILL)" in supervisor.log_of(bare_home.home).read_text()


@pytest.mark.journey
def test_a_stack_repairs_itself_and_stands_beside_another(bare_home: Settings, tmp_path: Path) -> None:
    first = bare_home.model_copy(update=NO_SPARK)
    second = first.model_copy(update={"home": tmp_path / "second"})
    lifecycle.up(first, report=print)
    before = pids(first)
    assert_a_killed_service_comes_back(first)
    assert {**pids(first), "daemon": 0} == {**before, "daemon": 0}
    said = Lines()
    try:
        lifecycle.up(second, report=said.append)
        assert f"Port {first.webserver_port} is in use" in str(said)
        assert lifecycle.ui_address(first) != lifecycle.ui_address(second)
        assert_all_come_back_when_the_supervisor_is_killed(first)
        assert {s.state for s in lifecycle.status(second)} == {"ready"}
    finally:
        lifecycle.down(second, report=print)


def pids(settings: Settings) -> dict[str, int | None]:
    return {service.name: service.pid for service in lifecycle.status(settings)}


def assert_a_killed_service_comes_back(alone: Settings) -> None:
    process = addresses.process_of(alone.home, "daemon")
    assert process is not None
    process.kill()
    wait_until(lambda: pids(alone)["daemon"] not in {None, process.pid}, 180)
    assert {s.name: s.detail for s in lifecycle.status(alone)}["daemon"] == "ended by itself once, last with code -9"
    wait_until(lambda: {s.state for s in lifecycle.status(alone)} == {"ready"}, 180)


def assert_all_come_back_when_the_supervisor_is_killed(alone: Settings) -> None:
    before = pids(alone)
    address = lifecycle.ui_address(alone)
    kept = addresses.process_of(alone.home, supervisor.NAME)
    assert kept is not None
    kept.kill()
    kept.wait(PATIENCE_SECONDS)
    wait_until(lambda: all(pid not in {None, before[name]} for name, pid in pids(alone).items()), 180)
    wait_until(lambda: {s.state for s in lifecycle.status(alone)} == {"ready"}, 180)
    assert lifecycle.ui_address(alone) == address
    wait_until(lambda: "Dagster's UI" in (alone.home / "logs" / "restarts.log").read_text(), 180)
    lifecycle.down(alone, report=print)
    assert addresses.processes_of(alone.home) == []


def test_down_finds_what_a_killed_supervisor_left(bare_home: Settings) -> None:
    addresses.write_records(bare_home.home, [])
    orphan = Service("steady", ("sleep", "600"), bare_home.home, ready=lambda: True)
    kept = supervisor.start([orphan], bare_home.home)
    wait_until(lambda: addresses.process_of(bare_home.home, "steady") is not None, PATIENCE_SECONDS)
    kept.kill()
    kept.wait(PATIENCE_SECONDS)
    assert [p.name() for p in addresses.processes_of(bare_home.home)] == ["sleep"]
    lifecycle.down(bare_home, report=print)
    assert addresses.processes_of(bare_home.home) == []


@pytest.mark.slow
def test_a_service_that_ends_at_its_start_is_named_with_its_log(bare_home: Settings) -> None:
    broken = bare_home.model_copy(update={**NO_SPARK, "pipelines": "nowhere:PIPELINE"})
    with pytest.raises(ServiceError, match=r"The service code ended with code 1(.|\n)*nowhere(.|\n)*LAKE_PIPELINES"):
        lifecycle.up(broken, report=print)
    assert addresses.processes_of(broken.home) == []


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.journey),
        pytest.param(signal.SIGTERM, marks=pytest.mark.faults),
    ],
)
def test_an_interrupted_start_leaves_nothing_running(bare_home: Settings, kind: signal.Signals) -> None:
    command = [sys.executable, "-m", "lake_assets.cli.main", "up"]
    environment = {**os.environ, "LAKE_HOME": str(bare_home.home), "LAKE_WEBSERVER_PORT": str(bare_home.webserver_port)}
    starting = subprocess.Popen(command, env=environment)
    wait_until(lambda: addresses.process_of(bare_home.home, "webserver") is not None, PATIENCE_SECONDS)
    starting.send_signal(kind)
    time.sleep(0.2)
    starting.send_signal(kind)  # who is impatient leaves nothing behind either
    assert starting.wait(PATIENCE_SECONDS) == 128 + kind
    assert addresses.processes_of(bare_home.home) == []


def test_a_service_that_was_declared_later_is_not_waited_for(bare_home: Settings) -> None:
    started = Service("daemon", ("sleep", "600"), bare_home.home, ready=lambda: True)
    supervisor.start([started], bare_home.home)
    addresses.write_records(bare_home.home, [addresses.ServiceRecord("daemon", None)])
    try:
        with pytest.raises(ServiceError, match=r"The service webserver was not started(.|\n)*→ Run `lake up`\."):
            lifecycle.restart(bare_home, "webserver", report=print)
    finally:
        lifecycle.down(bare_home, report=print)


def test_only_one_start_of_a_home_at_a_time(bare_home: Settings) -> None:
    with lifecycle.exclusive(bare_home.home), pytest.raises(ServiceError, match="Another `lake up`"):
        lifecycle.up(bare_home, report=print)


def test_a_free_port_is_found_beside_a_used_one() -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = used.getsockname()[1]
        assert free_port(port) != port


def test_a_free_port_is_none_that_a_connection_could_take() -> None:
    first, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    for _ in range(20):
        assert free_port() < first


def addresses_listened_to(settings: Settings) -> set[str]:
    connections = [c for p in addresses.processes_of(settings.home) for c in p.net_connections("inet")]
    return {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
