"""Spark task time of incremental sessions against a fixed six-hour lookback, over the same arrivals, in one run.

Two homes get the same landings. In one, each target does what the engine plans; in the other it overwrites the last six
hours and the current one, as a scheduled job with a lookback does, through the same staging, audits and publish. Task
time is the executors' run time from Spark's event log, told apart by job tags. The first landing, which brings the
accounts there are, is the same for both, and is not counted. Also printed: what a session costs beside its Spark work.

    python -m benchmarks.lookback [--landings 98] [--accounts 100000] [--targets signup_fact ...]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.event_log import logged, task_seconds
from lake_assets.incremental.engine import LOOKBACK_HOURS, Engine, Heads
from lake_assets.incremental.grain import HOUR
from lake_assets.incremental.run import Runner
from lake_assets.incremental.session import Decision, PlannedHour, SessionPlan, SessionReport
from lake_assets.incremental.sessions import ProcessState
from lake_assets.local.catalog import open_catalog
from lake_assets.local.service import running
from lake_assets.local.spark import open_spark
from lake_assets.membership import PIPELINE
from lake_assets.membership.simulator import generate, land, late_day, measure
from lake_assets.settings import Settings, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.incremental.declaration import Target
    from lake_assets.membership.simulator import Landing


WARM_UP = 3
"""Landings that each side plays first, unmeasured, in a home of their own."""


@dataclass
class Side:
    """One of the two that are compared. seconds: per session, beside stage and audit."""

    name: str
    engine: Engine
    spark: SparkSession
    beside: list[float] = field(default_factory=list)
    hours: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    rows: dict[str, int] = field(default_factory=lambda: defaultdict(int))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--landings", type=int, default=98, help="landings, a quarter of an hour each")
    parser.add_argument("--accounts", type=int, default=100_000)
    names = [t.name for t in PIPELINE.in_order() if t.grain == HOUR]  # of a day, six hours cannot be overwritten
    parser.add_argument("--targets", nargs="+", choices=names, default=names, help="default: all that go by the hour")
    arguments = parser.parse_args()
    simulation = late_day(arguments.accounts)
    print(f"arrivals: {measure(generate(simulation))}")
    with tempfile.TemporaryDirectory(prefix="lake-bench-") as folder:
        targets = [PIPELINE.target(name) for name in names if name in arguments.targets]
        _compare(Path(folder), list(islice(generate(simulation), arguments.landings)), targets)


def _compare(folder: Path, landings: Sequence[Landing], targets: Sequence[Target]) -> None:
    log = folder / "events"
    log.mkdir()
    server = Settings(home=folder / "server", jars=settings().jars)
    with running(logged(server, log)) as service:
        for name in ("warm-up incremental", "warm-up lookback"):  # a cold JVM would be charged to the first side
            _played(folder, name, service.port, landings[:WARM_UP], targets)
        sides = [_played(folder, name, service.port, landings, targets) for name in ("incremental", "lookback")]
    _print(sides, task_seconds(log), targets)


def _played(folder: Path, name: str, port: int | None, landings: Sequence[Landing], targets: Sequence[Target]) -> Side:
    home = Settings(home=folder / name.replace(" ", "-"), jars=settings().jars, spark_remote=f"sc://127.0.0.1:{port}")
    spark = open_spark(home)
    kind = LookingBack if name.endswith("lookback") else Engine
    engine = kind(open_catalog(home), PIPELINE, clock=lambda: datetime(2026, 1, 2, tzinfo=UTC), spark=lambda: spark)
    engine.create_tables()
    side = Side(name, engine, spark)
    for number, landing in enumerate(landings, 1):
        land(spark, engine.catalog, landing)
        for target in targets:
            _run(side, target, counted=number > 1)
        if number % 8 == 0:
            print(f"  {name}: {number} landings", flush=True)
    # One session at a time in a process: Connect takes a checkpoint to be of the session that was opened last.
    spark.stop()
    return side


class Overwriting(Runner):
    """A runner that writes all that it is told to, equal or not."""

    leaves_out_equal = False


class LookingBack(Engine):
    """An engine that, whatever changed, overwrites the last six hours and the current one."""

    runner = Overwriting

    def _decide(self, target: Target, state: ProcessState, up_to: Heads | None) -> Decision:
        planned = super()._decide(target, state, up_to)
        if not isinstance(planned, SessionPlan) or not planned.hours or not state.watermarks:
            return planned
        last = planned.hours[-1].hour
        hours = range(max(last - LOOKBACK_HOURS, self.pipeline.start_hour), last + 1)
        reason = f"the last {LOOKBACK_HOURS} hours, whatever changed"
        planned = replace(planned, load="overwrite", pending=(), changed_through=None)
        return replace(planned, hours=tuple(PlannedHour(h, reason) for h in hours))


def _run(side: Side, target: Target, *, counted: bool) -> None:
    tag = _tag(side, target) if counted else "first"
    side.spark.addTag(tag)
    try:
        report = side.engine.run(target)
    finally:
        side.spark.removeTag(tag)
    if counted and isinstance(report, SessionReport):
        side.beside.append(sum(report.seconds.get(step, 0.0) for step in ("plan", "publish", "commit")))
        side.hours[target.name] += len(report.hours_built)
        side.rows[target.name] += report.rows_written


def _tag(side: Side, target: Target) -> str:
    return f"{side.name.replace(' ', '-')}.{target.name}"


def _print(sides: list[Side], seconds: dict[str, float], targets: Sequence[Target]) -> None:
    ours, theirs = sides
    print(f"{'target':<22}{'task s':>9}{'lookback':>10}{'ratio':>8}{'hours':>16}{'rows':>22}")
    for target in targets:
        mine, other = (seconds[_tag(s, target)] for s in sides)
        hours = f"{ours.hours[target.name]} : {theirs.hours[target.name]}"
        rows = f"{ours.rows[target.name]} : {theirs.rows[target.name]}"
        print(f"{target.name:<22}{mine:>9.1f}{other:>10.1f}{mine / other:>8.3f}{hours:>16}{rows:>22}")
    beside = sorted(ours.beside)
    p95 = beside[int(len(beside) * 0.95)]
    print(f"a session beside Spark: median {statistics.median(beside):.2f} s, p95 {p95:.2f} s of {len(beside)}")


if __name__ == "__main__":
    main()
