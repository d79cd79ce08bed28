"""`python -m examples.flights`: replay 2013 through the lake, week by week, and compare with pandas."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from examples.flights import PIPELINE
from examples.flights.data import observe, package
from examples.flights.expected import Comparison
from examples.flights.replay import WEEKS, Step, replay, verdict
from lake_assets.base.hours import hour_start
from lake_assets.errors import LakeError
from lake_assets.incremental.execution.engine import Engine
from lake_assets.settings import Settings, settings

SAMPLE = 10


def main(
    weeks: Annotated[int, typer.Option(min=1, max=WEEKS, help="of 2013, from its first day on")] = WEEKS,
    daily: Annotated[bool, typer.Option(help="catch up after each day, not after each week")] = False,
) -> None:
    """Replay the flights of 2013 as they became known, into LAKE_HOME. Exits with 1 if a table is not as pandas has it.

    A second call goes on after the last week that was landed.
    """
    try:
        sys.exit(0 if run(settings(), weeks=weeks, daily=daily) else 1)
    except LakeError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(1)


def run(settings: Settings, *, weeks: int, daily: bool) -> bool:
    """Replay, compare and tell; whether every table is as it should be."""
    observations = observe(*package())
    engine = open_engine(settings)
    for step in replay(engine, observations, weeks=weeks, daily=daily, stopwatch=time.perf_counter):
        _tell(step)
        if step.failures:
            return False
    found = verdict(engine, observations)
    for comparison in found:
        _judge(comparison)
    return all(comparison.equal for comparison in found)


def open_engine(settings: Settings) -> Engine:
    """The engine of this pipeline alone, on the home's catalog and its Spark."""
    from lake_assets.incremental.from_settings import open_engine

    own = settings.model_copy(update={"pipelines": "examples.flights:PIPELINE"})
    return open_engine(own)


def _tell(step: Step) -> None:
    landed = ", ".join(f"{number:,} {table.split('.')[1]}" for table, number in step.rows.items())
    built = ", ".join(f"{name} {step.hours[name]}" for name in (t.name for t in PIPELINE.in_order()))
    days = f"{hour_start(step.first):%d %b} to {hour_start(step.end - 1):%d %b}"
    typer.echo(f"{days}: landed {landed}; hours built: {built} ({step.seconds:.1f} s)")
    for failure in step.failures:
        typer.echo(f"  ✗ {failure}", err=True)


def _judge(found: Comparison) -> None:
    if found.equal:
        typer.echo(f"✓ {found.table}: {found.rows:,} rows, equal to pandas")
        return
    typer.echo(f"✗ {found.table}: {found.rows:,} rows, {found.expected:,} by pandas")
    for what, rows in (("missing", found.missing), ("unexpected", found.unexpected)):
        if len(rows):
            typer.echo(f"  {len(rows):,} {what}, such as\n{rows.head(SAMPLE).to_string()}")


if __name__ == "__main__":
    typer.run(main)
