"""What a small session costs: Spark jobs, calls to Spark, processor time, files of metadata, wall time.

One data directory and one Spark server. The first landing has the accounts and six hours, the others are a quarter of
an hour apart, with late rows. The first sessions warm Spark up and are not counted. Figures are a session's mean.

With `--before`, the same is measured with the code of an older revision, in a Spark server of its own. Both sides get
the same landings, in turns.

    python -m benchmarks.session_cost [--accounts 5000] [--landings 8] [--warm-up 4] [--targets signup_fact ...]
        [--seconds 600] [--before REVISION]
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
from pyiceberg.io.pyarrow import PyArrowFile

from benchmarks.before import code_of
from benchmarks.event_log import Span, logged, work
from benchmarks.processes import cpu_seconds, spark_server
from lake_assets.base.hours import hour_key
from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.spark import open_spark
from lake_assets.demo.membership_simulator import generate
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import SessionReport
from lake_assets.membership import PIPELINE
from lake_assets.services.servers import spark as spark_service
from lake_assets.services.service import free_port, running
from lake_assets.settings import Settings, settings

try:
    from benchmarks.arrival_figures import late_day
except ImportError:  # an older revision
    from lake_assets.demo.membership_simulator import late_day  # type: ignore[attr-defined, no-redef]

OWN_FILES = ("session_cost.py", "event_log.py", "processes.py")
"""The files of this benchmark."""

TARGETS = [target.name for target in PIPELINE.in_order() if target.table.startswith("core.")]

CALLS = {"AnalyzePlan": "analyze", "ExecutePlan": "execute", "Config": "config"}
"""Calls of Spark Connect that are counted → column."""

COLUMNS = (
    "sessions",
    "jobs",
    "tasks",
    "task s",
    *CALLS.values(),
    "metadata",
    "manifests",
    "data files",
    "client cpu s",
    "Spark cpu s",
    "cpu s",
    "wall s",
)
"""Of the printed table. All but the first are means of a session."""

Figures = dict[str, float]

Code = tuple[Path, dict[str, str]]
"""The folder of a revision, and the environment of its processes."""


def main() -> None:
    """Run and print."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that Spark is stopped
    if arguments.side:
        _play_when_told(arguments)
        return
    revisions = {arguments.before: arguments.before, "now": None} if arguments.before else {"now": None}
    with ExitStack() as archives:
        sides = {}
        for side, revision in revisions.items():
            sides[side] = archives.enter_context(code_of(revision, own_files=OWN_FILES))
        _print(_measured(sides, arguments))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--accounts", type=int, default=5_000)
    parser.add_argument("--landings", type=int, default=8, help="landings that are measured")
    parser.add_argument("--warm-up", type=int, default=4, help="landings before them")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=TARGETS)
    parser.add_argument("--seconds", type=float, default=600, help="after them no landing is begun")
    parser.add_argument("--before", help="a revision of Git to measure, too")
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    arguments, _ = parser.parse_known_args()
    return arguments


def _measured(sides: Mapping[str, Code], arguments: argparse.Namespace) -> dict[str, dict[str, Figures]]:
    """Play all landings on all sides, in turns. Return side → target → figures."""
    processes = {side: _started(code, arguments) for side, code in sides.items()}
    began = time.time()
    for number in range(1 + arguments.warm_up + arguments.landings):
        if time.time() - began > arguments.seconds:
            break
        in_turns = sorted(processes, reverse=bool(number % 2))
        for side in in_turns:
            _tell(processes[side])
        print(f"landing {number} after {time.time() - began:.0f} s", file=sys.stderr, flush=True)
    figures = {}
    for side, process in processes.items():
        answer, _ = process.communicate()
        figures[side] = json.loads(answer)
    return figures


def _started(code: Code, arguments: argparse.Namespace) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.session_cost", "--side"]
    for name in ("accounts", "landings", "warm_up"):
        command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    command += ["--targets", *arguments.targets]
    folder, environment = code
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def _tell(process: subprocess.Popen[str]) -> None:
    """Let a side play its next landing, and wait for its end."""
    assert process.stdin is not None
    assert process.stdout is not None
    print("next", file=process.stdin, flush=True)
    if not process.stdout.readline():
        raise SystemExit(process.wait() or 1)


def _play_when_told(arguments: argparse.Namespace) -> None:
    """Play a landing for each line of the standard input, and answer with a line; at its end print the figures."""
    with tempfile.TemporaryDirectory(prefix="lake-bench-") as name:
        folder = Path(name)
        log = folder / "events"
        log.mkdir()
        home = Settings(home=folder / "home", jars=settings().jars)
        landings = generate(late_day(arguments.accounts))
        with running(logged(spark_service(home, free_port()), log)) as service:
            bench = Bench(home.model_copy(update={"spark_remote": f"sc://127.0.0.1:{service.port}"}))
            numbered = enumerate(islice(landings, 1 + arguments.warm_up + arguments.landings))
            for (number, landing), _ in zip(numbered, sys.stdin, strict=False):
                bench.play(landing, arguments.targets, counted=number > arguments.warm_up)
                print("played", flush=True)
            bench.close()
        print(json.dumps(bench.figures(log)), flush=True)


