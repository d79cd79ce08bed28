"""What grows with each session: the log of sessions, and what Dagster stores of a run. Printed as slopes and by year.

    python -m benchmarks.growth [--sessions 60]

The log is that of one target. The clock is passed in, and no Spark is used: a year is the slope of two counts.
`benchmarks.growth_of_tables` measures raw tables and targets, with Spark.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from benchmarks.planning import FIRST, run_session
from lake_assets.connections.catalog import open_catalog
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.iceberg import HIGH_WATERMARK, SESSION
from lake_assets.membership import PIPELINE
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

TARGETS = 5
SESSIONS_OF_A_YEAR = 365 * 24 * TARGETS
RUNS = 4


@dataclass(frozen=True)
class Size:
    """Size of something: rows (0 if it has none), files on disk and their bytes."""

    rows: int
    files: int
    bytes: int

    def per(self, before: Size, count: int) -> tuple[float, float, float]:
        """Return the growth of each from an earlier size, for one of `count`."""
        return (
            (self.rows - before.rows) / count,
            (self.files - before.files) / count,
            (self.bytes - before.bytes) / count,
        )


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=60)
    arguments, _ = parser.parse_known_args()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="lake-bench-") as name:
        folder = Path(name)
        _log(folder / "log", arguments.sessions)
        _dagster(folder / "dagster")


def _log(folder: Path, sessions: int) -> None:
    engine = Engine(open_catalog(Settings(home=folder)), PIPELINE, clock=lambda: FIRST)
    engine.create_tables()
    found = []
    for half in range(2):
        for number in range(half * sessions, (half + 1) * sessions):
            run_session(engine, number)
        found.append({table: size_of_table(engine.catalog, table) for table in (SESSION, HIGH_WATERMARK)})
    before, after = found
    for table, size in after.items():
        print_growth(table, size.per(before[table], sessions))


def size_of_table(catalog: Catalog, name: str) -> Size:
    """Return the size of a table with all that its folder holds: data, manifests and metadata of all snapshots."""
    table = iceberg.load(catalog, name)
    folder = Path(table.location().removeprefix("file://"))
    size = size_of_folder(folder)
    return Size(table.scan().count(), size.files, size.bytes)


def size_of_folder(folder: Path) -> Size:
    """Return the number of files of a folder and its folders, and their bytes."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return Size(0, len(files), sum(path.stat().st_size for path in files))


def _dagster(folder: Path) -> None:
    @dg.asset(partitions_def=dg.HourlyPartitionsDefinition("2026-01-01-00:00"))
    def fact() -> dg.MaterializeResult[None]:
        print("a line")
        return dg.MaterializeResult(metadata={"rows": 1})

    folder.mkdir()
    (folder / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with dg.DagsterInstance.from_config(str(folder)) as instance, contextlib.redirect_stdout(io.StringIO()):
        sizes = []
        for hour in range(RUNS):
            dg.materialize([fact], instance=instance, partition_key=f"2026-01-01-{hour:02d}:00")
            sizes.append(size_of_folder(folder))
    print_growth("Dagster's runs", sizes[-1].per(sizes[0], RUNS - 1))


def print_growth(what: str, growth: tuple[float, float, float]) -> None:
    """Print what one session adds, and a year of sessions of five targets."""
    rows, files, size = growth
    year = SESSIONS_OF_A_YEAR
    each = f"{rows:5.1f} rows {files:5.1f} files {size / 1024:8.1f} KB"
    all_of_year = f"{rows * year:10,.0f} rows {files * year:10,.0f} files {size * year / 2**30:8.1f} GB"
    print(f"{what:<22} a session: {each}   a year without maintenance: {all_of_year}", flush=True)


if __name__ == "__main__":
    main()
