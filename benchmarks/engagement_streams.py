"""Three streams of a lake at full speed, with the coordinator and without: how often they meet, and what conflicts.

    python -m benchmarks.engagement_streams [--minutes 10] [--sides with without] [--out FOLDER]

Each stream has a process of its own. Without the coordinator nobody waits: each begins its next batch when its last
has ended. A commit that Delta refuses because of another is counted, and its batch tried again. Both sides get the same
messages, on the same Spark server, one side after the other. Writes a timeline: an HTML page and, if a Chromium is on
the path, a PNG.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
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

from benchmarks.timeline import SIZE, Window, drawn, summary
from lake_assets.connections.spark import open_spark
from lake_assets.coordination import JobCoordinator, zookeeper_client
from lake_assets.demo.engagement_simulator import Message, Simulation, batches, generate, org_names, send
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.lake import STREAMS, EngagementLake, StreamName
from lake_assets.engagement.model.lakes import EMAIL_EVENT
from lake_assets.engagement.model.tables import LakeTables, open_tables
from lake_assets.engagement.streams.batch import BatchReport, Guard, Stream, run_batch
from lake_assets.engagement.streams.turn import coordinator, open_stream
from lake_assets.errors import LockNotFree, TurnRefused
from lake_assets.services.stack import lake_services
from lake_assets.settings import Settings, settings

SIDES = {"with": "with the coordinator", "without": "without it"}
SIMULATION = Simulation(touches=500_000, people=20_000)
SLICE = 200
"""So many messages are sent at a time, and make a batch at most."""
WARMING = 10
"""So many slices are there before the streams begin."""
CONFLICT = re.compile(r"\[(DELTA_(CONCURRENT|METADATA_CHANGED)[A-Z_.]*)")
"""How Delta says that another commit came first: the class of the error."""
MERGED = ("numTargetRowsUpdated", "numTargetRowsDeleted")
"""Metrics of a merge that changed rows; an append has others."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
IDLE_SECONDS = 0.2
WAIT_SECONDS = 60.0
"""For a turn; who waited in vain tries again."""


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
            (arguments.out / f"{side}.json").write_text(json.dumps(_side(home, side, 60 * arguments.minutes)))
    found = _kept(arguments.out)
    for said, windows in found.items():
        print(f"{said}: {summary(windows)}")
    _draw(found, arguments.out)


def _lake(side: str) -> EngagementLake:
    return replace(EMAIL_EVENT, name=f"{side}_coordinator", max_records=SLICE)


def _kept(folder: Path) -> dict[str, list[Window]]:
    """The windows of each side that was measured, by what it is called."""
    files = {said: folder / f"{side}.json" for side, said in SIDES.items()}
    return {said: [Window(**w) for w in json.loads(f.read_text())] for said, f in files.items() if f.exists()}


def _side(home: Settings, side: str, seconds: float) -> list[dict[str, Any]]:
    """All windows of the three streams of a lake, while messages are sent all the time."""
    tables, servers = open_tables(home, _lake(side)), str(home.kafka)
    for name in STREAMS:
        KafkaTopic(servers, tables.lake.topic(name)).create(partitions=2)
    slices = batches(generate(SIMULATION, tables.lake), SLICE)
    send(servers, chain.from_iterable(islice(slices, WARMING)))
    _warm_up(home, tables)
    workers = [_start(home, name, side, seconds) for name in STREAMS]
    _send_all_the_time(servers, slices, workers)
    told = [worker.communicate()[0] for worker in workers]
    assert not any(worker.returncode for worker in workers)
    return [json.loads(line) for lines in told for line in lines.splitlines()]


def _warm_up(home: Settings, tables: LakeTables) -> None:
    """A batch of each stream, which is not counted: the first of a Spark takes many times as long."""
    spark = open_spark(home)
    tables.create(spark)
    tables.register_orgs(dict.fromkeys(org_names(SIMULATION)))
    for name in STREAMS:
        run_batch(open_stream(name, tables, spark, str(home.kafka)), _Nobody())
    spark.stop()


def _start(home: Settings, name: StreamName, side: str, seconds: float) -> subprocess.Popen[str]:
    named = ("home", "spark_remote", "kafka", "zookeeper")
    variables = {f"LAKE_{setting.upper()}": str(getattr(home, setting)) for setting in named}
    command = [sys.executable, "-m", "benchmarks.engagement_streams", "--worker", name, side, str(seconds)]
    return subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True)


def _send_all_the_time(servers: str, slices: Iterator[list[Message]], workers: list[subprocess.Popen[str]]) -> None:
    """A slice every second, as long as the workers work."""
    while all(worker.poll() is None for worker in workers):
        send(servers, next(slices))
        time.sleep(1)


def _work(name: StreamName, side: str, seconds: float) -> None:
    """One stream's batches, one after the other; prints its windows as JSON."""
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


class _Nobody:
    """The guard of a stream that heeds no other."""

    def claim(self) -> int:
        return 0

    def confirm(self) -> None:
        return


@contextmanager
def _unguarded() -> Iterator[tuple[Guard, str | None]]:
    yield _Nobody(), None


@contextmanager
def _turn(coordinated: JobCoordinator) -> Iterator[tuple[Guard, str | None]]:
    with coordinated.turn(max_wait=WAIT_SECONDS) as predecessor:
        yield coordinated, predecessor


def _window(stream: Stream, turn: Callable[[], AbstractContextManager[tuple[Guard, str | None]]]) -> Window | None:
    """One batch, from when it might write to when it has; None if none was due."""
    began = ended = time.monotonic()
    report, conflict, predecessor = None, None, None
    try:
        with turn() as (guard, predecessor):
            began = time.monotonic()
            report = run_batch(stream, guard)
            ended = time.monotonic()
    except PySparkException as error:
        ended, told = time.monotonic(), CONFLICT.search(str(error))
        if told is None:
            raise
        conflict = told[1]
    window = Window(stream.name, began, ended, conflict, _rows(report), predecessor)
    return window if report or conflict else None


def _rows(report: BatchReport | None) -> int:
    """How many rows a batch inserted, updated and deleted."""
    commit = report.commits.get("data") if report else None
    if commit is None:
        return 0
    merged = [int(commit.metrics[name]) for name in MERGED if name in commit.metrics]
    return sum(merged) if merged else int(commit.metrics["numOutputRows"])


def _draw(found: Mapping[str, Sequence[Window]], folder: Path) -> None:
    page, picture = folder.resolve() / "engagement-streams.html", folder.resolve() / "engagement-streams.png"
    drawn(found).write_html(page, config={"displayModeBar": False})
    print(f"written: {page}")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print("No Chromium is on the path: no PNG.")
        return
    size = ",".join(map(str, SIZE))
    options = ("--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=5000", f"--window-size={size}")
    subprocess.run([browser, *options, f"--screenshot={picture}", page.as_uri()], check=True, capture_output=True)
    print(f"written: {picture}")


if __name__ == "__main__":
    main()
