"""Sessions without an engine: rows in memory go through the tables' transforms, and stay in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from lake_assets.base.hours import hour_of
from lake_assets.incremental.declaration import Sequential, SessionContext, Stateless, Target
from lake_assets.membership import PIPELINE
from lake_assets.membership.raw import RAW
from lake_assets_tests.membership.oracle import Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Lake = dict[str, list[Row]]
"""Table → rows."""

COLUMNS: Mapping[str, Mapping[str, str]] = {
    **{raw.table: raw.all_columns for raw in RAW},
    **{target.table: target.columns for target in PIPELINE.targets},
}
ARROW = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "date": pa.date32(),
    "timestamptz": pa.timestamp("us", "UTC"),
    "decimal(9, 2)": pa.decimal128(9, 2),
}

SPARK = {"timestamptz": "timestamp"}


def frame(spark: SparkSession, table: str, rows: Sequence[Row]) -> DataFrame:
    """Rows of a table as a DataFrame; a column that a row does not name is null."""
    if not rows:  # an empty Arrow table is refused
        return spark.createDataFrame([], ", ".join(f"{c} {SPARK.get(t, t)}" for c, t in COLUMNS[table].items()))
    schema = pa.schema([(name, ARROW[kind]) for name, kind in COLUMNS[table].items()])
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), schema=schema))


def build(spark: SparkSession, raw: Lake, published: Lake, sessions: Iterable[Sequence[int]]) -> Lake:
    """The targets' rows after some sessions, each over its hours, from raw rows that are sound and delivered once.

    Stateless targets take all rows at once; those by day, no hours but whole days.
    """
    lake: Lake = {**{t.table: [] for t in PIPELINE.targets}, **published, **raw}
    for target in PIPELINE.targets:
        if isinstance(target.mode, Stateless):
            lake[target.table] = run(spark, target, lake, ())
    for hours in sessions:
        for target in PIPELINE.targets:
            if not isinstance(target.mode, Stateless) and target.grain.whole(hours) <= set(hours):
                lake[target.table] = run(spark, target, lake, hours)
    return {target.table: lake[target.table] for target in PIPELINE.targets}


def run(spark: SparkSession, target: Target, lake: Lake, hours: Sequence[int]) -> list[Row]:
    """A target's rows after one session: those built, and those published before in other hours."""
    append = isinstance(target.mode, Stateless)
    before = [] if append else lake.get(target.table, [])
    published = frame(spark, target.table, before) if isinstance(target.mode, Sequential) else None
    context = SessionContext("session", tuple(hours), published)
    built = target.transform(context, *(frame(spark, s.table, lake[s.table]) for s in target.sources))
    rows: list[Row] = built.toArrow().to_pylist()
    assert built.columns == list(target.columns)
    assert append or {hour_of(r[target.time_column]) for r in rows} <= set(hours)
    return rows + [r for r in before if hour_of(r[target.time_column]) not in hours]


def in_order(lake: Lake) -> Lake:
    """The same rows, in an order of their own, so that two lakes can be compared."""
    return {table: sorted(rows, key=lambda r: [str(r[c]) for c in COLUMNS[table]]) for table, rows in lake.items()}
