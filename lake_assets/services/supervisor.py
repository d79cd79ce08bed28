"""The process that runs the services: supervisord, detached from the terminal. It starts a service again when it ends.

A service that ends soon after its start is started again after 1 s, then 2 s, then 3 s and so on, for ever; the others
go on. supervisord cannot take over the services of another one: if it is killed, the guard, which is one more process
beside the services, stops what is left and starts everything again.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lake_assets.connections.addresses import OWNER_VARIABLE, run_folder
from lake_assets.errors import ServiceError
from lake_assets.services.service import STOP_SECONDS, Service, python_module

if TYPE_CHECKING:
    from lake_assets.settings import Settings

NAME = "supervisor"
"""Name of its log and its pid file."""

START_SECONDS = 10
"""A service that ends earlier counts as failed at its start: it is started again after a growing pause."""

LOG_MB = 20
"""A log that is longer becomes `.log.1`."""

MANAGER = """[supervisord]
nodaemon=true
silent=true
logfile=logs/{name}.log
logfile_maxbytes={log_mb}MB
logfile_backups=1
pidfile=run/{name}.pid
"""
PROGRAM = """
[program:{name}]
command=/bin/sh run/{name}.sh
autorestart=true
startsecs={start_seconds}
startretries=1000000000
stopwaitsecs={stop_seconds}
killasgroup=true
redirect_stderr=true
stdout_logfile=logs/{name}.log
stdout_logfile_maxbytes={log_mb}MB
stdout_logfile_backups=1
"""

GUARD = """import os, subprocess, sys, time
with open("run/supervisor.pid") as file:
    parent = int(file.read())
while os.getppid() == parent:
    time.sleep(1)
with open("logs/restarts.log", "ab") as log:
    while os.path.exists("run/services.json") and subprocess.call(sys.argv[1:], stdout=log, stderr=log):
        time.sleep(10)
"""
"""A Python program. When its first parent has ended it calls a command until that succeeds, or `lake down` was called.
"""
START_ALL = "from lake_assets.services.lifecycle import start_again; start_again()"

STOP_RECEIVED = re.compile(r" received SIG(TERM|INT|QUIT) indicating exit request")
"""Logged before supervisord stops the services; what ended before that ended by itself."""

EXITED = re.compile(
    r" exited: (\S+) \((?!exit status 0; expected|exit status 143\b|terminated by SIGTERM)"
    r"(exit status|terminated by) (\w+)"
)
"""Not of a service that was told to end: by `lake restart`, or because the definitions are loaded anew."""
RUNNING = re.compile(r" success: (\S+) entered RUNNING state")


@dataclass(frozen=True)
class Ended:
    """A service that ended by itself. code: its exit code; negative for the signal that ended it."""

    name: str
    code: int


@dataclass(frozen=True)
class Failures:
    """How often a service has ended by itself.

    Attributes:
        count: Since `lake up`.
        in_a_row: Since it ran for `START_SECONDS` without ending.
        code: Exit code of the last time.
    """

    count: int
    in_a_row: int
    code: int


MEMORY = {"MALLOC_ARENA_MAX": "2"}
"""By default a process has up to eight heaps of glibc for each processor, and memory that one has freed stays in it."""


def log_of(home: Path) -> Path:
    """Return the path of the supervisor's log."""
    return home / "logs" / f"{NAME}.log"


def start(services: Sequence[Service], home: Path) -> subprocess.Popen[bytes]:
    """Start the supervisor in its own session, so that neither Ctrl-C nor a closed terminal ends it."""
    environment = {**MEMORY, **os.environ, OWNER_VARIABLE: str(home)}
    sections = [MANAGER.format(name=NAME, log_mb=LOG_MB)]
    for service in services:
        service.make_folders()
        (run_folder(home) / f"{service.name}.sh").write_text(f"{service.line}\n")
        environment |= service.environment
        sections.append(
            PROGRAM.format(name=service.name, start_seconds=START_SECONDS, stop_seconds=STOP_SECONDS, log_mb=LOG_MB)
        )
    configuration = run_folder(home) / f"{NAME}.conf"
    configuration.write_text("".join(sections))
    log_of(home).unlink(missing_ok=True)
    process = subprocess.Popen(
        python_module("supervisor.supervisord", "--configuration", str(configuration)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # on a full disk, a message that cannot be written would end it
        stderr=subprocess.DEVNULL,
        cwd=home,
        env=environment,
        start_new_session=True,
    )
    (run_folder(home) / f"{NAME}.pid").write_text(str(process.pid))
    return process


def guard(settings: Settings) -> Service:
    """Return the process that starts all services anew if the supervisor is killed.

    Args:
        settings: The settings of `lake up`. The supervisor's environment names the services that it runs as those of
            the settings. The guard must not see them: it would take them for services of somebody else.
    """
    addresses = {
        "LAKE_SPARK_REMOTE": settings.spark_remote,
        "LAKE_ZOOKEEPER": settings.zookeeper,
        "LAKE_KAFKA": settings.kafka,
    }
    unset = [f"--unset={name}" for name, value in addresses.items() if value is None]
    program = (sys.executable, "-I", "-S", "-c", GUARD, sys.executable, "-c", START_ALL)
    return Service(name="guard", command=("env", *unset, *program), home=settings.home, ready=lambda: True)


def first_to_end(home: Path) -> Ended | None:
    """Return the service that ended first without a request to stop; None if none did."""
    for event in _events(home):
        if isinstance(event, Ended):
            return event
    return None


def failures(home: Path) -> dict[str, Failures]:
    """Return the services that have ended by themselves since `lake up`, with how often."""
    found: dict[str, Failures] = {}
    for event in _events(home):
        if isinstance(event, Ended):
            before = found.get(event.name, Failures(0, 0, 0))
            found[event.name] = Failures(before.count + 1, before.in_a_row + 1, event.code)
        elif event in found:
            found[event] = Failures(found[event].count, 0, found[event].code)
    return found


def died(services: Sequence[Service], home: Path) -> ServiceError:
    """Return the error of a failed start. It names the service that ended first."""
    ended = first_to_end(home)
    for service in services:
        if ended is not None and service.name == ended.name:
            return service.died(ended.code)
    return ServiceError(
        f"The services were stopped while they started; see {log_of(home)}.",
        remedy="Run `lake up` again.",
    )


def _events(home: Path) -> Iterator[Ended | str]:
    """Yield in order each end of a service, and the name of each service that runs without trouble since."""
    try:
        log = log_of(home).read_text(errors="replace")
    except FileNotFoundError:
        return
    before_stop = STOP_RECEIVED.split(log, maxsplit=1)[0]
    for line in before_stop.splitlines():
        if ended := EXITED.search(line):
            name, kind, value = ended.groups()
            yield Ended(name, int(value) if kind == "exit status" else -_signal_number(value))
        elif running := RUNNING.search(line):
            yield running[1]


def _signal_number(name: str) -> int:
    """Return the number of a signal that supervisord has logged by its name, or as `signal` and a number."""
    try:
        return int(signal.Signals[name])
    except KeyError:
        return 0
