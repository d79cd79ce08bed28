"""Served pages: on loopback, under their own name only, until Ctrl-C, and nothing is left."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import pytest

from lake_assets.cli.report import listening
from lake_assets.connections.addresses import REPORT_FILE, dashboard_file, report_port
from lake_assets.errors import ServiceError

if TYPE_CHECKING:
    from lake_assets.settings import Settings

LONGEST = 240


@pytest.mark.parametrize(
    ("command", "name", "remedy", "record"),
    [
        ("report --serve", "The report", "lake init", REPORT_FILE),
        (
            "engagement dashboard email_event --serve",
            "The dashboard",
            "lake engagement init LAKE",
            dashboard_file("email_event"),
        ),
    ],
)
def test_the_page_is_served_until_ctrl_c_and_an_error_is_a_page(
    command: str, name: str, remedy: str, record: str, bare_home: Settings
) -> None:
    bare_home.home.mkdir()
    program = [sys.executable, "-m", "lake_assets.cli.main", *command.split()]
    environment = {**os.environ, "LAKE_HOME": str(bare_home.home), "LAKE_LAKES": "email_event"}
    with subprocess.Popen(
        program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout
            said = re.fullmatch(
                name + r" is served on (http://127\.0\.0\.1:(\d+)) until you press Ctrl-C\.\n",
                server.stdout.readline(),
            )
            assert said
            port = int(said[2])
            assert report_port(bare_home.home, name=record) == port
            refused = httpx.get(said[1], headers={"Host": "evil.example"}, timeout=LONGEST)
            assert (refused.status_code, f"{name} is not served under" in refused.text) == (421, True)
            page = httpx.get(said[1], timeout=LONGEST)
            assert (page.status_code, f"<code>{remedy}</code>" in page.text) == (503, True)
        finally:
            server.send_signal(signal.SIGINT)
            _, complaints = server.communicate(timeout=LONGEST)
    assert (server.returncode, complaints) == (0, "")
    assert list(bare_home.home.glob("run/*")) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


def test_a_port_that_is_taken_is_an_error_with_a_remedy() -> None:
    with listening(0) as (_, port), pytest.raises(ServiceError, match=f"Port {port} of 127.0.0.1") as caught:
        listening(port).__enter__()
    assert "--port" in caught.value.remedy
