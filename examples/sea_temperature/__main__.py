"""`python -m examples.sea_temperature`: land temperatures in batches, build, and compare with pandas."""

from __future__ import annotations

import typer

from examples.batches import play
from examples.sea_temperature.loader import RAW, START, TABLES, expected, readings

DAYS = 56


def main(days: int = DAYS) -> None:
    """Land the rows of some days, a batch for each week, into LAKE_HOME. Exit with 1 if a table differs from pandas."""
    play(TABLES, RAW, readings(), expected, start=START, days=days)


if __name__ == "__main__":
    typer.run(main)
