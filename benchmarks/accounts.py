"""A million accounts: an hour of new and late data through all targets, and what it saves to compute only changed ones.

The first landing has the accounts and four hours. Each later one, an hour apart, has an hour and late rows of the three
hours before. Wall time and peak resident memory are those of the five targets, in the Spark server and in this process.

A twin of the dimension has no entity, so it computes all accounts of the same hours from the same facts. Dimension and
twin take turns in going first. Task time and processor time are those of the executors, from Spark's event log.

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

from benchmarks.arrival_figures import measure
from benchmarks.event_log import CPU, RUN, Span, logged, task_seconds
from benchmarks.processes import spark_server
from lake_assets.base.hours import HOUR
from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.spark import open_spark
from lake_assets.demo.membership_simulator import Arrival, Outage, Population, Simulation, generate, land
from lake_assets.incremental.declaration import Sequential
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import SessionReport
from lake_assets.membership import PIPELINE
from lake_assets.services.servers import spark as spark_service
from lake_assets.services.service import free_port, running
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
GIB = 2**30
WATCH_SECONDS = 0.2
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
    """Return a simulation in which all accounts sign up at the start.

    Args:
        accounts: Number of people.
        hours: Number of hours.
        late: Share of rows that become known later, by three hours at most.
    """
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
        server = spark_server(home.home)
        bench = Bench(home, spark, (server, psutil.Process()))
        for number, landing in enumerate(landings):
            bench.play(number, landing)
        bench.compare()
        spark.stop()
    _print_task_time("task time", task_seconds(log, bench.spans, RUN))
    _print_task_time("of it processor time", task_seconds(log, bench.spans, CPU))


@dataclass
class Bench:
    """An engine in its data directory.

    Attributes:
        home: The settings.
        spark: A session on the Spark server.
        processes: The processes whose memory is measured.
        engine: The engine.
        spans: Target → spans of its sessions, without those of the first landing.
    """

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
        """Land a batch, then run every target. The twin runs before the dimension every other time."""
        land(self.engine.catalog, landing)
        late = sum(landing.late.values())
        print(f"landing {number}: {landing.row_count:,} rows, late {late:,}", flush=True)
        with peak_memory(self.processes) as peaks_of_facts:
            seconds = sum(self.run(target, number) for target in FACTS)
        twin_goes_first = number % 2 == 1
        if twin_goes_first:
            self.run(TWIN, number)
        with peak_memory(self.processes) as peaks_of_dimension:
            seconds += self.run(DIMENSION, number)
        if not twin_goes_first:
            self.run(TWIN, number)
        peaks = [max(pair) / GIB for pair in zip(peaks_of_facts, peaks_of_dimension, strict=True)]
        server, client = peaks
        memory = f"Spark {server:.2f} GB, client {client:.2f} GB"
        print(f"  five targets: {seconds:.1f} s; peak memory: {memory}", flush=True)

    def run(self, target: Target, number: int) -> float:
        """Run the session of a target, which must be due; return its seconds."""
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
        """Print whether dimension and twin have the same rows, by a sum of hashes."""
        dimension = self._sum(DIMENSION)
        result = "equal" if self._sum(TWIN) == dimension else "NOT EQUAL"
        print(f"  {DIMENSION.name} and {TWIN.name} are {result}: {dimension}")

    def _sum(self, target: Target) -> object:
        columns = ", ".join(target.columns)
        hashes = f"sum(cast(xxhash64({columns}) as decimal(38)))"
        return self.spark.sql(f"SELECT count(*), {hashes} FROM lake.{target.table}").collect()[0]


@contextmanager
def peak_memory(processes: Sequence[psutil.Process]) -> Iterator[list[int]]:
    """Yield the peak resident memory of each process while the block runs, in bytes; sampled five times a second."""
    peaks = [process.memory_info().rss for process in processes]
    done = Event()

    def watch() -> None:
        while not done.wait(WATCH_SECONDS):
            for place, process in enumerate(processes):
                peaks[place] = max(peaks[place], process.memory_info().rss)

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        done.set()
        thread.join()


def _print_task_time(what: str, seconds: dict[str, float]) -> None:
    dimension = seconds[DIMENSION.name]
    twin = seconds[TWIN.name]
    compared = f"{dimension:.1f} s, of its twin {twin:.1f} s, {twin / dimension:.2f} times as much"
    print(f"{what} of the dimension after the first landing: {compared}")


if __name__ == "__main__":
    main()
