"""A Spark Connect server of a test's own, which it may kill and start again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from lake_assets.connections.addresses import create_spark_token, spark_address
from lake_assets.services.servers import spark as spark_service
from lake_assets.services.service import free_port
from lake_assets.settings import Settings


class SparkOfItsOwn:
    """A Spark Connect server with little memory, which may be killed. A context manager.

    Attributes:
        address: With its token.
        pid: Of the process that runs now.
        restarting: A script that kills it and starts it again.
    """

    def __init__(self, home: Path) -> None:
        create_spark_token(home)
        port = free_port()
        self.address = spark_address(home, port)
        self._service = spark_service(Settings(home=home, spark_memory="700m"), port)
        self._pid_file = home / "spark.pid"
        self.restarting = home / "restart.py"
        self.restarting.write_text(
            RESTART.format(
                pid_file=str(self._pid_file),
                command=list(self._service.command),
                environment=self._service.full_environment,
                log=str(home / "spark.log"),
                port=port,
            )
        )

    @property
    def pid(self) -> int:
        return int(self._pid_file.read_text())

    def start_again(self) -> None:
        subprocess.run([sys.executable, str(self.restarting)], check=True)

    def __enter__(self) -> SparkOfItsOwn:
        self.start_again()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


RESTART = """
import os, pathlib, signal, socket, subprocess, time
pid_file = pathlib.Path({pid_file!r})
if pid_file.exists():
    try:
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
    except ProcessLookupError:
        pass
for _ in range(50):  # its port is free again
    try:
        socket.create_connection(("127.0.0.1", {port}), 1).close()
        time.sleep(0.2)
    except OSError:
        break
started = subprocess.Popen(
    {command!r}, env={environment!r}, stdin=subprocess.DEVNULL, stdout=open({log!r}, "a"), stderr=subprocess.STDOUT,
    start_new_session=True,
)
pid_file.write_text(str(started.pid))
for _ in range(600):
    try:
        socket.create_connection(("127.0.0.1", {port}), 1).close()
        break
    except OSError:
        time.sleep(0.2)
"""
