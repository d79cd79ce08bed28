"""Writers push and revert in a loop and are killed at random, while readers query: always one whole push.

In a longer run: LAKE_TEST_SERVING_QUERIES=10000.
"""

from __future__ import annotations

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lake_assets_tests.serving.child import pushes, start
from lake_assets_tests.serving.scenario import SEGMENTS, World, fresh_name, world

QUERIES = int(os.environ.get("LAKE_TEST_SERVING_QUERIES", "200"))
READERS = 2
SEED = 7
MOST_SECONDS = 0.1
"""As long as a push takes, and a revert."""


def test_readers_see_one_whole_push_whatever_happens_to_writers(zookeeper: str, tmp_path: Path) -> None:
    with world(zookeeper, tmp_path, fresh_name()) as found, ThreadPoolExecutor(READERS + 1) as pool:
        found.push(1)
        stop = threading.Event()
        killing = pool.submit(kill_writers, found, stop)
        reading = [pool.submit(read, found, QUERIES // READERS) for _ in range(READERS)]
        try:
            seen = set().union(*(reader.result() for reader in reading))
        finally:
            stop.set()
        assert killing.result() > 0
        assert len(seen) > 3
        found.push(2, force=True)
        assert found.seen() == [2]
        assert found.stored() <= 2 * SEGMENTS


def kill_writers(found: World, stop: threading.Event) -> int:
    """Starts a writer, kills it (-9) after some pushes and a moment more, and so on; how many were killed."""
    chance, killed, told = random.Random(SEED), 0, pushes(found)
    told.touch()
    while not stop.is_set():
        enough = told.stat().st_size + chance.randint(1, 8)
        writer = start(found, "churn", str(chance.randrange(10**6)))
        while told.stat().st_size < enough:
            assert writer.runs, "a writer must not stop by itself"
            time.sleep(0.01)
        time.sleep(chance.random() * MOST_SECONDS)
        writer.kill()
        killed += 1
    return killed


def read(found: World, queries: int) -> set[int]:
    """The pushes that were seen: each query sees one, with all its rows. Two snapshots are stored at most."""
    seen: set[int] = set()
    for _ in range(queries):
        (number,) = found.seen()
        seen.add(number)
        assert found.stored() <= 2 * SEGMENTS
        time.sleep(0.001)
    return seen
