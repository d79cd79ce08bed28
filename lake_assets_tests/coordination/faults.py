"""What comes of a turn whose process dies or is stopped, at each point of it: played on a real ensemble, written down.

    python -m lake_assets_tests.coordination.faults

plays all and writes docs/coordination-faults.md. The tests play the same, and hold the page to what they see.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from kazoo.client import KazooClient

from lake_assets.coordination import ANY, JobCoordinator, zookeeper_client
from lake_assets.errors import TurnRefused
from lake_assets.local.service import all_running
from lake_assets.local.zookeeper import ensemble
from lake_assets.settings import PROJECT
from lake_assets_tests.coordination.ledger import POINTS, Ledger, take_turn
from lake_assets_tests.outcomes import Outcomes, table

PAGE = PROJECT / "docs" / "coordination-faults.md"
SESSION_SECONDS = 2.0
TAKEOVER_SECONDS = SESSION_SECONDS + 1
PREDECESSORS = {"ingestion": ANY, "mutation": "ingestion", "retention": "mutation"}


class World:
    """One lock, one ledger, and the streams of an engagement lake; each coordinator has a session of its own."""

    def __init__(self, hosts: str, lock_name: str, folder: Path) -> None:
        self.hosts, self.lock_name, self.folder = hosts, lock_name, folder
        self.ledger = Ledger(folder / "ledger.db")
        self._clients = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._clients.close()

    def client(self) -> KazooClient:
        return self._clients.enter_context(zookeeper_client(self.hosts, session_seconds=SESSION_SECONDS))

    def coordinator(self, stream: str, *, timeout: float = TAKEOVER_SECONDS) -> JobCoordinator:
        return JobCoordinator(
            self.lock_name, stream, PREDECESSORS[stream], self.client(), timeout, claim=self.ledger.claim
        )

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
        return [str(name) for name in self.client().get_children(f"/coordination/{self.lock_name}/lock")]


def killed(world: World, point: str) -> str:
    """A mutation turn is killed (-9). The lock is free in time; who goes on, and every batch is there once."""
    child = world.start("mutation", point)
    child.kill()
    child.communicate()
    begun = time.monotonic()
    ingestion = world.coordinator("ingestion")
    assert ingestion.lock(), f"not free after {TAKEOVER_SECONDS} s"
    assert time.monotonic() - begun < TAKEOVER_SECONDS
    seen = goes_on(ingestion)
    if seen == "mutation goes on":
        world.play("mutation")
    settle(world)
    return seen


def goes_on(ingestion: JobCoordinator) -> str:
    """Whose turn it is, when ingestion, which may follow anybody, asks; its own turn is played to the end."""
    try:
        predecessor = ingestion.register()
    except TurnRefused as refused:
        return {"the last turn, of mutation, is not done": "mutation goes on"}[refused.reason]
    ingestion.done()
    assert ingestion.unlock()
    return f"ingestion follows {predecessor}"


def overtaken(world: World, point: str) -> str:
    """A mutation turn is stopped (SIGSTOP) for longer than its session; its stream goes on elsewhere; SIGCONT."""
    child = world.start("mutation", point)
    child.send_signal(signal.SIGSTOP)
    successor = world.coordinator("mutation", timeout=TAKEOVER_SECONDS)
    if point in ("done", "unlocked"):
        time.sleep(TAKEOVER_SECONDS)
        world.play("ingestion")
    take_turn(successor, world.ledger, lambda point: None)
    child.send_signal(signal.SIGCONT)
    said = child.communicate("\n", timeout=30)[0].strip()
    settle(world)
    return said if said == "ended" else f"stops: {said}"


def settle(world: World) -> None:
    """Another round of turns; then all batches are there, once and in order, and no contender is left."""
    world.play("ingestion")
    world.play("mutation")
    for stream in ("ingestion", "mutation"):
        found = world.ledger.batches(stream)
        assert found == list(range(1, len(found) + 1)), found
    assert world.contenders() == []


SCENARIOS: dict[str, Callable[[World, str], str]] = {"killed": killed, "stopped and overtaken": overtaken}


def play(scenario: str, hosts: str, folder: Path) -> Outcomes:
    """All points of a scenario, each with a lock of its own, all at once: most of the time they wait for sessions."""

    def one(point: str) -> str:
        place = folder / point
        place.mkdir(parents=True)
        with World(hosts, f"{scenario.split()[0]}-{point}", place) as world:
            world.ledger.create()
            world.play("ingestion")
            return SCENARIOS[scenario](world, point)

    with ThreadPoolExecutor(len(POINTS)) as pool:
        return dict(zip(POINTS, pool.map(one, POINTS), strict=True))


def page(found: Mapping[str, Outcomes]) -> str:
    """The page: a row for each point, a column for each scenario."""
    return HEAD + table("when it has", POINTS, found) + "\n" + TAIL


HEAD = f"""# Faults of a turn

A turn of `mutation`, after a done turn of `ingestion`, is hit at a point: its process has locked, registered, claimed,
written, checkpointed, and so on, and has not begun the next step. Then the others go on, and this is what is seen. In
every cell, the lock is free within the session timeout ({SESSION_SECONDS:g} s here) and 1 s, every batch is in the
ledger once and in order, and no contender is left behind.

Written by `python -m lake_assets_tests.coordination.faults`, which plays each cell on an ensemble of three; the tests
play them again, and fail if this page says anything else.

"""
TAIL = """
- **killed**: the process is killed (`kill -9`). `ingestion`, which may follow anybody, asks next: it is refused while
  the turn is not done, and `mutation` goes on with it.
- **stopped and overtaken**: the process is stopped (SIGSTOP) for longer than its session; a second process of its
  stream takes a turn; then it goes on (SIGCONT). The lock's node is gone, and the ledger bears a later token: each
  refuses its next write.

Faults of the ensemble and of the connection are played in `test_ensemble.py` and `test_lost_replies.py`.
"""


def main() -> None:
    """Play all scenarios and write the page."""
    with tempfile.TemporaryDirectory(prefix="lake-faults-") as folder:
        servers = ensemble(Path(folder) / "servers")
        with all_running(servers):
            hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
            found = {scenario: play(scenario, hosts, Path(folder) / scenario) for scenario in SCENARIOS}
    PAGE.write_text(page(found))
    print(f"written: {PAGE.relative_to(PROJECT)}")


if __name__ == "__main__":
    main()
