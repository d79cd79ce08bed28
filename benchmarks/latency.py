"""Time from the commit of a raw snapshot to the published fact and dimension, with the services of `lake up`.

The services start in a temporary data directory. Landings follow each other, and this process measures when each target
gets a new snapshot. So the time includes the sensor interval, Dagster's queue and the start of a run.

    python -m benchmarks.latency [--landings 12]
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from itertools import islice
from pathlib import Path

from lake_assets.connections.spark import open_spark
from lake_assets.demo.membership_simulator import generate, land, late_day
from lake_assets.incremental.execution.engine import Engine
from lake_assets.incremental.from_settings import open_engine
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.publish import main_id
from lake_assets.incremental.planning.session import SessionPlan
from lake_assets.services import lifecycle
from lake_assets.settings import settings

PATIENCE_SECONDS = 180
POLL_SECONDS = 0.2


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--landings", type=int, default=12)
    parser.add_argument("--accounts", type=int, default=2_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lake-bench-") as folder:
        os.environ["LAKE_HOME"] = folder
        os.environ["LAKE_END"] = "2026-01-03-00:00"
        settings.cache_clear()
        home = settings()
        open_engine(home).create_tables()
        lifecycle.up(home, report=print)
        try:
            _measure(arguments.landings, arguments.accounts)
            memory_mb = sum(service.memory_mb for service in lifecycle.status(home))
            print(f"services hold {memory_mb} MB")
        finally:
            lifecycle.down(home, report=print)
    assert not Path(folder).exists()


def _measure(landings: int, accounts: int) -> None:
    home = settings()
    engine, spark = open_engine(home), open_spark(home)
    waited: dict[str, list[float]] = {}
    for number, landing in enumerate(islice(generate(late_day(accounts)), landings + 1)):
        before = _mains(engine)
        land(spark, engine.catalog, landing)
        moved = _watch(engine, before)
        is_warm_up = number == 0
        if not is_warm_up:
            for table, seconds in moved.items():
                waited.setdefault(table, []).append(seconds)
    for table, found in waited.items():
        p50 = _quantile(found, 0.5)
        p95 = _quantile(found, 0.95)
        print(f"{table:<26} p50 {p50:5.1f} s  p95 {p95:5.1f} s  of {len(found)}")
    spark.stop()


def _mains(engine: Engine) -> dict[str, int | None]:
    return {t.table: main_id(tables.load(engine.catalog, t.table)) for t in engine.pipeline.targets}


def _watch(engine: Engine, before: dict[str, int | None]) -> dict[str, float]:
    """Wait until nothing is due; return target → seconds until its main branch moved."""
    began = time.monotonic()
    moved: dict[str, float] = {}
    is_due = True
    while is_due and time.monotonic() - began < PATIENCE_SECONDS:
        for table, snapshot in _mains(engine).items():
            if table not in moved and snapshot != before[table]:
                moved[table] = time.monotonic() - began
        is_due = any(isinstance(engine.decide(target), SessionPlan) for target in engine.pipeline.targets)
        time.sleep(POLL_SECONDS)
    return moved


def _quantile(values: list[float], share: float) -> float:
    place = math.ceil(share * len(values)) - 1
    return sorted(values)[max(0, place)]


if __name__ == "__main__":
    main()
