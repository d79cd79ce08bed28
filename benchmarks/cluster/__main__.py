"""The demos on the stack of several machines, or faults there: `make cluster` and `make cluster-faults`.

    python -m benchmarks.cluster [--demo membership] [--demo engagement] [--scenes 2]
    python -m benchmarks.cluster --faults 50 [--seed 1] [--at-once 4] [--minutes 12] [--dry-run]

Spark standalone with two workers, S3, PostgreSQL, three brokers, three ZooKeeper servers and the code server of another
project run as processes of this machine. The demos then run on them by settings alone, one after the other, and
compare themselves as ever. The Delta tables of the engagement demo are in a folder. With `--faults`, rows flow while
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
from collections.abc import Mapping
from pathlib import Path

from benchmarks.cluster import faults, other_project
from benchmarks.cluster.stack import Cluster, cluster, serving
from benchmarks.faults.__main__ import PAGE
from benchmarks.faults.table import table_of_rounds, written
from lake_assets.demo import engagement, membership
from lake_assets.services.setup import set_up
from lake_assets.settings import PROJECT, settings

BEGIN = "<!-- faults of a cluster: written by `make cluster-faults` -->"
END = "<!-- faults of a cluster: end -->"


def main() -> None:
    """Run the demo or faults on the servers; the exit code is 1 if the tables are not equal to what was sent."""
    arguments = _arguments()
    began = time.monotonic()
    set_up(settings(), ["postgresql", "s3"], say=_say)
    os.environ["PYTHONPATH"] = str(PROJECT)  # the servers are modules of this checkout
    folder = Path(tempfile.mkdtemp(prefix="lake-cluster-"))
    servers = cluster(folder / "servers", folder / "lake")
    _say(f"All data and logs are in {folder}.")
    with serving(servers, _say):
        succeeded = _play_faults(servers, arguments) if arguments.faults else _play_demos(servers, arguments)
    if succeeded:
        shutil.rmtree(folder)
    _say(f"{time.monotonic() - began:.0f} s in all.")
    sys.exit(0 if succeeded else 1)


def _arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", action="append", choices=DEMOS, help="play only this one; default: all")
    parser.add_argument("--scenes", type=int, help="play only so many scenes of the membership demo; default: all")
    parser.add_argument("--faults", type=int, help="play so many faults instead of the demos")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the faults")
    parser.add_argument("--at-once", type=int, default=4, help="faults that are played before all has to heal")
    parser.add_argument("--minutes", type=float, default=12, help="start no faults later")
    parser.add_argument("--dry-run", action="store_true", help="leave the page with the table as it is")
    return parser.parse_args()


def _play_demos(servers: Cluster, arguments: Namespace) -> bool:
    """Play demos; what is not as it should be is raised."""
    for name in arguments.demo or DEMOS:
        DEMOS[name](servers, arguments)
    return True


def _play_membership(servers: Cluster, arguments: Namespace) -> None:
    _use(servers.variables())
    membership.run(keep_up=False, on_servers=True, scenes=arguments.scenes, further=(other_project.play,))


def _play_engagement(servers: Cluster, _: Namespace) -> None:
    _use(servers.variables_of_engagement())
    engagement.run(keep_up=False, on_servers=True)


def _use(variables: Mapping[str, str]) -> None:
    os.environ.update(variables)
    settings.cache_clear()


DEMOS = {"membership": _play_membership, "engagement": _play_engagement}


def _play_faults(servers: Cluster, arguments: Namespace) -> bool:
    _use(servers.variables())
    course = faults.Course(arguments.faults, arguments.seed, arguments.at_once, arguments.minutes)
    rows = faults.play(servers, course, _say)
    text = table_of_rounds(rows)
    _say(text)
    if not arguments.dry_run:
        PAGE.write_text(written(PAGE.read_text(), text, begin=BEGIN, end=END))
    return all(row.is_harmless for row in rows)


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
