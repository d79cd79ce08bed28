"""What comes of a turn whose process dies or is stopped, at each point of it: played on a real ensemble, written down.

    python -m lake_assets_tests.coordination.faults

plays all and writes docs/coordination-faults.md. The tests play the same, and hold the page to what they see.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lake_assets.coordination import JobCoordinator
from lake_assets.errors import TurnRefused
from lake_assets.settings import PROJECT
from lake_assets_tests.coordination.breaking import play_faults
from lake_assets_tests.coordination.ensembles import three_servers
from lake_assets_tests.coordination.ledger import POINTS, take_turn
from lake_assets_tests.coordination.world import SESSION_SECONDS, TAKEOVER_SECONDS, World, settle
from lake_assets_tests.outcomes import Outcomes, table

PAGE = PROJECT / "docs" / "coordination-faults.md"
WITHOUT_QUORUM_SECONDS = 30.0
FREE_SECONDS = SESSION_SECONDS + 8
"""When a lock must be free at the latest; after its session has ended, it takes milliseconds on a quiet machine."""
SEEN = "what is seen"


def killed(world: World, point: str) -> str:
    """A mutation turn is killed (-9). The lock is free in time; who goes on, and every batch is there once."""
    child = world.start("mutation", point)
    child.kill()
    child.communicate()
    begun = time.monotonic()
    ingestion = world.coordinator("ingestion", timeout=FREE_SECONDS)
    assert ingestion.lock(), f"not free after {FREE_SECONDS} s"
    assert time.monotonic() - begun < FREE_SECONDS + SESSION_SECONDS
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
    successor = world.coordinator("mutation", timeout=WITHOUT_QUORUM_SECONDS)  # `killed` measures the time it takes
    if point in ("done", "unlocked"):
        time.sleep(TAKEOVER_SECONDS)
        world.play("ingestion")
    take_turn(successor, world.ledger, lambda point: None)
    child.send_signal(signal.SIGCONT)
    said = child.communicate("\n", timeout=30)[0].strip()
    settle(world)
    return said if said == "ended" else f"stops: {said}"


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


def page(hit: Mapping[str, Outcomes], broken: Outcomes) -> str:
    """The page: a row for each point, a column for each scenario; then a row for each of the other faults."""
    hits = table("when it has", POINTS, hit, between=", ")
    return HEAD + hits + "\n" + BROKEN + table("fault", broken, {SEEN: broken}, between="; ") + TAIL


HEAD = f"""# Faults of a turn

A turn of `mutation`, after a done turn of `ingestion`, is hit at a point; then the others go on. In every cell, the
lock is free within the session timeout ({SESSION_SECONDS:g} s here) and 8 s, every batch is in the ledger once and in
order, and no contender is left behind. `python -m lake_assets_tests.coordination.faults` writes this page.

"""
BROKEN = """
- **killed**: by `kill -9`. `ingestion`, which may follow anybody, is refused while the turn is not done.
- **stopped and overtaken**: the process is stopped for longer than its session; a second process of its stream takes a
  turn; then it goes on, and each of its writes is refused.

## The ensemble, the connection, the registry

Something breaks while `ingestion` has its turn; the registry, after it.

"""
TAIL = f"""

- **the leader**, or **a follower**, **is killed**: the turn's writes go on at the servers that are left.
- **two of the three servers are killed**, for {WITHOUT_QUORUM_SECONDS:g} s; for a shorter time in the tests. The holder
  stops relying on its lock within its session timeout; a process that asks for the lock gives up at its time limit.
- **the reply is lost**: the request arrives, and then the connection breaks.
"""


def main() -> None:
    """Play all scenarios and write the page."""
    with tempfile.TemporaryDirectory(prefix="lake-faults-") as folder:
        place = Path(folder)
        with three_servers(place / "servers") as three:
            hit = {scenario: play(scenario, three.hosts, place / scenario) for scenario in SCENARIOS}
            broken = play_faults(three, place / "broken", without_quorum=WITHOUT_QUORUM_SECONDS)
    PAGE.write_text(page(hit, broken))
    print(f"written: {PAGE.relative_to(PROJECT)}")


if __name__ == "__main__":
    main()
