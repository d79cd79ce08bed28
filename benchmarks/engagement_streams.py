"""Three streams of a lake at full speed, with and without the coordinator: how often they overlap and conflict.

    python -m benchmarks.engagement_streams [--minutes 10] [--sides with without] [--out FOLDER]

Each stream runs in its own process. Without the coordinator no stream waits: each starts its next batch when its last
one has ended. A commit that Delta refuses because of another one is counted, and its batch is tried again. Both sides
get the same messages on the same Spark server, one side after the other. The result is also a timeline: an HTML page
and, if a Chromium is on the path, a PNG.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException

from benchmarks.engagement_mutation import NoGuard
from benchmarks.timeline import SIZE, Window, drawn, summary
from lake_assets.connections.spark import open_spark
from lake_assets.coordination import JobCoordinator, zookeeper_client
from lake_assets.demo.engagement_simulator import Message, Simulation, batches, generate, org_names, send
from lake_assets.engagement.batch import BatchReport, Guard, Stream, run_batch
from lake_assets.engagement.lake import STREAMS, EngagementLake, StreamName
from lake_assets.engagement.lakes import EMAIL_EVENT
from lake_assets.engagement.tables import LakeTables, open_tables
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.engagement.turn import coordinator, open_stream
from lake_assets.errors import LockNotFree, TurnRefused
from lake_assets.services.lifecycle import lake_services
from lake_assets.settings import Settings, settings
from lake_assets_tests.browser import BROWSER

SIDES = {"with": "with the coordinator", "without": "without it"}
SIMULATION = Simulation(touches=500_000, people=20_000)
SLICE = 200
"""Number of messages that are sent together, and maximum size of a batch."""
WARM_UP_SLICES = 10
"""Slices that are sent before the streams start."""
CONFLICT = re.compile(r"\[(DELTA_(CONCURRENT|METADATA_CHANGED)[A-Z_.]*)")
"""Delta's error classes for a commit that another one preceded."""
MERGED = ("numTargetRowsUpdated", "numTargetRowsDeleted")
"""Metrics of a merge; an append has others."""
IDLE_SECONDS = 0.2
WAIT_SECONDS = 60.0
"""Maximum wait for a turn; then the stream tries again."""


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10, help="of each side")
    parser.add_argument(
        "--sides", nargs="+", choices=SIDES, default=list(SIDES), help="the other one's windows are kept"
    )
    parser.add_argument("--out", type=Path, default=settings().home / "timeline", help="the folder of the pictures")
    parser.add_argument("--worker", nargs=3, metavar=("STREAM", "SIDE", "SECONDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        stream, side, seconds = arguments.worker
        _work(stream, side, float(seconds))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="lake-bench-") as folder,
        lake_services(Settings(home=Path(folder))) as home,
    ):
        for side in arguments.sides:
            windows = _measure(home, side, 60 * arguments.minutes)
            (arguments.out / f"{side}.json").write_text(json.dumps(windows))
    found = _read_windows(arguments.out)
    for title, of_side in found.items():
        print(f"{title}: {summary(of_side)}")
    _draw(found, arguments.out)


def _lake(side: str) -> EngagementLake:
    return replace(EMAIL_EVENT, name=f"{side}_coordinator", max_records=SLICE)


def _read_windows(folder: Path) -> dict[str, list[Window]]:
    """Return title → windows of each side that was measured now or earlier."""
    found = {}
    for side, title in SIDES.items():
        file = folder / f"{side}.json"
        if file.exists():
            found[title] = [Window(**values) for values in json.loads(file.read_text())]
    return found


def _measure(home: Settings, side: str, seconds: float) -> list[dict[str, Any]]:
    """Return the windows of the three streams of a lake as JSON objects. Messages are sent all the time."""
    tables = open_tables(home, _lake(side))
    servers = str(home.kafka)
    for name in STREAMS:
        KafkaTopic(servers, tables.lake.topic(name)).create(partitions=2)
    slices = batches(generate(SIMULATION, tables.lake), SLICE)
    send(servers, chain.from_iterable(islice(slices, WARM_UP_SLICES)))
    _warm_up(home, tables)
    workers = [_start(home, name, side, seconds) for name in STREAMS]
    _send_all_the_time(servers, slices, workers)
    windows = []
    for worker in workers:
        output, _ = worker.communicate()
        assert worker.returncode == 0
        windows += [json.loads(line) for line in output.splitlines()]
    return windows


