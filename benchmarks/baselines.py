"""This engine compared with fixed lookbacks, a full rebuild and SQLMesh, on the same arrivals.

Each side gets the same landings in its own data directory, one side after the other on one Spark server, and brings its
targets up to date after each landing. Task time is the executors' run time from Spark's event log; wall time is that of
the runs. Missed rows are those of a full rebuild at the end that the side's table lacks or has with other values. Each
side first runs some landings in another directory, so that no side pays for a cold JVM. The first landing, with the
existing accounts, is not counted. The side with a lane lets late rows wait for a day of the landings' time: after each
run, nothing may have waited longer, and what still waits after the last landing is built and counted.

    python -m benchmarks.baselines [--sides incremental sqlmesh ...] [--targets signup_fact ...]
        [--arrivals long-tail | late-day] [--landings 7] [--accounts 100000]
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.arrival_figures import late_day, measure
from benchmarks.event_log import CPU, RUN, Span, logged, task_seconds
from benchmarks.sides import DayBack, Done, EngineSide, LaneSide, LookingBack, Side, SixHoursBack
from benchmarks.sqlmesh_side import MODELS, SqlMeshSide, prepare
from lake_assets.base.hours import HOUR
from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.spark import open_spark
from lake_assets.demo.membership_simulator import (
    Arrival,
    Population,
    Simulation,
    generate,
    land,
)
from lake_assets.incremental.engine.engine import Engine
from lake_assets.membership import PIPELINE
from lake_assets.services.servers import spark as spark_service
from lake_assets.services.service import free_port, running
from lake_assets.settings import Settings, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.demo.membership_simulator import Landing
    from lake_assets.incremental.declaration import Target

WARM_UP_LANDINGS, WARM_UP_ACCOUNTS = 2, 1_000
"""The warm-up of each side, which is not measured."""

Open = Callable[[Settings, "SparkSession"], Side]

ENGINE = "incremental"
"""The side that the others are compared with."""

SIDES: dict[str, Open] = {
    ENGINE: lambda home, spark: EngineSide(Engine, home, spark),
    "lane-24": LaneSide,
    "lookback-6": lambda home, spark: EngineSide(SixHoursBack, home, spark),
    "lookback-24": lambda home, spark: EngineSide(DayBack, home, spark),
    "full-rebuild": lambda home, spark: EngineSide(LookingBack, home, spark),
    "sqlmesh": SqlMeshSide,
}


def long_tail(accounts: int) -> Simulation:
    """Return two days and eight hours that land every eight hours; one row in fifty is late, by up to 40 hours."""
    arrival = Arrival(
        interval_minutes=480,
        grace_minutes=15,
        tail=0.02,
        tail_hours=6.0,
        longest_hours=40.0,
        twice=0.0,
        again=0.0,
    )
    return Simulation(Population(accounts=accounts, hours=56), arrival)


ARRIVALS: dict[str, Callable[[int], Simulation]] = {"long-tail": long_tail, "late-day": late_day}


@dataclass
class Tally:
    """The runs of one side for one target, without the first landing. seconds: wall time of each run."""

    side: str
    target: Target
    rows: int = 0
    hours: int = 0
    missed: int = 0
    seconds: list[float] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.side}.{self.target.name}"


def main() -> None:
    """Run and print."""
    arguments = _arguments()
    arrivals = ARRIVALS[arguments.arrivals]
    landings = list(islice(generate(arrivals(arguments.accounts)), arguments.landings))
    warm_up = list(islice(generate(arrivals(WARM_UP_ACCOUNTS)), WARM_UP_LANDINGS))
    print(f"arrivals: {arguments.arrivals}, {arguments.accounts:,} accounts: {measure(landings)}")
    targets = [target for target in PIPELINE.in_order() if target.name in arguments.targets]
    if "sqlmesh" in arguments.sides:
        prepare()
    with tempfile.TemporaryDirectory(prefix="lake-bench-") as folder:
        tallies, seconds, of_cpu = _compare(Path(folder), warm_up, landings, targets, arguments.sides)
    _print(tallies, seconds, of_cpu)
    _print_ratios("task time", tallies, seconds)
    _print_ratios("of it processor time", tallies, of_cpu)
    print(f"again: python -m benchmarks.baselines {shlex.join(sys.argv[1:])}".rstrip())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="default: all")
    names = [target.name for target in PIPELINE.in_order() if target.grain == HOUR]  # a lookback counts hours
    facts = ["signup_fact", "plan_fact"]
    parser.add_argument("--targets", nargs="+", choices=names, default=facts, help=f"default: {' '.join(facts)}")
    parser.add_argument("--arrivals", choices=ARRIVALS, default="long-tail")
    parser.add_argument("--landings", type=int, default=7)
    parser.add_argument("--accounts", type=int, default=100_000)
    return parser.parse_args()


def _compare(
    folder: Path,
    warm_up: Sequence[Landing],
    landings: Sequence[Landing],
    targets: Sequence[Target],
    sides: Sequence[str],
) -> tuple[list[Tally], dict[str, float], dict[str, float]]:
    """Run all sides; return their tallies, and by the name of a tally its task seconds and its processor seconds."""
    log = folder / "events"
    log.mkdir()
    service = spark_service(Settings(home=folder / "server", jars=settings().jars), free_port())
    with running(logged(service, log)) as service:
        address = f"sc://127.0.0.1:{service.port}"
        for name in sides:
            _played(_home(folder / f"warm-up-{name}", address), name, warm_up, targets)
        played = [_played(_home(folder / name, address), name, landings, targets) for name in sides]
    tallies = [tally for of_side in played for tally in of_side]
    spans = {tally.name: tally.spans for tally in tallies}
    return tallies, task_seconds(log, spans, RUN), task_seconds(log, spans, CPU)


def _home(folder: Path, address: str) -> Settings:
    return Settings(home=folder, jars=settings().jars, spark_remote=address)


def _played(home: Settings, name: str, landings: Sequence[Landing], targets: Sequence[Target]) -> list[Tally]:
    """Land one landing after the other, and run the side after each."""
    tallies = [Tally(name, target) for target in targets if name != "sqlmesh" or target.name in MODELS]
    # One session at a time in a process: Spark Connect assigns a checkpoint to the session that was opened last.
    spark, catalog = open_spark(home), open_catalog(home)
    with closing(SIDES[name](home, spark)) as side:
        for number, landing in enumerate(landings):
            land(catalog, landing)
            is_counted = number > 0
            for tally in tallies:
                _run(side, landing, tally if is_counted else Tally(name, tally.target))
        if isinstance(side, LaneSide):
            for tally in tallies:
                _timed(partial(side.finish, tally.target), tally)
        for tally in tallies:
            tally.missed = side.missed(tally.target)
    print(f"  {name}: {len(landings)} landings", flush=True)
    return tallies


def _run(side: Side, landing: Landing, tally: Tally) -> None:
    _timed(partial(side.run, tally.target, landing.landed_at), tally)


def _timed(work: Callable[[], Done], tally: Tally) -> None:
    began = time.time()
    done = work()
    ended = time.time()
    tally.rows += done.rows
    tally.hours += done.hours
    tally.seconds.append(ended - began)
    tally.spans.append((began, ended))


def _print(tallies: Sequence[Tally], seconds: dict[str, float], of_cpu: dict[str, float]) -> None:
    heads = f"{'task s':>9}{'cpu s':>9}{'wall s':>9}{'a run':>8}{'missed':>9}"
    print(f"{'target':<22}{'side':<14}{'rows':>12}{'hours':>8}{heads}")
    for tally in sorted(tallies, key=lambda t: t.target.name):
        wall = sum(tally.seconds)
        median = statistics.median(tally.seconds)
        tasks = f"{seconds[tally.name]:>9.1f}{of_cpu[tally.name]:>9.1f}"
        figures = f"{tally.rows:>12,}{tally.hours:>8,}{tasks}{wall:>9.1f}{median:>8.2f}{tally.missed:>9,}"
        print(f"{tally.target.name:<22}{tally.side:<14}{figures}")


def _print_ratios(what: str, tallies: Sequence[Tally], seconds: dict[str, float]) -> None:
    """Print the engine's seconds relative to each other side's, for each target and for all targets that both have."""
    ours = {t.target.name: seconds[t.name] for t in tallies if t.side == ENGINE}
    for side in dict.fromkeys(t.side for t in tallies if ours and t.side != ENGINE):
        theirs = {t.target.name: seconds[t.name] for t in tallies if t.side == side}
        for name, other in theirs.items():
            print(f"{what}, {name}, {ENGINE} : {side}: {_ratio(ours[name], other)}")
        same_targets = sum(ours[name] for name in theirs)
        print(f"{what}, all, {ENGINE} : {side}: {_ratio(same_targets, sum(theirs.values()))}")


def _ratio(ours: float, theirs: float) -> str:
    return f"{ours:.1f} : {theirs:.1f} s, {ours / theirs:.2f}" if theirs else f"{ours:.1f} : 0.0 s"


if __name__ == "__main__":
    main()
