"""supervisord's log says which services ended by themselves, and how often; supervisord starts them again."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from lake_assets.services.service import Service, free_port
from lake_assets.services.supervisor import Ended, Failures, died, failures, first_to_end, log_of, start
from lake_assets_tests.processes import lives

T = TypeVar("T")
AT = "2026-01-01 12:00:00,123"
STARTED = f"{AT} INFO spawned: 'spark' with pid 1\n{AT} INFO spawned: 'code' with pid 2\n"
CODE_FAILED = f"{AT} WARN exited: code (exit status 1; not expected)\n"
CODE_RUNS = f"{AT} INFO success: code entered RUNNING state, process has stayed up for > than 10 seconds (startsecs)\n"
SPARK_KILLED = f"{AT} WARN exited: spark (terminated by SIGKILL (core dumped); not expected)\n"
ASKED_TO_STOP = f"{AT} WARN received SIGTERM indicating exit request\n{AT} INFO waiting for spark, code to die\n"


@pytest.mark.parametrize(
    ("log", "first", "expected"),
    [
        (STARTED, None, {}),
        (STARTED + CODE_FAILED + SPARK_KILLED, Ended("code", 1), {"code": (1, 1, 1), "spark": (1, 1, -9)}),
        (STARTED + SPARK_KILLED + CODE_FAILED * 2, Ended("spark", -9), {"code": (2, 2, 1), "spark": (1, 1, -9)}),
        (CODE_RUNS + CODE_FAILED * 2 + CODE_RUNS + CODE_FAILED, Ended("code", 1), {"code": (3, 1, 1)}),
        (STARTED + CODE_FAILED + CODE_RUNS, Ended("code", 1), {"code": (1, 0, 1)}),
        (STARTED + ASKED_TO_STOP + CODE_FAILED, None, {}),
    ],
)
def test_what_ended_without_a_request_is_counted(
    tmp_path: Path, log: str, first: Ended | None, expected: dict[str, tuple[int, int, int]]
) -> None:
    log_of(tmp_path).parent.mkdir()
    log_of(tmp_path).write_text(log)
    assert first_to_end(tmp_path) == first
    assert failures(tmp_path) == {name: Failures(*counts) for name, counts in expected.items()}


def test_without_a_log_nothing_ended(tmp_path: Path) -> None:
    assert first_to_end(tmp_path) is None
    assert str(log_of(tmp_path)) in str(died([], tmp_path))


def test_a_service_that_ends_is_started_again_and_the_others_go_on(tmp_path: Path) -> None:
    home = tmp_path / "a home; with #, 50% and 'quotes'"
    steady = Service("steady", ("sleep", "600"), home, ready=lambda: True)
    killed = Service("killed", ("sh", "-c", "echo started; exec sleep 600"), home, ready=lambda: True)
    failing = Service("failing", ("sh", "-c", "echo $WHY; exit 3"), home, lambda: True, environment={"WHY": "50% #;"})
    process = start([steady, killed, failing], home)
    try:
        first = wait_for(lambda: pid_of(killed))
        steady_pid = wait_for(lambda: pid_of(steady))
        steady_process = psutil.Process(steady_pid)
        wait_for(lambda: "started" in killed.log.read_text())
        psutil.Process(first).kill()
        second = wait_for(lambda: pid_of(killed) if pid_of(killed) != first else None)
        assert psutil.Process(second).cmdline()[-1] == "600"
        assert pid_of(steady) == steady_pid
        wait_for(lambda: failures(home).get("failing", Failures(0, 0, 0)).in_a_row >= 3)
        assert failures(home)["failing"].code == 3
        assert failures(home)["killed"].code == -9
        assert "steady" not in failures(home)
        assert failing.log.read_text().splitlines()[0] == "50% #;"
    finally:
        process.terminate()
        assert process.wait(60) == 0
    assert not lives(steady_process)


def test_nothing_of_a_service_that_waits_for_another_one_stays_behind(tmp_path: Path) -> None:
    waiting = Service("waiting", ("sleep", "600"), tmp_path, ready=lambda: True, after=free_port())
    process = start([waiting], tmp_path)
    try:
        waits = psutil.Process(wait_for(lambda: pid_of(waiting)))
        wait_for(lambda: "connect_ex" in " ".join(waits.cmdline()))
        family = [waits, *waits.children(recursive=True)]
    finally:
        process.terminate()
        assert process.wait(60) == 0
    wait_for(lambda: not any(lives(each) for each in family))


def test_a_service_starts_with_the_same_process_once_the_other_one_listens(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        waiting = Service("waiting", ("sleep", "600"), tmp_path, ready=lambda: True, after=other.getsockname()[1])
        process = start([waiting], tmp_path)
        try:
            waits = psutil.Process(wait_for(lambda: pid_of(waiting)))
            wait_for(lambda: "connect_ex" in " ".join(waits.cmdline()))
            other.listen()
            wait_for(lambda: waits.cmdline() == ["sleep", "600"])
            assert pid_of(waiting) == waits.pid
        finally:
            process.terminate()
            assert process.wait(60) == 0


def pid_of(service: Service) -> int | None:
    file = service.home / "run" / f"{service.name}.pid"
    return int(file.read_text()) if file.exists() and file.read_text().strip() else None


def wait_for(value: Callable[[], T | None], seconds: float = 60) -> T:
    deadline = time.monotonic() + seconds
    while not (found := value()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found
