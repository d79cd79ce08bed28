"""Three targets of each kind, made-up rows for them, and a plain replay that says what must stand in the targets.

    raw.a ─→ core.fact (stateless) ─→ core.match (stateful) ─→ core.dim (sequential, by entity)
    raw.b ────────────────────────────┘       core.fact ─────────┘

Rows are tuples here; hours are counted from the start of the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from lake_assets import (
    Pipeline,
    RawTable,
    Sequential,
    SessionContext,
    Source,
    Stateful,
    Stateless,
    Subject,
    audits,
    incremental_asset,
)
from lake_assets.base.hours import hour_of, hour_start
from lake_assets_tests.incremental.scenario import with_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RAW = ("raw.a", "raw.b")
FACT, MATCH, DIM = TARGETS = ("core.fact", "core.match", "core.dim")
SOURCES = {FACT: ("raw.a",), MATCH: ("raw.b", FACT), DIM: (FACT, MATCH)}
REFUSED = 666
"""A value that a blocking audit refuses."""

VALUES = {"id": "long", "account": "string", "value": "long"}
TIME = dict.fromkeys(TARGETS, "at") | dict.fromkeys(RAW, "event_ts")


class Row(NamedTuple):
    """A row of a raw table. id: None for one that belongs in quarantine. landed: microseconds, never twice the same."""

    hour: int
    id: int | None
    account: str
    value: int
    landed: int


Target = tuple[Any, ...]
"""A row of a target: core.fact (hour, id, account, value); core.match (hour, id, account, fact, value); core.dim (hour,
account, total).
"""


def _raw(table: str) -> RawTable:
    return RawTable(table, {**VALUES, "event_ts": "timestamptz"}, time_column="event_ts")


@incremental_asset(
    mode=Stateless(),
    sources=[Source("raw.a", time_column="event_ts", key="id")],
    key="id",
    time_column="at",
    columns={"at": "timestamptz", **VALUES},
    audits=[
        audits.unique_key(),
        audits.source_target_counts(),
        audits.sql("accepted", f"select id, at from {{staged}} where value = {REFUSED}"),
    ],
)
def fact(session: SessionContext, a: DataFrame) -> DataFrame:
    """Each row of raw.a, once."""
    return a.selectExpr("event_ts AS at", "id", "account", "value")


@incremental_asset(
    mode=Stateful(),
    sources=[Source("raw.b", time_column="event_ts", key="id"), Source(FACT, time_column="at")],
    key="id",
    time_column="at",
    columns={"at": "timestamptz", "id": "long", "account": "string", "fact": "long", "value": "long"},
    audits=[audits.unique_key(), audits.sql("accepted", f"select id, at from {{staged}} where value = {REFUSED}")],
)
def match(session: SessionContext, b: DataFrame, facts: DataFrame) -> DataFrame:
    """Each row of raw.b, with the last fact of its account up to the end of its hour."""
    rows = session.within(b, "event_ts").selectExpr("event_ts AS at", "id", "account", "value", _hour("event_ts"))
    known = facts.selectExpr("account AS of", "id AS fact", _hour("at") + "_of_fact")
    joined = rows.join(known, (rows["account"] == known["of"]) & (known["hour_of_fact"] <= rows["hour"]), "left")
    return (
        joined.groupBy("at", "id", "account", "value").agg(_last_fact()).select("at", "id", "account", "fact", "value")
    )


def _hour(column: str) -> str:
    return f"unix_seconds({column}) DIV 3600 AS hour"


def _last_fact() -> Any:
    from pyspark.sql import functions as F

    return F.expr("coalesce(max(struct(hour_of_fact, fact)).fact, -1L) AS fact")


@incremental_asset(
    mode=Sequential(entity="account"),
    sources=[Source(FACT, time_column="at"), Source(MATCH, time_column="at")],
    key="account",
    time_column="at",
    columns={"at": "timestamptz", "account": "string", "total": "long"},
    audits=[audits.unique_key()],
)
def dim(session: SessionContext, facts: DataFrame, matches: DataFrame) -> DataFrame:
    """What the facts of each account come to at the end of each hour, and seven less for each match."""
    from pyspark.sql import functions as F

    assert session.published is not None
    first = session.hours[0]
    before = session.published.where(f"at = timestamp_seconds({(first - 1) * 3600})")
    changes = before.selectExpr("account", f"{first - 1}L AS hour", "total AS change")
    changes = changes.union(session.within(facts, "at").selectExpr("account", _hour("at"), "value"))
    changes = changes.union(session.within(matches, "at").selectExpr("account", _hour("at"), "-7L"))
    hours = facts.sparkSession.createDataFrame([(hour,) for hour in session.hours], "built long")
    totals = changes.join(hours, changes["hour"] <= hours["built"]).groupBy("built", "account")
    return totals.agg(F.sum("change").alias("total")).selectExpr(
        "timestamp_seconds(built * 3600) AS at", "account", "total"
    )


PIPELINE = Pipeline(
    raw=tuple(_raw(table) for table in RAW),
    targets=(fact, match, dim),
    subjects=(Subject("account", ("account",)),),
    start="2026-01-01-00:00",
)
START = PIPELINE.start_hour


def pipeline(random: Random) -> Pipeline:
    """The pipeline, with other chunks and entities now and then: the rows are the same."""
    chunk_hours, few_rows = random.choice((12, 12, 2, None)), random.choice((0, 0, 1_000_000))
    stateful = Stateful(chunk_hours=chunk_hours, entity=random.choice((None, "account")))
    sequential = Sequential(
        chunk_hours=chunk_hours, entity=random.choice((None, "account", "account")), few_rows=few_rows
    )
    return with_target(with_target(PIPELINE, replace(match, mode=stateful)), replace(dim, mode=sequential))


# Rows as tables


SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("account", pa.string()),
        ("value", pa.int64()),
        ("event_ts", pa.timestamp("us", tz="UTC")),
        ("landed_at", pa.timestamp("us", tz="UTC")),
        ("landing_date", pa.date32()),
        ("landing_hour", pa.int32()),
        ("batch_id", pa.string()),
    ]
)
LANDING = hour_start(START) + timedelta(days=3)


def arrow(rows: Iterable[Row]) -> pa.Table:
    """Rows as a raw table has them."""
    found = []
    for row in rows:
        landed = LANDING + timedelta(microseconds=row.landed)
        found.append(
            {
                "id": row.id,
                "account": row.account,
                "value": row.value,
                "event_ts": moment(row.hour, row.id or 0),
                "landed_at": landed,
                "landing_date": landed.date(),
                "landing_hour": landed.hour,
                "batch_id": str(row.landed // 1_000_000 % 3),
            }
        )
    return pa.Table.from_pylist(found, schema=SCHEMA)


def moment(hour: int, number: int) -> datetime:
    return hour_start(START + hour) + timedelta(minutes=number % 60)


def rows_in(table: str, found: pa.Table) -> list[Any]:
    """The rows of a table as tuples, sorted."""
    rows: list[Any] = []
    for each in found.to_pylist():
        hour = hour_of(each[TIME[table]]) - START
        if table in RAW:
            landed = (each["landed_at"] - LANDING) // timedelta(microseconds=1)
            rows.append(Row(hour, each["id"], each["account"], each["value"], landed))
        else:
            columns = [name for name in each if name != "at"]
            rows.append((hour, *(each[name] for name in columns)))
    return sorted(rows, key=repr) if table in RAW else sorted(rows)


# What must stand in a target


def replay(table: str, sources: Mapping[str, Sequence[Any]], last: int | None) -> list[Target]:
    """All rows of a target up to an hour, from all rows of its sources. last: of core.fact, it does not matter."""
    if table == FACT:
        return sorted((row.hour, row.id, row.account, row.value) for row in _delivered(sources["raw.a"]))
    if last is None:
        return []
    if table == MATCH:
        found: list[Target] = []
        for row in _delivered(sources["raw.b"]):
            known = [(hour, number) for hour, number, account, _ in sources[FACT] if account == row.account]
            earlier = [each for each in known if each[0] <= row.hour]
            if row.hour <= last:
                found.append((row.hour, row.id, row.account, max(earlier)[1] if earlier else -1, row.value))
        return sorted(found)
    return _totals(sources[FACT], sources[MATCH], last)


def _delivered(rows: Iterable[Row]) -> list[Row]:
    """The rows that count: of several deliveries of one row, the one that landed first."""
    won: dict[Any, Row] = {}
    for row in rows:
        key = row.hour, row.id
        if row.id is not None and row.hour >= 0 and (key not in won or row.landed < won[key].landed):
            won[key] = row
    return list(won.values())


def _totals(facts: Sequence[Target], matches: Sequence[Target], last: int) -> list[Target]:
    totals: dict[str, int] = {}
    found: list[Target] = []
    for hour in range(last + 1):
        for row in facts:
            if row[0] == hour:
                totals[row[2]] = totals.get(row[2], 0) + row[3]
        for row in matches:
            if row[0] == hour:
                totals[row[2]] = totals.get(row[2], 0) - 7
        found += [(hour, account, total) for account, total in totals.items()]
    return sorted(found)
