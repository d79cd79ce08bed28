"""A push, a revert or a clean-up in a process of its own: `python -m ...child HOSTS FOLDER TABLE push NUMBER`.

Others: `revert`, of the newest entry; `clean-up`; `churn SEED`, pushes and reverts without end. It dies where
`LAKE_FAILPOINT` says, and prints what became of it.
"""

from __future__ import annotations

import random
import sys
from itertools import count
from pathlib import Path

from lake_assets.errors import ServingError
from lake_assets_tests.serving.scenario import AT_ONCE, World, world


def main(hosts: str, folder: str, table: str, what: str, *words: str) -> str:
    with world(hosts, Path(folder), table) as found:
        try:
            act(found, what, *words)
        except ServingError as error:
            return type(error).__name__
    return "done"


def act(found: World, what: str, *words: str) -> None:
    if what == "push":
        found.push(int(words[0]), force=True)
    elif what == "revert":
        found.writer.revert(found.table, found.entries[-1])
    elif what == "clean-up":
        found.writer.clean_up(found.table, retention=AT_ONCE)
    elif what == "churn":
        churn(found, random.Random(int(words[0])))
    else:
        raise ValueError(what)


def churn(found: World, chance: random.Random) -> None:
    """Until it is killed; says each push. What another writer comes before is refused, and that is well."""
    for number in count(1):
        try:
            found.push(chance.randrange(10**6) * 1000 + number, force=True)
            print(number, flush=True)
            if chance.random() < 0.3:
                found.writer.revert(found.table, found.entries[-1])
            if chance.random() < 0.3:
                found.writer.clean_up(found.table, retention=AT_ONCE)
        except ServingError:
            continue


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
