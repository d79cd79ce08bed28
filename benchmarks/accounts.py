"""A million accounts: an hour of new and late data through all targets; and what recomputing changed accounts saves.

One home. The first landing brings the accounts and four hours; each of the next, an hour later, brings an hour, and
late rows of the three before. Wall time, and the peak resident memory of the Spark server and of this process, are of
the five targets. A twin of the dimension, declared without an entity, recomputes all accounts of the same hours from
the same facts; the two take turns in going first. Task and processor time are the executors', from Spark's event log.

    python -m benchmarks.accounts [--accounts 1000000] [--landings 2] [--late 0.05]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import psutil

from benchmarks.event_log import CPU, RUN, Span, logged, task_seconds
from lake_assets.base.grain import HOUR
from lake_assets.connections.addresses import run_folder
from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.spark import open_spark
from lake_assets.demo.membership_simulator import Arrival, Outage, Population, Simulation, generate, land, measure
from lake_assets.incremental.declaration import Sequential
from lake_assets.incremental.execution.engine import Engine
from lake_assets.incremental.planning.session import SessionReport
from lake_assets.membership import PIPELINE
from lake_assets.services.service import free_port, running
from lake_assets.services.spark import spark as spark_service
from lake_assets.settings import Settings, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.demo.membership_simulator import Landing
    from lake_assets.incremental.declaration import Target

LOADED_HOURS = 4
LATE_HOURS = 3
DIMENSION = replace(PIPELINE.target("account_state_dim"), mode=Sequential(entity="account_id", few_rows=0))
TWIN = replace(DIMENSION, table="core.account_state_of_all", mode=Sequential())
FACTS = tuple(t for t in PIPELINE.in_order() if t.grain == HOUR and t.table != DIMENSION.table)
MEMORY = "3g"
"""Heap of the Spark server."""


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--accounts", type=int, default=1_000_000)
    parser.add_argument("--landings", type=int, default=2, help="landings after the first, an hour each")
    parser.add_argument("--late", type=float, default=0.05, help="the share of rows that come late")
    arguments = parser.parse_args()
    simulation = hourly(arguments.accounts, LOADED_HOURS + arguments.landings, arguments.late)
    print(f"arrivals: {measure(generate(simulation))}", flush=True)
    with tempfile.TemporaryDirectory(prefix="lake-bench-") as folder:
        _run(Path(folder), islice(generate(simulation), 1 + arguments.landings))


def hourly(accounts: int, hours: int, late: float) -> Simulation:
    """All accounts sign up at the start. late: the share of rows that are known later, by at most three hours."""
    return Simulation(
        Population(accounts=accounts, hours=hours, opening=1.0),
        Arrival(
            grace_minutes=0,
            tail=late,
            longest_hours=LATE_HOURS,
            twice=0.0,
            again=0.0,
            outages=(Outage(0, LOADED_HOURS),),
        ),
    )


def _run(folder: Path, landings: Iterator[Landing]) -> None:
    log = folder / "events"
    log.mkdir()
    home = Settings(home=folder / "home", jars=settings().jars, spark_memory=MEMORY, spark_java_options="")
    with running(logged(spark_service(home, free_port()), log)) as service:
        spark = open_spark(home.model_copy(update={"spark_remote": f"sc://127.0.0.1:{service.port}"}))
        server = psutil.Process(int((run_folder(home.home) / "spark.pid").read_text()))
        bench = Bench(home, spark, (server, psutil.Process()))
        for number, landing in enumerate(landings):
            bench.play(number, landing)
        bench.compare()
        spark.stop()
    _print_task_time("task time", task_seconds(log, bench.spans, RUN))
    _print_task_time("of it processor time", task_seconds(log, bench.spans, CPU))


@dataclass
class Bench:
    """One home and its engine, and the processes whose memory counts. spans: of sessions, after the first landing."""

    home: Settings
    spark: SparkSession
    processes: Sequence[psutil.Process]
    engine: Engine = field(init=False)
    spans: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        pipeline = replace(PIPELINE, targets=(*FACTS, DIMENSION, TWIN))
        clock = lambda: datetime(2026, 1, 2, tzinfo=UTC)  # noqa: E731
        self.engine = Engine(open_catalog(self.home), pipeline, clock=clock, spark=lambda: self.spark)
        self.engine.create_tables()

    def play(self, number: int, landing: Landing) -> None:
        """Land, then run every target; the twin before the others' last every other time."""
        land(self.spark, self.engine.catalog, landing)
        print(f"landing {number}: {landing.row_count:,} rows, late {sum(landing.late.values()):,}", flush=True)
        with peak_memory(self.processes) as peaks:
            seconds = sum(self.run(target, number) for target in FACTS)
        if number % 2:
            self.run(TWIN, number)
        with peak_memory(self.processes) as more:
            seconds += self.run(DIMENSION, number)
        if not number % 2:
            self.run(TWIN, number)
        server, client = (max(a, b) / 2**30 for a, b in zip(peaks, more, strict=True))
        print(
            f"  five targets: {seconds:.1f} s; peak memory: Spark {server:.2f} GB, client {client:.2f} GB", flush=True
        )

    def run(self, target: Target, number: int) -> float:
        """Seconds that a session takes; it must be due."""
        began = time.time()
        report = self.engine.run(target)
        assert isinstance(report, SessionReport), report
        seconds = time.time() - began
        if number:
            self.spans[target.name].append((began, began + seconds))
        steps = ", ".join(f"{step} {taken:.1f}" for step, taken in report.seconds.items())
        print(f"  {target.name}: {report.plan.load} {len(report.hours_built)} hours, {report.rows_written:,} rows,")
        print(f"    {seconds:.1f} s ({steps}); {'; '.join(report.plan.notes)}", flush=True)
        return seconds

    def compare(self) -> None:
        """The twin holds the same rows, by a sum of hashes."""
        sums = [self._sum(target) for target in (DIMENSION, TWIN)]
        print(f"  {DIMENSION.name} and {TWIN.name} are {'equal' if sums[0] == sums[1] else 'NOT EQUAL'}: {sums[0]}")

    def _sum(self, target: Target) -> object:
        columns = ", ".join(target.columns)
        hashes = f"sum(cast(xxhash64({columns}) as decimal(38)))"
        return self.spark.sql(f"SELECT count(*), {hashes} FROM lake.{target.table}").collect()[0]


@contextmanager
def peak_memory(processes: Sequence[psutil.Process]) -> Iterator[list[int]]:
    """The peak resident memory of each process while the block runs, bytes; seen five times a second."""
    peaks, done = [p.memory_info().rss for p in processes], Event()

    def watch() -> None:
        while not done.wait(0.2):
            peaks[:] = [max(peak, p.memory_info().rss) for peak, p in zip(peaks, processes, strict=True)]

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        done.set()
        thread.join()


def _print_task_time(what: str, seconds: dict[str, float]) -> None:
    mine, all_of_them = (seconds[target.name] for target in (DIMENSION, TWIN))
    compared = f"{mine:.1f} s, of its twin {all_of_them:.1f} s, {all_of_them / mine:.2f} times as much"
    print(f"{what} of the dimension after the first landing: {compared}")


if __name__ == "__main__":
    main()
