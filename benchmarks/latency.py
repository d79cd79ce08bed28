"""Time from the commit of a raw snapshot to the published fact and dimension, with the services of `lake up`.

The services start in a temporary data directory. Landings follow each other, and this process measures when each target
gets a new snapshot. So the time includes the sensor, Dagster's queue and the start of a run. For the first target, the
stations of each landing are read from Dagster's event log and from the session's record.

With `--before REVISION` the same is done with the code of that revision, and the two sides take turns.

    python -m benchmarks.latency [--landings 12] [--before REVISION] [--rounds 2] [--picture FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from pyiceberg.table import Table

from benchmarks.processes import cpu_seconds_of_home

OWN_FILES = ("latency.py", "processes.py")
"""The files of this benchmark. A side of an older revision is measured with them, too: so they import nothing of the
engine that an older revision has elsewhere."""

PATIENCE_SECONDS = 180
POLL_SECONDS = 0.05
DUE_SECONDS = 1.0
FIRST_TARGET = "core.signup_fact"
FIRST_SOURCE = "raw.signups"
STATIONS = ("committed", "noticed", "queued", "dequeued", "process", "step", "staged", "published", "shown", "ended")
"""Of a late row: the commit of its raw snapshot, the sensor's tick that found it, the run queued, taken from the queue,
its process started, its step started, rows staged, session published and recorded, materialization shown, run ended."""


@dataclass
class Measured:
    """What one side gave.

    waited: target → seconds; stations: of each landing, milliseconds since its commit; cpu_seconds: of each landing,
    service → seconds of processor time.
    """

    waited: dict[str, list[float]] = field(default_factory=dict)
    stations: list[dict[str, float]] = field(default_factory=list)
    memory_mb: list[int] = field(default_factory=list)
    cpu_seconds: list[dict[str, float]] = field(default_factory=list)

    def add(self, other: Measured) -> None:
        """Take the figures of another round of the same side."""
        for table, seconds in other.waited.items():
            self.waited.setdefault(table, []).extend(seconds)
        self.stations += other.stations
        self.memory_mb += other.memory_mb
        self.cpu_seconds += other.cpu_seconds


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--landings", type=int, default=12)
    parser.add_argument("--accounts", type=int, default=2_000)
    parser.add_argument("--before", help="revision to compare with")
    parser.add_argument("--rounds", type=int, default=1, help="how often each side has its turn")
    parser.add_argument("--picture", type=Path, help="write the way of a late row as SVG into this file")
    parser.add_argument("--one-side", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one_side:
        measured = _measure_services(arguments.landings, arguments.accounts)
        arguments.one_side.write_text(json.dumps(vars(measured)))
        return
    revisions = {"before": arguments.before, "now": None} if arguments.before else {"now": None}
    found = {side: Measured() for side in revisions}
    for _ in range(arguments.rounds):
        for side, revision in revisions.items():
            found[side].add(_side(revision, landings=arguments.landings, accounts=arguments.accounts))
    for side, measured in found.items():
        _print(side, measured)
    if arguments.picture:
        from benchmarks.late_row_picture import drawn  # an older revision lacks it

        arguments.picture.write_text(drawn({side: _medians(measured.stations) for side, measured in found.items()}))


def _side(revision: str | None, *, landings: int, accounts: int) -> Measured:
    """Measure with the code of a revision, in a process of its own."""
    from benchmarks.before import code_of  # an older revision may lack it

    with (
        code_of(revision, own_files=OWN_FILES) as (folder, environment),
        tempfile.TemporaryDirectory(prefix="lake-bench-") as results,
    ):
        result = Path(results) / "result.json"
        own = ("--one-side", str(result), "--landings", str(landings), "--accounts", str(accounts))
        command = (sys.executable, "-m", "benchmarks.latency", *own)
        subprocess.run(command, cwd=folder, env=environment, check=True)
        return Measured(**json.loads(result.read_text()))


def _measure_services(landings: int, accounts: int) -> Measured:
    from lake_assets.incremental.from_settings import open_engine
    from lake_assets.services import lifecycle
    from lake_assets.settings import settings

    with tempfile.TemporaryDirectory(prefix="lake-bench-") as folder:
        os.environ["LAKE_HOME"] = folder
        os.environ["LAKE_END"] = "2026-01-03-00:00"
        settings.cache_clear()
        home = settings()
        open_engine(home).create_tables()
        lifecycle.up(home, report=print)
        try:
            measured = _measure(landings, accounts)
            measured.memory_mb.append(sum(service.memory_mb for service in lifecycle.status(home)))
        finally:
            lifecycle.down(home, report=print)
    assert not Path(folder).exists()
    return measured


def _measure(landings: int, accounts: int) -> Measured:
    from lake_assets.connections.spark import open_spark
    from lake_assets.demo.membership_simulator import generate, land
    from lake_assets.incremental.from_settings import open_engine
    from lake_assets.settings import settings

    try:
        from benchmarks.arrival_figures import late_day
    except ImportError:  # an older revision
        from lake_assets.demo.membership_simulator import late_day  # type: ignore[attr-defined, no-redef]

    home = settings()
    engine, spark = open_engine(home), open_spark(home)
    measured = Measured()
    for number, landing in enumerate(islice(generate(late_day(accounts)), landings + 1)):
        before = _mains(engine)
        spent = cpu_seconds_of_home(home.home)
        land(engine.catalog, landing)
        moved = _watch(engine, before)
        is_warm_up = number == 0
        if is_warm_up:
            continue
        now = cpu_seconds_of_home(home.home)
        measured.cpu_seconds.append({service: seconds - spent.get(service, 0.0) for service, seconds in now.items()})
        for table, seconds in moved.items():
            measured.waited.setdefault(table, []).append(seconds)
        if FIRST_TARGET in moved:
            measured.stations.append(_stations(engine, home.home))
    spark.stop()
    return measured


def _mains(engine: Any) -> dict[str, int | None]:
    return {t.table: _main(engine.catalog.load_table(t.table)) for t in engine.pipeline.targets}


def _main(table: Table) -> int | None:
    snapshot = table.snapshot_by_name("main")
    return None if snapshot is None else snapshot.snapshot_id


def _watch(engine: Any, before: Mapping[str, int | None]) -> dict[str, float]:
    """Wait until nothing is due; return target → seconds until its main branch moved."""
    began = time.monotonic()
    asked = began
    moved: dict[str, float] = {}
    is_due = True
    while is_due and time.monotonic() - began < PATIENCE_SECONDS:
        for table, snapshot in _mains(engine).items():
            if table not in moved and snapshot != before[table]:
                moved[table] = time.monotonic() - began
        if time.monotonic() - asked >= DUE_SECONDS:  # this takes processor time from what is measured
            is_due = any(type(engine.decide(target)).__name__ == "SessionPlan" for target in engine.pipeline.targets)
            asked = time.monotonic()
        time.sleep(POLL_SECONDS)
    return moved


def _stations(engine: Any, home: Path) -> dict[str, float]:
    """Return the stations of the first target's newest session, in milliseconds since the raw commit."""
    import dagster as dg

    if hasattr(engine, "history"):
        record = engine.history(engine.pipeline.target(FIRST_TARGET), newest=1)[-1]
    else:  # a revision before one commit ended a session
        record = engine.store.state(FIRST_TARGET).session
    raw = engine.catalog.load_table(FIRST_SOURCE).current_snapshot()
    staged = engine.catalog.load_table(FIRST_TARGET).current_snapshot()
    assert raw is not None
    assert staged is not None
    with dg.DagsterInstance.from_config(str(home / "dagster")) as instance:
        run = next(iter(instance.get_run_records(dg.RunsFilter(tags={"lake/session_id": record.plan.session_id}))))
        events = instance.all_logs(run.dagster_run.run_id)
        times = _event_times((entry.timestamp, entry.dagster_event) for entry in events)
        times["noticed"] = run.create_timestamp.timestamp()
    times |= {"committed": raw.timestamp_ms / 1000, "staged": staged.timestamp_ms / 1000}
    if record.ended_at is not None:
        times["published"] = record.ended_at.timestamp()
    return {name: 1000 * (times[name] - times["committed"]) for name in STATIONS if name in times}


