"""What a service is: its command, environment, log, and how to see that it is ready. Starting one, and waiting for it.

Which services there are is said in `stack.py`; keeping them all, in `keeper.py` and `services.py`.
"""

from __future__ import annotations

import http.client
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lake_assets.connections.addresses import OWNER_VARIABLE, run_folder
from lake_assets.errors import ServiceError
from lake_assets.services.bootstrap import java_command

Check = Callable[[], bool]
POLL_SECONDS = 0.1
STOP_SECONDS = 8
ERROR_LINE = re.compile(r"[\w.]*(Error|Exception)\b")
WAIT = "import socket, time\nwhile socket.socket().connect_ex(('127.0.0.1', {port})): time.sleep(0.1)"
"""A program that ends when something accepts connections on the port."""


@dataclass(frozen=True)
class Service:
    """One process of this machine. It listens, if at all, to `port` on loopback.

    after: the port of a service that must listen before this one begins; None: it begins at once.
    environment: what is added to the environment of `lake up`. files: what it reads, written before it begins.
    ready: true once it can be used; cheap, never raises.
    patience: seconds until a service that is not ready counts as stuck. remedy: what to do when it will not start.
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
    remedy: str = "Read its log; `lake down`, then `lake up`, starts anew."

    @property
    def log(self) -> Path:
        return self.home / "logs" / f"{self.name}.log"

    @property
    def line(self) -> str:
        """A line for sh that becomes the service itself: the pid that it records is the service's own."""
        pid_file = shlex.quote(str(run_folder(self.home) / f"{self.name}.pid"))
        wait = shlex.join((sys.executable, "-I", "-S", "-c", WAIT.format(port=self.after))) if self.after else "true"
        into = f"> {shlex.quote(str(self.log))} 2>&1 < /dev/null"
        return f"echo $$ > {pid_file} && {wait} && exec {shlex.join(self.command)} {into}"

    @property
    def full_environment(self) -> dict[str, str]:
        return {**os.environ, OWNER_VARIABLE: str(self.home), **self.environment}

    def make_folders(self) -> None:
        """The folders it writes to, and its files; the log of its last start is kept beside the new one."""
        for file, text in self.files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        run_folder(self.home).mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".log.1"))

    def tail(self, count: int = 8) -> str:
        """The lines of its log that name errors, since a traceback begins with its cause, and the last ones."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return "    (no log)"
        causes = [line for line in lines[:-count] if ERROR_LINE.match(line)]
        return "\n".join(f"    {line}" for line in (*causes[-count:], *lines[-count:]))

    def died(self, code: int | None) -> ServiceError:
        ended = "ended" if code is None else f"ended with code {code}"
        return ServiceError(
            f"The service {self.name} {ended} at its start. The end of {self.log}:\n{self.tail()}", remedy=self.remedy
        )

    def stuck(self) -> ServiceError:
        return ServiceError(
            f"The service {self.name} is not ready after {self.patience:.0f} s. The end of {self.log}:\n{self.tail()}",
            remedy=self.remedy,
        )


def free_port(wanted: int = 0) -> int:
    """`wanted` if nothing listens to it on loopback, else any free port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return free_port()
        return int(probe.getsockname()[1])


def accepts(port: int) -> Check:
    """Ready when something accepts connections on the port."""

    def check() -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", port)) == 0

    return check


def answers(url: str, containing: str) -> Check:
    """Ready when the address answers with success, and with this text somewhere."""

    def check() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=2) as response:
                return containing.encode() in response.read()
        except (http.client.HTTPException, OSError):  # urllib's own errors are OSErrors
            return False

    return check


def log_says(log: Path, pattern: str) -> Check:
    """Ready when a line of the log matches: for what listens to no port."""

    def check() -> bool:
        try:
            return re.search(pattern, log.read_text(errors="replace")) is not None
        except FileNotFoundError:
            return False

    return check


@contextmanager
def running(service: Service) -> Iterator[Service]:
    """The service, ready, as a child of this process; gone when the block ends. For tests and tools."""
    with all_running([service]):
        yield service


@contextmanager
def all_running(services: Sequence[Service]) -> Iterator[None]:
    """The same for several that are only ready together, as the servers of an ensemble are."""
    with ExitStack() as stack:
        processes = [stack.enter_context(_child(service)) for service in services]
        for service, process in zip(services, processes, strict=True):
            _wait(service, process)
        yield


@contextmanager
def _child(service: Service) -> Iterator[subprocess.Popen[bytes]]:
    service.make_folders()
    process = subprocess.Popen(
        service.line,
        shell=True,
        cwd=service.home,
        env=service.full_environment,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        _stop_group(process)


def _wait(service: Service, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + service.patience
    while not service.ready():
        if (code := process.poll()) is not None:
            raise service.died(code)
        if time.monotonic() > deadline:
            raise service.stuck()
        time.sleep(POLL_SECONDS)


def _stop_group(process: subprocess.Popen[bytes]) -> None:
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
            process.wait(STOP_SECONDS)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue


def python_module(*words: str) -> tuple[str, ...]:
    """The command of a Python module, in this interpreter."""
    return (sys.executable, "-m", *words)


def java(classpath: str, *, heap_mb: int) -> tuple[str, ...]:
    """The command of a small, quickly started Java program, without its class. It logs warnings to standard output."""
    options = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Duser.timezone=UTC", "-Dlog4j2.level=WARN")
    return (java_command(os.environ.get("JAVA_HOME")), f"-Xmx{heap_mb}m", *options, "-cp", classpath)