@dataclass
class Bench:
    """An engine in its data directory, and what its sessions took.

    Attributes:
        totals: Target → column → sum over its sessions.
        spans: Target → spans of its sessions.
        opened: Files that pyiceberg opens, and calls to Spark, by column.
    """

    home: Settings
    totals: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    spans: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    opened: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.spark: Any = open_spark(self.home)
        clock = lambda: datetime(2026, 1, 2, tzinfo=UTC)  # noqa: E731
        self.engine = Engine(open_catalog(self.home), PIPELINE, clock=clock, spark=lambda: self.spark)
        self.engine.create_tables()
        self.server = spark_server(self.home.home)
        _count_calls(self.spark, self.opened)

    def play(self, landing: Any, targets: Sequence[str], *, counted: bool) -> None:
        """Land a batch, then run the sessions that are due."""
        _land(self.engine.catalog, landing)
        for target in map(PIPELINE.target, targets):
            before = self._taken()
            began = time.time()
            with _counted_files(self.opened):
                report = self.engine.run(target)
            ended = time.time()
            if counted and isinstance(report, SessionReport):
                taken = self._taken()
                taken.subtract(before)
                self.totals[target.name].update({**taken, "sessions": 1, "wall s": ended - began})
                self.totals[target.name].update({f"step {step}": s for step, s in report.seconds.items()})
                self.spans[target.name].append((began, ended))

    def close(self) -> None:
        """Stop the Spark session."""
        self.spark.stop()

    def figures(self, log: Path) -> dict[str, Figures]:
        """Return target → column → figure; Spark must have ended, because its log has a part of them."""
        works = work(log, self.spans)
        found = {}
        for name, totals in self.totals.items():
            of_spark = works[name]
            totals.update({"jobs": of_spark.jobs, "tasks": of_spark.tasks, "task s": of_spark.seconds})
            totals["cpu s"] = totals["client cpu s"] + totals["Spark cpu s"]
            number = totals["sessions"]
            found[name] = {column: total / number for column, total in totals.items()}
            found[name]["sessions"] = number
        return found

    def _taken(self) -> Counter[str]:
        taken: Counter[str] = Counter(self.opened)
        taken["client cpu s"] = cpu_seconds(psutil.Process())  # type: ignore[assignment]
        taken["Spark cpu s"] = cpu_seconds(self.server)  # type: ignore[assignment]
        return taken


def _land(catalog: Any, landing: Any) -> None:
    """Append a batch to the raw tables, without Spark."""
    for name, rows in landing.rows.items():
        table = iceberg.load(catalog, name)
        with table.transaction() as transaction:
            if rows.num_rows:
                transaction.append(rows)
            if landing.complete_through[name] is not None:
                transaction.set_properties({iceberg.COMPLETE_THROUGH: hour_key(landing.complete_through[name])})


def _count_calls(spark: Any, counts: Counter[str]) -> None:
    """Count the calls of a Spark Connect session from now on."""
    stub = spark.client._stub
    for name, column in CALLS.items():
        setattr(stub, name, _counting(getattr(stub, name), column, counts))


def _counting(call: Callable[..., Any], column: str, counts: Counter[str]) -> Callable[..., Any]:
    def counting(*args: Any, **kwargs: Any) -> Any:
        counts[column] += 1
        return call(*args, **kwargs)

    return counting


@contextmanager
def _counted_files(counts: Counter[str]) -> Iterator[None]:
    """Count the files that pyiceberg opens for reading while the block runs."""
    open_file = PyArrowFile.open

    def counting(file: PyArrowFile, seekable: bool = True) -> Any:
        counts[_kind(file.location)] += 1
        return open_file(file, seekable)

    PyArrowFile.open = counting  # type: ignore[method-assign]
    try:
        yield
    finally:
        PyArrowFile.open = open_file  # type: ignore[method-assign]


def _kind(location: str) -> str:
    if location.endswith(".metadata.json"):
        return "metadata"
    return "manifests" if location.endswith(".avro") else "data files"


def _print(figures: Mapping[str, Mapping[str, Figures]]) -> None:
    steps = sorted({column for side in figures.values() for own in side.values() for column in own} - set(COLUMNS))
    columns = [*COLUMNS, *steps]
    print(f"{'target':<22}{'side':<12}" + "".join(f"{column:>13}" for column in columns))
    for name in [*TARGETS, "all"]:
        for side, of_side in figures.items():
            own = _mean(list(of_side.values())) if name == "all" else of_side.get(name)
            if own:
                values = "".join(f"{own.get(column, 0.0):>13.2f}" for column in columns)
                print(f"{name:<22}{side[:11]:<12}{values}")


def _mean(figures: Sequence[Figures]) -> Figures:
    """Return the mean of a session over all targets."""
    totals: Counter[str] = Counter()
    for own in figures:
        totals.update({column: value * own["sessions"] for column, value in own.items() if column != "sessions"})
    sessions = sum(own["sessions"] for own in figures)
    return {"sessions": sessions, **{column: total / sessions for column, total in totals.items()}}


if __name__ == "__main__":
    main()
