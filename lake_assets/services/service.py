"""A service: its command, environment, log and readiness check. Starts services as child processes.

`stack.py` lists the services of a machine. `supervisor.py` and `lifecycle.py` run all of them in the background.
"""

from __future__ import annotations

import http.client
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from lake_assets.connections.addresses import LOOPBACK, OWNER_VARIABLE, run_folder
from lake_assets.errors import ServiceError

Check = Callable[[], bool]
POLL_SECONDS = 0.1
STOP_SECONDS = 8
"""Time for a process to end after SIGTERM; then it gets SIGKILL."""

OWNER_FILE = 0o600
"""A file of a service may contain a password."""

SERVICE_PORTS = range(15_000, 32_768)
PORT_TRIES = 100

JAVA = 17
JAVA_SECONDS = 60
CONNECT_SECONDS = 1
ANSWER_SECONDS = 2
ERROR_LINE = re.compile(r"[\w.]*(Error|Exception)\b")
WAIT_FOR_PORT = """import os, socket, sys, time
while socket.socket().connect_ex(("127.0.0.1", int(sys.argv[1]))):
    time.sleep(0.1)
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""A Python program that becomes the command of its arguments when a process accepts connections on the port."""


@dataclass(frozen=True)
class Service:
    """One process of this machine.

    Attributes:
        name: Unique in a home; names the log and the pid file.
        command: Program and arguments.
        home: Data directory that the service belongs to, and its working directory.
        ready: Returns True once the service can be used. It is cheap and never raises.
        port: Port on loopback; None if the service listens to none.
        after: Port of a service that must listen before this one starts; None to start at once.
        environment: Variables to add to the environment of `lake up`.
        files: Files that the service reads, with their contents; written before each start.
        patience: Seconds until a service that is not ready counts as stuck.
        remedy: What to do if the service does not start.
    """

    name: str
    command: tuple[str, ...]
    home: Path
    ready: Check
    port: int | None = None
    after: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[Path, str] = field(default_factory=dict)
    patience: float = 120
    remedy: str = "Read the log, then run `lake down` and `lake up`."

    @property
    def log(self) -> Path:
        return self.home / "logs" / f"{self.name}.log"

    @property
    def line(self) -> str:
        """Return a line for sh that writes the pid file and then replaces the shell with the service."""
        pid_file = shlex.quote(str(run_folder(self.home) / f"{self.name}.pid"))
        # `exec` keeps the pid of the shell, so the recorded pid is the service's own, also while it waits.
        return f"echo $$ > {pid_file} && exec {shlex.join((*self._wait_command, *self.command))} < /dev/null"

    @property
    def _wait_command(self) -> tuple[str, ...]:
        if not self.after:
            return ()
        return (sys.executable, "-I", "-S", "-c", WAIT_FOR_PORT, str(self.after))

    @property
    def full_environment(self) -> dict[str, str]:
        return {**os.environ, OWNER_VARIABLE: str(self.home), **self.environment}

    def make_folders(self) -> None:
        """Create the folders and files of the service. The log of the last start becomes `.log.1`."""
        for file, text in self.files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=OWNER_FILE)
            file.chmod(OWNER_FILE)
            file.write_text(text)
        run_folder(self.home).mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".log.1"))

    def tail(self, count: int = 8) -> str:
        """Return the last lines of the log, and before them the last earlier lines that name an error.

        Args:
            count: Maximum number of lines of each kind.
        """
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return "    (no log)"
        # A traceback starts with its cause, so the cause may be far above the end of the log.
        errors = [line for line in lines[:-count] if ERROR_LINE.match(line)]
        shown = errors[-count:] + lines[-count:]
        return "\n".join(f"    {line}" for line in shown)

    def died(self, code: int | None) -> ServiceError:
        """Return the error of a service that ended before it was ready.

        Args:
            code: Its exit code; None if it is not known.
        """
        ended = "ended" if code is None else f"ended with code {code}"
        return self._error(f"{ended} at its start")

    def stuck(self) -> ServiceError:
        """Return the error of a service that runs but is not ready in time."""
        return self._error(f"is not ready after {self.patience:.0f} s")

    def _error(self, problem: str) -> ServiceError:
        return ServiceError(
            f"The service {self.name} {problem}. The end of {self.log}:\n{self.tail()}",
            remedy=self.remedy,
        )


