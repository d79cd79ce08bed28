"""Writers push and revert in a loop and are killed at random, while readers query: always one whole push.

In a longer run: LAKE_TEST_SERVING_QUERIES=10000.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path

from lake_assets.errors import ServingError
from lake_assets_tests.serving.scenario import AT_ONCE, SEGMENTS, World, fresh_name, world

QUERIES = int(os.environ.get("LAKE_TEST_SERVING_QUERIES", "100"))
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
    """Starts a writer, kills it (-9) after some pushes and a moment more, and so on; how many were killed.

    Writers are forked from a process that has imported all they need: an interpreter would take longer than its pushes.
    """
    chance, killed = random.Random(SEED), 0
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([__name__])
    while not stop.is_set():
        pushes, tell = forks.Pipe(duplex=False)
        where = (found.hosts, found.files.folder, found.table)
        writer = forks.Process(target=write, args=(*where, chance.randrange(10**6), tell), daemon=True)
        writer.start()
        tell.close()
        for _ in range(chance.randint(1, 8)):
            pushes.recv()  # it must not stop by itself: `EOFError`
        time.sleep(chance.random() * MOST_SECONDS)
        writer.kill()
        writer.join()
        pushes.close()
        killed += 1
    return killed


def write(hosts: str, folder: Path, table: str, seed: int, tell: Connection) -> None:
    """Pushes and reverts until it is killed; tells each push. What another writer comes before is refused: well so.

    What it leaves behind when it dies stays in the test's folder.
    """
    chance = random.Random(seed)
    drafts = folder / "drafts"
    drafts.mkdir(exist_ok=True)
    tempfile.tempdir = str(drafts)
    with world(hosts, folder, table) as found:
        for number in count(1):
            try:
                found.push(chance.randrange(10**6) * 1000 + number, force=True)
                tell.send(number)
                if chance.random() < 0.3:
                    found.writer.revert(found.table, found.entries[-1])
                if chance.random() < 0.3:
                    found.writer.clean_up(found.table, retention=AT_ONCE)
            except ServingError:
                continue


def read(found: World, queries: int) -> set[int]:
    """The pushes that were seen: each query sees one, with all its rows. Two snapshots are stored at most."""
    seen: set[int] = set()
    for _ in range(queries):
        (number,) = found.seen()
        seen.add(number)
        assert found.stored() <= 2 * SEGMENTS
        time.sleep(0.001)
    return seen
