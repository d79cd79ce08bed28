"""A long run: `python -m lake_assets_tests.doors.hostile --tables 2000 --seed 1`.

It prints one line for each finding, and a summary by kind. `LAKE_TESTS_SPARK` names a Spark Connect server
(`python -m lake_assets_tests.spark_server`); without it, the run starts one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from lake_assets_tests.doors.hostile.world import Outcome, play, tables_of


def main() -> None:
    """Play the worlds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1, help="of the first world; the next ones follow")
    parser.add_argument("--each", type=int, default=10, help="tables of a world")
    parser.add_argument("--steps", type=int, default=2, help="after the first load; each has two operations")
    parser.add_argument("--hours", type=int, default=50, help="hours of the shape that has a row in each of many")
    parser.add_argument("--only", help="numbers of the tables of each world that are played, such as 0,3")
    parser.add_argument("--show", action="store_true", help="describe each table, and what refused it")
    parser.add_argument("--keep", type=Path, help="a folder for the data directories, which then stay")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        remote = os.environ.pop("LAKE_TESTS_SPARK", None) or _own_spark(stack)
        kinds: Counter[str] = Counter()
        for world in range(-(-chosen.tables // chosen.each)):
            _play(chosen, remote, chosen.seed + world, kinds)
    print("\n".join(f"{number:6} {kind}" for kind, number in kinds.most_common()))


def _own_spark(stack: ExitStack) -> str:
    from lake_assets_tests.conftest import spark_running

    return stack.enter_context(
        spark_running(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lake-spark-"))))
    )


def _play(chosen: argparse.Namespace, remote: str, seed: int, kinds: Counter[str]) -> None:
    tables = tables_of(seed, count=chosen.each, steps=chosen.steps, hours=chosen.hours)
    if chosen.only:
        numbers = set(map(int, chosen.only.split(",")))
        tables = [table for number, table in enumerate(tables) if number in numbers]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hostile-") as temporary:
        folder = Path(temporary)
        if chosen.keep:
            folder = chosen.keep / str(seed)
            folder.mkdir(parents=True)
        if chosen.show:
            print(*tables, sep="\n")
        try:
            outcome = play(folder, remote, tables)
        except Exception as error:  # one world never ends a night's run
            print(
                f"world | {seed} | {type(error).__name__} | {' / '.join(str(error).splitlines())[-1500:]}", flush=True
            )
            kinds["world"] += 1
            return
    _report(outcome, kinds, shown=chosen.show)
    print(f"# world {seed}: {time.monotonic() - began:.0f} s", flush=True)


def _report(outcome: Outcome, kinds: Counter[str], *, shown: bool) -> None:
    for finding in outcome.findings:
        print(finding, flush=True)
        kinds[finding.kind] += 1
    kinds["tables right to the end"] += len(outcome.right)
    kinds["equal steps"] += outcome.equal
    kinds["refused"] += len(outcome.refused)
    kinds["left out"] += len(outcome.left_out)
    if shown:
        print("right to the end |", *outcome.right)
        for line in outcome.refused:
            print("refused |", line)
        for line in outcome.left_out:
            print("left out |", line)


if __name__ == "__main__":
    main()
