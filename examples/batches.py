"""Rows that land in batches, late and out of order, through pyiceberg alone; after each batch, all due sessions.

`land` does what any program that lands rows does: it adds four columns, and commits rows and complete-through
together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from examples.comparison import compare
from lake_assets.base.hours import hour_key, hour_of, hour_start, parse_hour
from lake_assets.incremental.engine.engine import Engine, catch_up
from lake_assets.incremental.engine.iceberg import COMPLETE_THROUGH, load

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.settings import Settings

Expected = Callable[[pd.DataFrame, pd.Timestamp], Mapping[str, pd.DataFrame]]
"""Returns target → its rows, for all landed rows, and the end of the last complete day."""


def replay(
    engine: Engine,
    raw: str,
    rows: pd.DataFrame,
    ends: pd.DatetimeIndex,
    expected: Expected,
    *,
    say: Callable[[str], None],
) -> bool:
    """Land rows batch by batch and build what is due; return whether all tables are equal to pandas in the end.

    Args:
        engine: The engine of the pipeline.
        raw: The raw table.
        rows: Its columns, and known_at: when the row becomes known.
        ends: The moments at which a batch lands. It has all rows that became known since the one before.
        expected: Computes the tables by pandas.
        say: Receives each line of progress.
    """
    engine.create_tables()
    before = pd.Timestamp.min.tz_localize("UTC")
    for end in ends:
        batch = rows[(rows["known_at"] >= before) & (rows["known_at"] < end)]
        land(engine.catalog, raw, batch.drop(columns="known_at"), end)
        before = end
        outcomes = catch_up(engine, engine.pipeline.in_order(), run_id="examples")
        failures = [outcome.failure for outcome in outcomes if outcome.failure]
        if failures:
            say("\n".join(failures))
            return False
        say(f"{end:%d %b}: landed {len(batch):,} rows")
    found = compare(engine.catalog, expected(rows[rows["known_at"] < before], before))
    for comparison in found:
        say("\n".join(comparison.lines()))
    equal = all(comparison.equal for comparison in found)
    say("All equal." if equal else "Not all equal.")
    return equal


def play(
    tables: Path,
    raw: str,
    rows: pd.DataFrame,
    expected: Expected,
    *,
    start: str,
    days: int,
) -> None:
    """Land the rows of some days, a batch for each week, into LAKE_HOME. Exit with 1 if a table differs from pandas.

    Args:
        tables: The folder of YAML files.
        raw: The raw table.
        rows: Its columns, and known_at.
        expected: Computes the tables by pandas.
        start: The first event hour. The weeks are counted from here.
        days: The number of days, in whole weeks.
    """
    import typer

    from lake_assets.settings import settings

    engine = open_engine(settings(), tables, start)
    first = pd.Timestamp(hour_start(parse_hour(start)))
    ends = pd.date_range(first, first + pd.Timedelta(days=days), freq="7D", inclusive="right")
    if not replay(engine, raw, rows, ends, expected, say=typer.echo):
        raise typer.Exit(1)


def land(catalog: Catalog, raw: str, rows: pd.DataFrame, at: pd.Timestamp) -> None:
    """Land rows at a moment, and declare the table complete up to it. Its rows that come later are late."""
    import pyarrow as pa

    moment = at.to_pydatetime()
    landed = rows.assign(
        landed_at=moment, landing_date=moment.date(), landing_hour=moment.hour, batch_id=f"{at:%Y%m%d%H}"
    )
    table = load(catalog, raw)
    schema = table.schema().as_arrow()
    with table.transaction() as transaction:
        transaction.append(pa.Table.from_pandas(landed, schema=schema, preserve_index=False))
        transaction.set_properties({COMPLETE_THROUGH: hour_key(hour_of(moment - timedelta(hours=1)))})


def open_engine(settings: Settings, tables: Path, start: str) -> Engine:
    """Return the engine of a folder of YAML files, on the catalog and the Spark of the settings.

    Args:
        settings: The settings of the data directory.
        tables: The folder.
        start: The first event hour.
    """
    from lake_assets.incremental.from_settings import open_engine

    return open_engine(settings.model_copy(update={"pipelines": str(tables), "start": start}))
