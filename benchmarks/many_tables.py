"""A pipeline of many raw tables and as many targets. A target reads its own raw table, each tenth the target before it.

`LAKE_PIPELINES=benchmarks.many_tables:PIPELINE`; `BENCH_TABLES` says how many raw tables there are.

    python -m benchmarks.many_tables fill     lands one row in each raw table, and moves each watermark past it
    python -m benchmarks.many_tables land 7   lands one row in the raw table 7, and waits until its target has it
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lake_assets.base.hours import hour_key, hour_start, parse_hour
from lake_assets.incremental.declaration import (
    Pipeline,
    RawTable,
    SessionContext,
    Source,
    Stateful,
    Stateless,
    Target,
    incremental_asset,
)
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.iceberg import COMPLETE_THROUGH
from lake_assets.incremental.engine.model import SessionPlan
from lake_assets.incremental.engine.planning import committed_after
from lake_assets.incremental.engine.state import after_session, commit_state
from lake_assets.incremental.from_settings import open_engine
from lake_assets.settings import settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame

START = parse_hour("2026-01-01-00:00")
PATIENCE_SECONDS = 300
POLL_SECONDS = 0.1


def raw_table(number: int) -> RawTable:
    """Return the declaration of a raw table."""
    return RawTable(f"raw.event_{number:03}", {"id": "string", "event_ts": "timestamptz"}, time_column="event_ts")


def target(number: int) -> Target:
    """Return the declaration of a target."""
    name = f"fact_{number:03}"
    reads_target = number % 10 == 9
    source = f"core.fact_{number - 1:03}" if reads_target else f"raw.event_{number:03}"
    column = "happened_at" if reads_target else "event_ts"

    def build(session: SessionContext, rows: DataFrame) -> DataFrame:
        return rows.selectExpr("id", f"{column} AS happened_at")

    build.__name__ = build.__qualname__ = name
    made: Target = incremental_asset(
        mode=Stateful() if reads_target else Stateless(),
        sources=[Source(source, time_column=column)],
        key="id",
        time_column="happened_at",
        columns={"id": "string", "happened_at": "timestamptz"},
    )(build)
    return made


def pipeline(tables: int) -> Pipeline:
    """Return a pipeline of so many raw tables and as many targets."""
    numbers = range(tables)
    return Pipeline(
        raw=tuple(raw_table(number) for number in numbers),
        targets=tuple(target(number) for number in numbers),
        start=hour_key(START),
    )


PIPELINE = pipeline(int(os.environ.get("BENCH_TABLES", "300")))


def land(catalog: Catalog, number: int, hour: int) -> None:
    """Land one row of an hour in a raw table, and complete it through the hour."""
    moment = hour_start(START + hour)
    row: dict[str, Any] = {
        "id": f"{number}-{hour}",
        "event_ts": moment,
        "landed_at": moment,
        "landing_date": moment.date(),
        "landing_hour": moment.hour,
        "batch_id": f"b{hour}",
    }
    table = catalog.load_table(f"raw.event_{number:03}")
    with table.transaction() as transaction:
        transaction.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))
        transaction.set_properties({COMPLETE_THROUGH: hour_key(START + hour)})


def fill(engine: Engine) -> None:
    """Land one row in each raw table, and move each watermark past it without a session of Spark."""
    for number, each in enumerate(engine.pipeline.targets):
        if number % 10 == 9:
            continue  # it reads a target that has no rows
        land(engine.catalog, number, 0)
        state, plan = engine.state(each), engine.decide(each)
        assert isinstance(plan, SessionPlan), plan
        assert state.table is not None
        committed = committed_after(each.mode, state.committed, plan, plan.hour_numbers)
        pattern_id = each.mode.pattern_id
        after = after_session(state, plan, committed, pattern_id=pattern_id, run_id="", started_at=hour_start(START))
        commit_state(engine.catalog, state.table, after, None)


def seconds_until_published(catalog: Catalog, number: int, hour: int) -> float:
    """Land a row, and return the seconds until its target has a new snapshot."""
    name = f"core.fact_{number:03}"
    before = catalog.load_table(name).metadata.current_snapshot_id
    land(catalog, number, hour)
    began = time.monotonic()
    while catalog.load_table(name).metadata.current_snapshot_id == before:
        if time.monotonic() - began > PATIENCE_SECONDS:
            return float("inf")
        time.sleep(POLL_SECONDS)
    return time.monotonic() - began


def main() -> None:
    """Do what the command line says, in the home of the settings."""
    engine = open_engine(settings())
    if sys.argv[1] == "fill":
        fill(engine)
    else:
        number, hour = int(sys.argv[2]), int(sys.argv[3])
        print(f"{seconds_until_published(engine.catalog, number, hour):.1f}")


if __name__ == "__main__":
    main()
