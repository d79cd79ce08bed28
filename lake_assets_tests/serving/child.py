"""Pushes, reverts and clean-ups in processes of their own, which die: where they are told to, or when they are killed.

They are forked from one that has imported all they need: an interpreter would take longer to start than they live.
What they leave behind when they die stays in the test's folder.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import tempfile
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path

from lake_assets.errors import ServingError
from lake_assets.settings import settings
from lake_assets_tests.serving.scenario import AT_ONCE, World, world

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])


def exit_code(found: World, *words: str, point: str) -> int | None:
    """Of a process on the same table that does what the words say (see `act`), and dies at the point."""
    process = FORKS.Process(target=dying, args=(found.hosts, found.files.folder, found.table, words, point))
    process.start()
    process.join(timeout=60)
    return process.exitcode


def dying(hosts: str, folder: Path, table: str, words: tuple[str, ...], point: str) -> None:
    os.environ["LAKE_FAILPOINT"] = point
    settings.cache_clear()
    draft_into(folder)
    with world(hosts, folder, table) as found:
        act(found, *words)


def act(found: World, what: str, *words: str) -> None:
    """`push NUMBER`; `revert`, of the newest entry; `clean-up`."""
    if what == "push":
        found.push(int(words[0]), force=True)
    elif what == "revert":
        found.writer.revert(found.table, found.entries[-1])
    elif what == "clean-up":
        found.writer.clean_up(found.table, retention=AT_ONCE)
    else:
        raise ValueError(what)


def churn(hosts: str, folder: Path, table: str, seed: int, tell: Connection) -> None:
    """Pushes and reverts until it is killed; tells each push. What another writer comes before is refused: well so."""
    chance = random.Random(seed)
    draft_into(folder)
    with world(hosts, folder, table) as found:
        for number in count(1):
            try:
                found.push(chance.randrange(10**6) * 1000 + number, force=True)
                tell.send(number)
                if chance.random() < 0.3:
                    act(found, "revert")
                if chance.random() < 0.3:
                    act(found, "clean-up")
            except ServingError:
                continue


def draft_into(folder: Path) -> None:
    """Drafts of this process go there, whatever the system's temporary folder is."""
    drafts = folder / "drafts"
    drafts.mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = str(drafts)