def free_port(wanted: int = 0) -> int:
    """Return `wanted` if no process listens to it on loopback, otherwise any free port.

    It is below those that the system gives to connections, one of which could take it before a service listens to it.
    """
    candidates = [wanted] if wanted else []
    candidates += random.SystemRandom().sample(SERVICE_PORTS, PORT_TRIES)
    for port in candidates:
        if _is_free(port):
            return port
    raise ServiceError(f"None of {PORT_TRIES} ports is free.", remedy="Stop what listens to so many ports.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def accepts(port: int) -> Check:
    """Return a check that a process accepts connections on the port."""

    def check() -> bool:
        with socket.socket() as probe:
            probe.settimeout(CONNECT_SECONDS)
            return probe.connect_ex((LOOPBACK, port)) == 0

    return check


def answers(url: str, containing: str) -> Check:
    """Return a check that the address answers with success and that the answer contains this text."""

    def check() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as response:
                return containing.encode() in response.read()
        except (http.client.HTTPException, OSError):  # urllib's own errors are OSErrors
            return False

    return check


def log_says(log: Path, pattern: str) -> Check:
    """Return a check that the log matches a regular expression, for a service without a port."""

    def check() -> bool:
        try:
            return re.search(pattern, log.read_text(errors="replace")) is not None
        except FileNotFoundError:
            return False

    return check


@contextmanager
def running(service: Service) -> Iterator[Service]:
    """Run a service as a child of this process until the block ends. Yield it when it is ready.

    Raises:
        ServiceError: The service ended at its start or is stuck.
    """
    with all_running([service]):
        yield service


@contextmanager
def all_running(services: Sequence[Service]) -> Iterator[None]:
    """Run several services, which may need each other to become ready, until the block ends.

    Raises:
        ServiceError: A service ended at its start or is stuck.
    """
    with ExitStack() as stack:
        processes = [stack.enter_context(_child(service)) for service in services]
        for service, process in zip(services, processes, strict=True):
            _wait(service, process)
        yield


@contextmanager
def _child(service: Service) -> Iterator[subprocess.Popen[bytes]]:
    service.make_folders()
    with service.log.open("wb") as log:
        process = subprocess.Popen(
            service.line,
            shell=True,
            cwd=service.home,
            env=service.full_environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        with uninterrupted():
            _stop_group(process)


def _wait(service: Service, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + service.patience
    while not service.ready():
        code = process.poll()
        if code is not None:
            raise service.died(code)
        if time.monotonic() > deadline:
            raise service.stuck()
        time.sleep(POLL_SECONDS)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM until the block ends: who presses it twice must leave no process behind."""
    kinds = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = [(kind, signal.signal(kind, signal.SIG_IGN)) for kind in kinds]
    try:
        yield
    finally:
        for kind, handler in before:
            signal.signal(kind, signal.SIG_DFL if handler is None else handler)


def _stop_group(process: subprocess.Popen[bytes]) -> None:
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
        except ProcessLookupError:
            break


def python_module(*words: str) -> tuple[str, ...]:
    """Return the command that runs a Python module with this interpreter.

    Args:
        words: Name of the module, then its arguments.
    """
    return (sys.executable, "-m", *words)


def java(classpath: str, *, heap_mb: int) -> tuple[str, ...]:
    """Return the command of a small Java program that starts fast, up to its main class, which the caller appends.

    The program logs warnings to standard output.
    """
    options = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Duser.timezone=UTC", "-Dlog4j2.level=WARN")
    return (java_command(), f"-Xmx{heap_mb}m", *options, "-cp", classpath)


def java_command() -> str:
    """Return the path of Java's program. Like Spark, it uses JAVA_HOME if that is set."""
    java_home = os.environ.get("JAVA_HOME")
    return str(Path(java_home) / "bin" / "java") if java_home else "java"


def java_version() -> str | None:
    """Return the output of `java -version`; None if no Java runs."""
    command = [java_command(), "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=JAVA_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stderr + done.stdout


def check_java(output: str | None) -> None:
    """Raise `ServiceError` if Java is missing or too old. output: what `java_version` returns."""
    remedy = "Install Java 17 or 21 (for example openjdk-17-jre-headless or temurin-17), or set JAVA_HOME to one."
    found = re.search(r'version "(?:1\.)?(\d+)', output or "")
    if found is None:
        raise ServiceError("There is no Java that runs.", remedy=remedy)
    if int(found[1]) < JAVA:
        raise ServiceError(f"Java is {found[1]}; {JAVA} or later is needed.", remedy=remedy)
