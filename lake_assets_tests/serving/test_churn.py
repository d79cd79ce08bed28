"""Writers push and revert in a loop and are killed at random, while readers query: always one whole push.

In a longer run: LAKE_TEST_SERVING_QUERIES=10000. With two writers at once, which take each other's entries:
LAKE_TEST_SERVING_WRITERS=2.
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
READERS, WRITERS = 2, int(os.environ.get("LAKE_TEST_SERVING_WRITERS", "1"))
SEED = 7
MOST_STORED = 3 * SEGMENTS + WRITERS - 1
"""Two snapshots and a push; and of each writer but the one that took the entry, the file in hand."""

PUSHES_SEEN = 4
"""By each reader, at least."""

MOST_SECONDS = 0.1
"""As long as a push takes, and a revert."""


def test_readers_see_one_whole_push_whatever_happens_to_writers(zookeeper: str, tmp_path: Path) -> None:
    with world(zookeeper, tmp_path, fresh_name()) as found, ThreadPoolExecutor(READERS + WRITERS) as pool:
        found.push(1)
        stop = threading.Event()
        killing = [pool.submit(kill_writers, found, stop, SEED + n) for n in range(WRITERS)]
        reading = [pool.submit(read, found, QUERIES // READERS) for _ in range(READERS)]
        try:
            for reader in reading:
                reader.result()
        finally:
            stop.set()
        assert all(killer.result() > 0 for killer in killing)
        found.push(2, force=True)
        assert found.seen() == [2]
        assert found.stored() <= 2 * SEGMENTS


def kill_writers(found: World, stop: threading.Event, seed: int) -> int:
    """Starts a writer, kills it (-9) after some pushes and a moment more, and so on; how many were killed."""
    chance, killed, told = random.Random(seed), 0, pushes(found)
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


def read(found: World, queries: int) -> None:
    """Each query sees one push, with all its rows. On a busy machine it goes on until writers have got going."""
    seen: set[int] = set()
    asked = 0
    while asked < queries or len(seen) < PUSHES_SEEN:
        (number,) = found.seen()
        seen.add(number)
        asked += 1
        assert found.stored() <= MOST_STORED
        time.sleep(0.001)
