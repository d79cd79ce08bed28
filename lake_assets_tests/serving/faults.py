"""What comes of a push, a revert or a clean-up whose process dies, at each point of it: played, and written down.

    python -m lake_assets_tests.serving.faults

plays all on a ZooKeeper of its own and writes docs/serving-faults.md. The tests play the same, and hold the page to it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lake_assets.base.failpoints import CLEAN_UP_POINTS, EXIT_CODE, PUSH_POINTS, REVERT_POINTS
from lake_assets.services.servers import zookeeper
from lake_assets.services.service import free_port, running
from lake_assets.serving.lineage import State
from lake_assets.settings import PROJECT
from lake_assets_tests.outcomes import Outcomes, table
from lake_assets_tests.serving.child import start
from lake_assets_tests.serving.scenario import AT_ONCE, SEGMENTS, World, fresh_name, world

PAGE = PROJECT / "docs" / "serving-faults.md"
PROCESSES = 2
"""Of those killed, side by side."""


Die = Callable[..., None]
"""Lets a process do what the words say, and die where it shall."""


def killed_push(found: World, die: Die) -> str:
    """The third push dies. The next, forced, goes through."""
    die("push", "3")
    seen = found.seen()
    found.push(4, force=True)
    assert found.seen() == [4]
    return f"push {seen[0]}"


def killed_revert(found: World, die: Die) -> str:
    """The revert of the second push dies. The next push goes through."""
    die("revert")
    seen = found.seen()
    found.push(4)
    assert found.seen() == [4]
    return f"push {seen[0]}"


def killed_clean_up(found: World, die: Die) -> str:
    """The first of two cycles dies, after a push that died. The next two leave nothing of that push."""
    start(found, "push", "3", point="push-registered").end()
    die("clean-up")
    seen = found.seen()
    for _ in range(2):
        found.writer.clean_up(found.table, retention=AT_ONCE)
    assert (found.stored(), found.states) == (2 * SEGMENTS, [State.COMPLETED])
    assert found.seen() == seen
    return f"push {seen[0]}"


def killed_group_push(found: World, die: Die) -> str:
    """The second push of two tables dies. The next, forced, goes through."""
    other = fresh_name()
    found.push(3, other)
    die("push", "4", other)
    return both_see(found, other)


def killed_group_revert(found: World, die: Die) -> str:
    """The revert of the second push of two tables dies. The next push goes through."""
    other = fresh_name()
    found.push(3, other)
    found.push(4, other)
    die("revert", other)
    return both_see(found, other)


def both_see(found: World, other: str) -> str:
    """The push that readers see of both tables; the next goes through."""
    seen = found.seen()
    assert found.seen(other) == seen
    found.push(5, other, force=True)
    assert found.seen(other) == found.seen() == [5]
    return f"push {seen[0]}"


SCENARIOS: Mapping[str, tuple[Sequence[str], Callable[[World, Die], str]]] = {
    "push": (PUSH_POINTS, killed_push),
    "revert": (REVERT_POINTS, killed_revert),
    "clean-up": (CLEAN_UP_POINTS, killed_clean_up),
    "push of two tables": (PUSH_POINTS, killed_group_push),
    "revert of two tables": (REVERT_POINTS, killed_group_revert),
}
"""What is killed → its points, and what is played."""


def play(what: str, hosts: str, folder: Path | str) -> Outcomes:
    """All points of a scenario, each on a table of its own. Never more is stored than two snapshots and a push."""
    points, scenario = SCENARIOS[what]

    def one(point: str) -> str:
        with world(hosts, folder, fresh_name()) as found:
            found.push(1)
            found.push(2)

            def die(*words: str) -> None:
                assert (code := start(found, *words, point=point).end()) == EXIT_CODE, (point, code)
                assert found.stored() <= 3 * SEGMENTS

            seen = scenario(found, die)
            assert found.stored() <= 2 * SEGMENTS
            return seen

    with ThreadPoolExecutor(PROCESSES) as pool:
        return dict(zip(points, pool.map(one, points), strict=True))


def page(found: Mapping[str, Outcomes]) -> str:
    """The page: a table for each scenario, a row for each point."""
    parts = []
    for what, (points, _) in SCENARIOS.items():
        seen = table("killed at", points, {"readers see": found[what]}, between=", ")
        parts.append(f"## A {what} is killed\n\n{seen}\n\n{TOLD[what]}\n")
    return "\n".join([HEAD, *parts, TAIL])


HEAD = """# Faults of serving

A table with two pushes is served. A process that changes it is killed at each point. Readers then see one whole push,
which the table names. The next push or clean-up leaves no file behind, and a push that is killed before its end has
deleted nothing that a revert can go back to. `python -m lake_assets_tests.serving.faults` writes this page.
"""
TOLD = {
    "push": "The third push is killed. The fourth, with `--force`, reverts it and goes through.",
    "revert": "The revert of the second push is killed. The next push goes through.",
    "push of two tables": "Push 3 brought both, and the fourth, of both, is killed; readers see the same of both.",
    "revert of two tables": "Of both, in one switch, after pushes 3 and 4 of both; readers see the same of both.",
    "clean-up": "After a push that was killed, the first of two cycles is. Two more leave nothing of that push.",
}
TAIL = """## Others

`test_served_tables.py` plays races, lost replies, a full disk, and the loss of ZooKeeper's leader; `test_churn.py` lets
writers push and revert, killed at random, while readers query.
"""


def main() -> None:
    """Play all scenarios and write the page."""
    with tempfile.TemporaryDirectory(prefix="lake-faults-") as name, running(zookeeper(Path(name), free_port())) as zk:
        found = {what: play(what, f"127.0.0.1:{zk.port}", Path(name) / "segments") for what in SCENARIOS}
    PAGE.write_text(page(found))
    print(f"written: {PAGE.relative_to(PROJECT)}")


if __name__ == "__main__":
    main()
