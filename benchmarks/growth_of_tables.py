"""What each landing adds to a raw table, and each session to its target: snapshots, files and bytes, as slopes.

    python -m benchmarks.growth_of_tables [--sessions 8]

One hour lands, and one session of a stateless target builds it, on Spark in this process. The times are passed in.
"""

from __future__ import annotations

import argparse
import csv
import logging
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.growth import print_growth, size_of_table
from lake_assets.base.hours import hour_of
from lake_assets.cli.land import land_files
from lake_assets.incremental.declaration import (
    Pipeline,
    RawTable,
    SessionContext,
    Source,
    Stateless,
    incremental_asset,
)
from lake_assets.incremental.from_settings import Lake
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
ROWS_OF_AN_HOUR = 100
WARM_UP = 2
COLUMNS = {"click_id": "string", "clicked_at": "timestamptz"}


@incremental_asset(
    mode=Stateless(),
    sources=[Source("raw.clicks", time_column="clicked_at")],
    key="click_id",
    time_column="clicked_at",
    columns=COLUMNS,
)
def click_fact(session: SessionContext, clicks: DataFrame) -> DataFrame:
    """Clicks."""
    return clicks.select("click_id", "clicked_at")


PIPELINE = Pipeline(
    raw=(RawTable("raw.clicks", COLUMNS, time_column="clicked_at"),),
    targets=(click_fact,),
    start="2026-01-01-00:00",
)
TABLES = ("raw.clicks", click_fact.table)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=8)
    arguments, _ = parser.parse_known_args()
    logging.disable(logging.CRITICAL)
    with (
        tempfile.TemporaryDirectory(prefix="lake-bench-") as name,
        Lake.open(PIPELINE, settings=Settings(home=Path(name))) as lake,
    ):
        lake.create_tables()
        for hour in range(WARM_UP):
            _build(lake, hour, Path(name))
        before = {table: size_of_table(lake.catalog, table) for table in TABLES}
        for hour in range(WARM_UP, WARM_UP + arguments.sessions):
            _build(lake, hour, Path(name))
        for table in TABLES:
            after = size_of_table(lake.catalog, table)
            snapshots = len(lake.catalog.load_table(table).snapshots()) / (WARM_UP + arguments.sessions)
            print(f"{table}: {snapshots:.1f} snapshots a session")
            print_growth(table, after.per(before[table], arguments.sessions))


def _build(lake: Lake, hour: int, folder: Path) -> None:
    """Land the rows of an hour, and run the session that is due."""
    begun = FIRST + timedelta(hours=hour)
    file = folder / "hour.csv"
    with file.open("w", newline="") as text:
        rows = csv.writer(text)
        rows.writerow(COLUMNS)
        for number in range(ROWS_OF_AN_HOUR):
            rows.writerow([f"{hour}-{number}", (begun + timedelta(seconds=number)).isoformat()])
    now = begun + timedelta(hours=1)
    land_files(lake.catalog, PIPELINE, "raw.clicks", [file], now=now, through=hour_of(begun))
    outcomes = lake.catch_up()
    assert not [outcome for outcome in outcomes if outcome.failure], outcomes


if __name__ == "__main__":
    main()
