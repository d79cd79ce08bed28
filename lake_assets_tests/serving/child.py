"""A push, a revert or a clean-up in a process of its own: `python -m ...child HOSTS FOLDER TABLE push NUMBER`.

Others: `revert`, of the newest entry; `clean-up`. It dies where `LAKE_FAILPOINT` says, and prints what became of it.
"""

from __future__ import annotations

import sys
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
    else:
        raise ValueError(what)


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