def _warm_up(home: Settings, tables: LakeTables) -> None:
    """Run a batch of each stream that is not measured: the first batch of a Spark server takes many times as long."""
    spark = open_spark(home)
    tables.create(spark)
    tables.register_orgs(dict.fromkeys(org_names(SIMULATION)))
    for name in STREAMS:
        run_batch(open_stream(name, tables, spark, str(home.kafka)), NoGuard())
    spark.stop()


def _start(home: Settings, name: StreamName, side: str, seconds: float) -> subprocess.Popen[str]:
    named = ("home", "spark_remote", "kafka", "zookeeper")
    variables = {f"LAKE_{setting.upper()}": str(getattr(home, setting)) for setting in named}
    command = [sys.executable, "-m", "benchmarks.engagement_streams", "--worker", name, side, str(seconds)]
    return subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True)


def _send_all_the_time(servers: str, slices: Iterator[list[Message]], workers: list[subprocess.Popen[str]]) -> None:
    """Send a slice every second while the workers run."""
    while all(worker.poll() is None for worker in workers):
        send(servers, next(slices))
        time.sleep(1)


def _work(name: StreamName, side: str, seconds: float) -> None:
    """Run the batches of a stream, one after the other, and print their windows as JSON."""
    found = settings()
    spark = open_spark(found)
    stream = open_stream(name, open_tables(found, _lake(side)), spark, str(found.kafka))
    with zookeeper_client(str(found.zookeeper)) as zk:
        coordinated = coordinator(stream, zk, spark, timeout=WAIT_SECONDS)
        turn = _unguarded if side == "without" else partial(_turn, coordinated)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(TurnRefused, LockNotFree):
                if window := _window(stream, turn):
                    print(json.dumps(asdict(window)), flush=True)
                else:
                    time.sleep(IDLE_SECONDS)


@contextmanager
def _unguarded() -> Iterator[tuple[Guard, str | None]]:
    yield NoGuard(), None


@contextmanager
def _turn(coordinated: JobCoordinator) -> Iterator[tuple[Guard, str | None]]:
    with coordinated.turn(max_wait=WAIT_SECONDS) as predecessor:
        yield coordinated, predecessor


def _window(stream: Stream, turn: Callable[[], AbstractContextManager[tuple[Guard, str | None]]]) -> Window | None:
    """Run one batch and return its window, from when it may write to its end; None if no batch is due."""
    began = time.monotonic()
    predecessor: str | None = None
    try:
        with turn() as (guard, predecessor):
            began = time.monotonic()
            report = run_batch(stream, guard)
            ended = time.monotonic()
    except PySparkException as error:
        ended = time.monotonic()
        conflict = CONFLICT.search(str(error))
        if conflict is None:
            raise
        return Window(stream.name, began, ended, conflict=conflict[1], predecessor=predecessor)
    if report is None:
        return None
    return Window(stream.name, began, ended, rows=_rows(report), predecessor=predecessor)


def _rows(report: BatchReport) -> int:
    """Return the number of rows that a batch inserted, updated and deleted."""
    commit = report.commits.get("data")
    if commit is None:
        return 0
    merged = [int(commit.metrics[name]) for name in MERGED if name in commit.metrics]
    return sum(merged) if merged else int(commit.metrics["numOutputRows"])


def _draw(found: Mapping[str, Sequence[Window]], folder: Path) -> None:
    page = folder.resolve() / "engagement-streams.html"
    picture = folder.resolve() / "engagement-streams.png"
    drawn(found).write_html(page, config={"displayModeBar": False})
    print(f"written: {page}")
    program = BROWSER
    if not program:
        print("No Chromium is on the path, so no PNG is written.")
        return
    width, height = SIZE
    command = [
        program,
        "--headless",
        "--no-sandbox",
        "--hide-scrollbars",
        "--virtual-time-budget=5000",
        f"--window-size={width},{height}",
        f"--screenshot={picture}",
        page.as_uri(),
    ]
    subprocess.run(command, check=True, capture_output=True)
    print(f"written: {picture}")


if __name__ == "__main__":
    main()
