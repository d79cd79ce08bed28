"""The examples in YAML and SQL: rows land late and out of order, and every table is as pandas has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from examples import earthquakes, sea_temperature
from examples.batches import Expected, open_engine, replay
from examples.earthquakes import loader as quakes
from examples.sea_temperature import loader as sea
from lake_assets.settings import Settings


@dataclass(frozen=True)
class Example:
    """ends: when batches land. late: how many rows come after the hour of theirs was declared complete."""

    package: ModuleType
    tables: Path
    raw: str
    start: str
    rows: Callable[[], pd.DataFrame]
    expected: Expected
    ends: pd.DatetimeIndex


EXAMPLES = [
    Example(
        earthquakes,
        quakes.TABLES,
        quakes.RAW,
        quakes.START,
        quakes.reports,
        quakes.expected,
        pd.date_range("2024-04-05", periods=3, freq="3D", tz="UTC"),
    ),
    Example(
        sea_temperature,
        sea.TABLES,
        sea.RAW,
        sea.START,
        sea.readings,
        sea.expected,
        pd.date_range("2016-02-18", periods=3, freq="2D", tz="UTC"),
    ),
]


KEYS = {earthquakes: "place", sea_temperature: "buoy"}


@pytest.fixture(params=EXAMPLES, ids=lambda example: str(example.package.__name__))
def example(request: pytest.FixtureRequest) -> Example:
    found: Example = request.param
    return found


def late_rows(example: Example) -> int:
    """The rows that a batch brings although one before it had declared their hour complete."""
    rows, late = example.rows(), 0
    for before, end in zip(example.ends, example.ends[1:], strict=False):
        batch = rows[(rows["known_at"] >= before) & (rows["known_at"] < end)]
        late += int((batch.iloc[:, 1] < before).sum())
    return late


def test_rows_come_late_and_columns_are_stored(example: Example) -> None:
    assert late_rows(example) >= 5
    declared = sum(len(file.read_text().splitlines()) for file in example.tables.glob("*.[ys][aq][ml]*"))
    assert declared <= 60
    stored = [json.loads(file.read_text()) for file in example.tables.glob("*.columns.json")]
    assert len(stored) == 2
    assert [found["unknown_lineage"] for found in stored] == [[], []]


def test_no_row_has_the_key_and_the_time_of_another(example: Example) -> None:
    """Which of two such rows counts is decided by a hash, which pandas does not know."""
    rows = example.rows()
    assert not rows.duplicated([KEYS[example.package], str(rows.columns[1])]).any()


@pytest.mark.journey
def test_every_table_is_as_pandas_has_it(example: Example, home: Settings) -> None:
    said: list[str] = []
    engine = open_engine(home, example.tables, example.start)
    assert replay(engine, example.raw, example.rows(), example.ends, example.expected, say=said.append), said
    assert said[-1] == "All equal."
    assert all(line.startswith("✓") for line in said[-3:-1])
