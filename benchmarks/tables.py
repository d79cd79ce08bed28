"""Hundreds of tables in one home: what loading, idling and commands cost, and how soon a landing is published.

    python -m benchmarks.tables [--tables 300] [--before REVISION]

The services of `lake up` run in a temporary home. The earlier revision, if one is named, is measured first, with the
same pipeline in a home of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.before import code_of
from benchmarks.processes import cpu_seconds_of_home

LAKE = (sys.executable, "-m", "lake_assets.cli.main")
MANY = (sys.executable, "-m", "benchmarks.many_tables")
LOAD = "from lake_assets.definitions import defs; defs().get_repository_def().load_all_definitions()"
WARM_UP_SECONDS = 90
"""Time after the start in which each target is looked at for the first time."""
IDLE_SECONDS = 60


@dataclass(frozen=True)
class Side:
    """One revision of the code with a home of its own."""

    name: str
    folder: Path
    environment: Mapping[str, str]

    def run(self, *command: str) -> tuple[float, str]:
        """Run a command in the folder; return its seconds and what it printed."""
        began = time.monotonic()
        done = subprocess.run(
            command, cwd=self.folder, env=dict(self.environment), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed: {done.stderr}")
        return time.monotonic() - began, done.stdout

    def report(self, what: str, seconds: float, unit: str = "s") -> None:
        """Print one figure."""
        print(f"{self.name:<8} {what:<44} {seconds:8.2f} {unit}", flush=True)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=300)
    parser.add_argument("--before", metavar="REVISION", help="also measure an earlier revision")
    parser.add_argument("--landings", type=int, default=3)
    arguments = parser.parse_args()
    for name, revision in (("before", arguments.before), ("now", None)):
        if name == "now" or revision:
            code = code_of(revision, own_files=["many_tables.py"])
            with code as (folder, environment), TemporaryDirectory(prefix="lake-bench-") as home:
                _measure(Side(name, folder, _variables(environment, home, arguments.tables)), arguments.landings)


def _variables(environment: Mapping[str, str], home: str, tables: int) -> dict[str, str]:
    return {
        **environment,
        "LAKE_HOME": home,
        "LAKE_PIPELINES": "benchmarks.many_tables:PIPELINE",
        "BENCH_TABLES": str(tables),
        "LAKE_END": "2026-01-03-00:00",
    }


def _measure(side: Side, landings: int) -> None:
    side.report("lake init", side.run(*LAKE, "init")[0])
    side.report("one row in each, watermarks moved", side.run(*MANY, "fill")[0])
    side.report("a process that loads the definitions", side.run(sys.executable, "-c", LOAD)[0])
    side.report("lake status, services stopped", side.run(*LAKE, "status")[0])
    side.report("lake report", side.run(*LAKE, "report", "--out", f"{side.environment['LAKE_HOME']}/report.html")[0])
    with _services(side):
        time.sleep(WARM_UP_SECONDS)
        _measure_idle(side)
        for number in range(landings):
            seconds = float(side.run(*MANY, "land", str(10 * number + 1), "1")[1])
            side.report("from a landing to its published target", seconds)


@contextmanager
def _services(side: Side) -> Iterator[None]:
    side.report("lake up", side.run(*LAKE, "up")[0])
    try:
        yield
    finally:
        side.run(*LAKE, "down")


def _measure_idle(side: Side) -> None:
    """Print the cores that the processes of each service take while nothing lands."""
    before = cpu_seconds_of_home(Path(side.environment["LAKE_HOME"]))
    time.sleep(IDLE_SECONDS)
    after = cpu_seconds_of_home(Path(side.environment["LAKE_HOME"]))
    spent = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
    for name, seconds in sorted(spent.items()):
        side.report(f"idle, {name}", seconds / IDLE_SECONDS, "cores")
    side.report("idle, all services", sum(spent.values()) / IDLE_SECONDS, "cores")


if __name__ == "__main__":
    main()
