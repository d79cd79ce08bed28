"""`python -m examples.sea_temperature`: land temperatures in batches, build, and compare with pandas."""

from __future__ import annotations

import sys

import pandas as pd
import typer

from examples.batches import open_engine, replay
from examples.sea_temperature.loader import RAW, START, TABLES, expected, readings
from lake_assets.settings import settings

FIRST = "2016-02-15"
DAYS = 56


def main(days: int = DAYS) -> None:
    """Land the rows of some days, a batch for each week, into LAKE_HOME. Exit with 1 if a table differs from pandas."""
    engine = open_engine(settings(), TABLES, START)
    start = pd.Timestamp(FIRST, tz="UTC")
    ends = pd.date_range(start, start + pd.Timedelta(days=days), freq="7D", inclusive="right")
    if not replay(engine, RAW, readings(), ends, expected, say=typer.echo):
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
