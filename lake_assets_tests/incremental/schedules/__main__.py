"""Play random schedules: `--schedules N` from `--seed S` on."""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from lake_assets_tests.conftest import RUNNING, spark_running
from lake_assets_tests.incremental.schedules.play import LENGTH, play, shortened
from lake_assets_tests.incremental.schedules.world import schedule


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--as-is", action="store_true", help="do not shorten a failing schedule")
    asked = parser.parse_args()
    counts: Counter[str] = Counter()
    failed = 0
    with ExitStack() as stack:
        spark = RUNNING or stack.enter_context(spark_running(Path(stack.enter_context(TemporaryDirectory()))))
        for seed in range(asked.seed, asked.seed + asked.schedules):
            began = time.monotonic()
            operations = schedule(seed, asked.length)
            violation, found = play(operations, seed, spark)
            counts += found
            print(f"seed {seed}: {violation or 'holds'} ({time.monotonic() - began:.1f} s)", flush=True)
            if violation is not None:
                failed += 1
                if not asked.as_is:
                    operations = shortened(operations, seed, spark)
                for operation in operations:
                    print(f"    {operation}")
    print(f"{asked.schedules} schedules, {failed} fail: {dict(counts.most_common())}", flush=True)
    os._exit(1 if failed else 0)  # threads of runners that hang do not hold it up


main()
