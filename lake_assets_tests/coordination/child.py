"""One turn in a process of its own, which a test may kill or stop: `python -m ...child HOSTS LOCK STREAM FOLDER POINT`.

At the point it says so, and waits for a line. At the end it says what became of the turn.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lake_assets.errors import CoordinationError
from lake_assets_tests.coordination.ledger import take_turn
from lake_assets_tests.coordination.world import World


def main(hosts: str, lock_name: str, stream: str, folder: str, stop_at: str) -> str:
    def reach(point: str) -> None:
        if point == stop_at:
            print(point, flush=True)
            sys.stdin.readline()

    with World(hosts, lock_name, Path(folder)) as world:
        try:
            take_turn(world.coordinator(stream), world.ledger, reach)
        except CoordinationError as error:
            return type(error).__name__
    return "ended"


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
