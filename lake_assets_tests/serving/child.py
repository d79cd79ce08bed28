"""Pushes, reverts and clean-ups in a process of their own, which dies: where its environment tells it to, or killed."""

from __future__ import annotations

import os
import random
from itertools import count
from pathlib import Path

from lake_assets.errors import ServingError
from lake_assets.serving.query import QueryLimits, query
from lake_assets_tests.processes import Child
from lake_assets_tests.serving.scenario import AT_ONCE, World, world


def start(found: World, *words: str, point: str = "") -> Child:
    """A process on the same table that does what the words say (see `work`), and dies at the point.

    What it leaves behind when it dies stays in the test's folder.
    """
    drafts = found.files.folder / "drafts"
    drafts.mkdir(parents=True, exist_ok=True)
    argument = " ".join([found.hosts, found.files.storage.address, found.table, *words])
    keys = {name: value for name, value in os.environ.items() if name.startswith("LAKE_CATALOG__")}
    return Child(work, argument, {"LAKE_FAILPOINT": point, "TMPDIR": str(drafts), **keys})


def work(argument: str) -> str:
    """`HOSTS FOLDER TABLE push NUMBER`, `revert`, of the newest entry, `clean-up`, `churn SEED`, or `ask SQL`.

    The first two may name further tables, which are switched together with it.
    """
    hosts, folder, table, *words = argument.split()
    with world(hosts, folder if "://" in folder else Path(folder), table) as found:
        act(found, *words)
    return "done"


def act(found: World, what: str, *words: str) -> None:
    if what == "push":
        number, *also = words
        found.push(int(number), *also, force=True)
    elif what == "revert":
        found.writer.revert_all({table: found.entries_of(table)[-1] for table in (found.table, *words)})
    elif what == "clean-up":
        found.writer.clean_up(found.table, retention=AT_ONCE)
    elif what == "churn":
        churn(found, random.Random(int(words[0])))
    elif what == "ask":
        query(found.broker, " ".join(words), QueryLimits(seconds=60))
    else:
        raise ValueError(what)


def churn(found: World, chance: random.Random) -> None:
    """Pushes and reverts until it is killed. What another writer comes before is refused, and that is well."""
    for number in count(1):
        try:
            found.push(chance.randrange(10**6) * 1000 + number, force=True)
            with pushes(found).open("a") as told:
                told.write(".")
            if chance.random() < 0.3:
                act(found, "revert")
            if chance.random() < 0.3:
                act(found, "clean-up")
        except ServingError:
            continue


def pushes(found: World) -> Path:
    """The file that holds a byte for each push of `churn`."""
    return found.files.folder / "pushes"
