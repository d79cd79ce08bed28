"""The demo on the stack of several machines, or faults there: `make cluster` and `make cluster-faults`.

    python -m benchmarks.cluster [--scenes 2]
    python -m benchmarks.cluster --engagement
    python -m benchmarks.cluster --faults 50 [--seed 1] [--at-once 4] [--minutes 12] [--dry-run]

Spark standalone with two workers, S3, PostgreSQL, three brokers, three ZooKeeper servers and the code server of another
project run as processes of this machine. The demo then runs on them by settings alone, and compares itself as ever.
With `--engagement` it is the engagement demo, whose Delta tables are in a folder. With `--faults`, rows flow while
servers are killed, paused and disturbed, and docs/reliability.md gets the table.
Nothing runs when the command has ended. All data is in a temporary folder, which is kept if something fails.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from benchmarks.cluster import faults, other_project
from benchmarks.cluster.stack import Cluster, cluster, serving
from benchmarks.faults.__main__ import PAGE
from benchmarks.faults.table import table, written
from lake_assets.demo import membership
from lake_assets.demo.engagement_lake import scenes as engagement
from lake_assets.services.bootstrap import steps_of_tests
from lake_assets.settings import PROJECT, settings

EXTRA_JARS = ("jars-s3", "jars-postgresql")
"""The steps of the installation that a lake on one machine does without."""

BEGIN = "<!-- faults of a cluster: written by `make cluster-faults` -->"
END = "<!-- faults of a cluster: end -->"


def main() -> None:
    """Run the demo or faults on the servers; the exit code is 1 if the tables are not equal to what was sent."""
    arguments = _arguments()
    began = time.monotonic()
    _download_jars()
    os.environ["PYTHONPATH"] = str(PROJECT)  # the servers are modules of this checkout
    folder = Path(tempfile.mkdtemp(prefix="lake-cluster-"))
    servers = cluster(folder / "servers", folder / "lake")
    _say(f"All data and logs are in {folder}.")
    with serving(servers, _say):
        os.environ.update(servers.variables())
        settings.cache_clear()
        succeeded = _play_faults(servers, arguments) if arguments.faults else _play_demo(servers, arguments)
    if succeeded:
        shutil.rmtree(folder)
    _say(f"{time.monotonic() - began:.0f} s in all.")
    sys.exit(0 if succeeded else 1)


def _arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenes", type=int, help="play only so many scenes of the demo; default: all")
    parser.add_argument("--engagement", action="store_true", help="play the engagement demo instead")
    parser.add_argument("--faults", type=int, help="play so many faults instead of the demo")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the faults")
    parser.add_argument("--at-once", type=int, default=4, help="faults that are played before all has to heal")
    parser.add_argument("--minutes", type=float, default=12, help="start no faults later")
    parser.add_argument("--dry-run", action="store_true", help="leave the page with the table as it is")
    return parser.parse_args()


def _play_demo(servers: Cluster, arguments: Namespace) -> bool:
    if arguments.engagement:
        os.environ.update(servers.variables_of_delta())
        settings.cache_clear()
        return engagement.run(keep_up=False, on_servers=True)
    return membership.run(keep_up=False, on_servers=True, scenes=arguments.scenes, further=(other_project.play,))


def _play_faults(servers: Cluster, arguments: Namespace) -> bool:
    course = faults.Course(arguments.faults, arguments.seed, arguments.at_once, arguments.minutes)
    rows = faults.play(servers, course, _say)
    text = table(rows)
    _say(text)
    if not arguments.dry_run:
        PAGE.write_text(written(PAGE.read_text(), text, begin=BEGIN, end=END))
    return all(row.is_harmless for row in rows)


def _download_jars() -> None:
    venv = PROJECT / ".venv"
    for step in steps_of_tests(PROJECT):
        if step.name in EXTRA_JARS and not step.is_done(venv):
            step.take(venv)


def _say(line: str) -> None:
    print(line, flush=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)  # `timeout` sends it; no server may outlive the command
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)  # everything has been stopped
