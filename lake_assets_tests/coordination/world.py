"""What is hit: the streams of an engagement lake, which take turns and write to one ledger."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from kazoo.client import KazooClient

from lake_assets.coordination import ANY, JobCoordinator, zookeeper_client
from lake_assets_tests.coordination.ledger import Ledger, take_turn

SESSION_SECONDS = 6.0
"""A machine that stalls for some seconds ends no session before its process is hit."""
TAKEOVER_SECONDS = SESSION_SECONDS + 1
PATIENCE_SECONDS = 30.0
"""For a lock that will be free, on a machine that may stall."""
PREDECESSORS = {"ingestion": ANY, "mutation": "ingestion", "retention": "mutation"}


class World:
    """One lock, one ledger, and the streams of an engagement lake; each coordinator has a session of its own."""

    def __init__(self, hosts: str, lock_name: str, folder: Path, *, session_seconds: float = SESSION_SECONDS) -> None:
        self.hosts, self.lock_name, self.folder, self.session_seconds = hosts, lock_name, folder, session_seconds
        self.ledger = Ledger(folder / "ledger.db")
        self._clients = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._clients.close()

    def client(self) -> KazooClient:
        return self._clients.enter_context(zookeeper_client(self.hosts, session_seconds=self.session_seconds))

    def coordinator(
        self, stream: str, *, timeout: float = PATIENCE_SECONDS, client: KazooClient | None = None
    ) -> JobCoordinator:
        """client: of its session; default: a new one."""
        zk = client or self.client()
        return JobCoordinator(self.lock_name, stream, PREDECESSORS[stream], zk, timeout, claim=self.ledger.claim)

    def play(self, stream: str) -> None:
        """A whole turn."""
        take_turn(self.coordinator(stream), self.ledger, lambda point: None)

    def start(self, stream: str, point: str) -> subprocess.Popen[str]:
        """A turn in a process of its own, which has come to the point."""
        command = [sys.executable, "-m", "lake_assets_tests.coordination.child"]
        child = subprocess.Popen(
            [*command, self.hosts, self.lock_name, stream, str(self.folder), point],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert child.stdout.readline().strip() == point
        return child

    def contenders(self) -> list[str]:
        zk, path = self.client(), f"/coordination/{self.lock_name}/lock"
        zk.sync(path)  # the client's server may be behind
        return [str(name) for name in zk.get_children(path)]


def settle(world: World) -> None:
    """Another round of turns; then all batches are there, once and in order, and no contender is left."""
    world.play("ingestion")
    world.play("mutation")
    for stream in ("ingestion", "mutation"):
        found = world.ledger.batches(stream)
        assert found == list(range(1, len(found) + 1)), found
    assert world.contenders() == []
