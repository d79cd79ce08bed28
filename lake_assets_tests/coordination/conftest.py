"""Clients with short sessions, closed at the end; names that no other test uses on a shared server; an ensemble."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from kazoo.client import KazooClient

from lake_assets.coordination import zookeeper_client
from lake_assets.local.service import Service, all_running
from lake_assets.local.state import run_folder
from lake_assets.local.zookeeper import ensemble, mode

SESSION_SECONDS = 2.0
Connect = Callable[[], KazooClient]


@pytest.fixture
def connect(zookeeper: str) -> Iterator[Connect]:
    """Opens clients on the shared server, each with a session of its own."""
    with ExitStack() as stack:

        def opened() -> KazooClient:
            return stack.enter_context(zookeeper_client(zookeeper, session_seconds=SESSION_SECONDS))

        yield opened


@pytest.fixture
def lock_name() -> str:
    return f"lake-{uuid.uuid4().hex[:8]}"


class Ensemble:
    """The three servers, which a test may take away for a while."""

    def __init__(self, servers: list[Service], restarted: ExitStack) -> None:
        self.servers = servers
        self._restarted = restarted

    @property
    def hosts(self) -> str:
        return ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def servers_in(self, role: str) -> list[Service]:
        return [server for server in self.servers if mode(server.port or 0) == role]

    @contextmanager
    def without(self, *servers: Service) -> Iterator[None]:
        """Kills servers (-9), and starts them again when the block ends."""
        for server in servers:
            os.kill(int((run_folder(server.home) / f"{server.name}.pid").read_text()), signal.SIGKILL)
        try:
            yield
        finally:
            self._restarted.enter_context(all_running(servers))


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """An ensemble of three."""
    servers = ensemble(tmp_path_factory.mktemp("ensemble"))
    with all_running(servers), ExitStack() as restarted:
        yield Ensemble(servers, restarted)
