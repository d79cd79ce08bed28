"""`python -m examples.flights`: replay 2013 through the lake, week by week, and compare with pandas."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from examples.flights import PIPELINE
from examples.flights.data import observe, package
from examples.flights.replay import WEEKS, Step, replay, verdict
from lake_assets.base.hours import hour_start
from lake_assets.errors import LakeError
from lake_assets.incremental.engine.engine import Engine
from lake_assets.settings import Settings, settings


def main(
    weeks: Annotated[int, typer.Option(min=1, max=WEEKS, help="number of weeks, from the first day of 2013")] = WEEKS,
    daily: Annotated[bool, typer.Option(help="catch up after each day instead of each week")] = False,
) -> None:
    """Replay the flights of 2013 as they became known, into LAKE_HOME. Exit with 1 if a table differs from pandas.

    A second call continues after the last landed week.
    """
    try:
        equal = run(settings(), weeks=weeks, daily=daily)
    except LakeError as error:
        typer.echo(f"Error: {error}", err=True)
        equal = False
    if not equal:
        sys.exit(1)


def run(settings: Settings, *, weeks: int, daily: bool) -> bool:
    """Replay the flights, compare with pandas and print both; return whether every table is equal.

    Args:
        settings: The settings of the data directory.
        weeks: Number of weeks to replay.
        daily: Catch up after each day, not after each week.
    """
    observations = observe(*package())
    engine = open_engine(settings)
    for step in replay(engine, observations, weeks=weeks, daily=daily, stopwatch=time.perf_counter):
        _print_step(step)
        if step.failures:
            return False
    found = verdict(engine, observations)
    for comparison in found:
        for line in comparison.lines():
            typer.echo(line)
    return all(comparison.equal for comparison in found)


def open_engine(settings: Settings) -> Engine:
    """Return the engine of this pipeline, on the catalog and the Spark of the settings."""
    from lake_assets.incremental.from_settings import open_engine

    own = settings.model_copy(update={"pipelines": "examples.flights:PIPELINE"})
    return open_engine(own)


def _print_step(step: Step) -> None:
    landed = ", ".join(f"{number:,} {table.split('.')[1]}" for table, number in step.rows.items())
    built = ", ".join(f"{target.name} {step.hours[target.name]}" for target in PIPELINE.in_order())
    days = f"{hour_start(step.first):%d %b} to {hour_start(step.end - 1):%d %b}"
    typer.echo(f"{days}: landed {landed}; hours built: {built} ({step.seconds:.1f} s)")
    for failure in step.failures:
        typer.echo(f"  ✗ {failure}", err=True)


if __name__ == "__main__":
    typer.run(main)