def _event_times(events: Iterable[tuple[float, object]]) -> dict[str, float]:
    """Return station → time of its first event."""
    stations = {
        "PIPELINE_ENQUEUED": "queued",
        "PIPELINE_STARTING": "dequeued",
        "STEP_START": "step",
        "ASSET_MATERIALIZATION": "shown",
        "PIPELINE_SUCCESS": "ended",
    }
    found: dict[str, float] = {}
    for timestamp, event in events:
        kind = getattr(event, "event_type_value", "")
        message = getattr(event, "message", None) or ""
        is_start = kind == "ENGINE_EVENT" and message.startswith("Started process for run")
        station = "process" if is_start else stations.get(kind)
        if station is not None:
            found.setdefault(station, timestamp)
    return found


def _print(side: str, measured: Measured) -> None:
    for table, found in measured.waited.items():
        p50 = _quantile(found, 0.5)
        p95 = _quantile(found, 0.95)
        print(f"{side:<7} {table:<26} p50 {p50:5.1f} s  p95 {p95:5.1f} s  of {len(found)}")
    if measured.stations:
        print(
            f"{side:<7} {FIRST_TARGET}, milliseconds since the raw commit, p50: {_steps(_medians(measured.stations))}"
        )
    memory = max(measured.memory_mb, default=0)
    cpu = _quantile([sum(landing.values()) for landing in measured.cpu_seconds], 0.5)
    print(f"{side:<7} services hold {memory} MB, and use {cpu:.1f} s of CPU a landing (p50)")
    print(f"{side:<7} of it: {', '.join(_by_service(measured.cpu_seconds))}")


def _by_service(landings: list[dict[str, float]]) -> list[str]:
    """Format the median of each service, the largest first."""
    services = {service for landing in landings for service in landing}
    medians = {service: _quantile([landing.get(service, 0.0) for landing in landings], 0.5) for service in services}
    return [f"{service} {medians[service]:.1f}" for service in sorted(medians, key=medians.__getitem__, reverse=True)]


def _medians(stations: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each station, in milliseconds since the raw commit."""
    medians = {}
    for name in STATIONS:
        found = [each[name] for each in stations if name in each]
        if found:
            medians[name] = _quantile(found, 0.5)
    return medians


def _steps(medians: Mapping[str, float]) -> str:
    """Format stations, each with the time since the one before."""
    steps = [
        f"{name} {medians[name]:.0f} (+{medians[name] - medians[before]:.0f})" for before, name in pairwise(medians)
    ]
    return ", ".join(steps)


def _quantile(values: list[float], share: float) -> float:
    place = math.ceil(share * len(values)) - 1
    return sorted(values)[max(0, place)]


if __name__ == "__main__":
    main()
