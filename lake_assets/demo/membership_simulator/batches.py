"""A landing: events, and rows that are bad on purpose, as rows of the raw tables. Pure; Arrow in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake_assets.base.hours import HOUR_MICROSECONDS, hour_start
from lake_assets.demo.membership_simulator.population import REASONS, Events, Happened, Ints
from lake_assets.incremental.declaration import RawTable
from lake_assets.membership.raw import PLANS, RAW

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNKNOWN_PLAN = "platinum"
BEFORE_START = timedelta(days=400)
AFTER_LANDING = timedelta(days=2)
BAD_PREFIX = "bad-"
ID_DIGITS = 9
KEY, TIME = "key", "time"
"""Stand for the key and the time column of a raw table."""

ARROW: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "decimal(9, 2)": pa.decimal128(9, 2),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
    "int": pa.int32(),
}

CompleteThrough = Mapping[str, int | None]
"""Raw table → last hour that has all rows that arrive on time, in hours since 1970-01-01 UTC; None before the first."""


@dataclass(frozen=True)
class Landing:
    """One batch: rows that land together.

    Attributes:
        landed_at: When they land; each row has it.
        batch_id: Id of the batch; each row has it.
        rows: Raw table → new rows with all its columns. It has all raw tables; some may have no rows.
        complete_through: What to declare complete after the rows are written.
        late: Raw table → number of good rows of hours that were declared complete before this landing.
    """

    landed_at: datetime
    batch_id: str
    rows: Mapping[str, pa.Table]
    complete_through: CompleteThrough
    late: Mapping[str, int]

    @property
    def row_count(self) -> int:
        """The number of rows of all tables."""
        return sum(table.num_rows for table in self.rows.values())


@dataclass(frozen=True)
class Flaw:
    """One way in which a row can be wrong: a column has a bad value.

    Attributes:
        reason: What is wrong.
        column: Name of the column; `KEY` and `TIME` stand for the key and the time column of a table.
        value: The bad value.
    """

    reason: str
    column: str
    value: Any

    def concerns(self, raw: RawTable) -> bool:
        """Return whether the rows of a table can have this flaw."""
        return self.column in (KEY, TIME) or self.column in raw.columns

    def column_of(self, raw: RawTable) -> str:
        """Return the column of a table that gets the bad value."""
        return {KEY: key_of(raw), TIME: raw.time_column}.get(self.column, self.column)


def flaws(landed_at: datetime, first_hour: int) -> tuple[Flaw, ...]:
    """Return every flaw that sends a row to quarantine.

    Args:
        landed_at: When the row lands.
        first_hour: First hour of the pipeline, in hours since 1970-01-01 UTC.
    """
    some_price = next(iter(PLANS.values()))
    return (
        Flaw("null key", KEY, None),
        Flaw("null time", TIME, None),
        Flaw("before the start", TIME, hour_start(first_hour) - BEFORE_START),
        Flaw("over an hour after it landed", TIME, landed_at + AFTER_LANDING),
        Flaw("negative price", "monthly_price", -some_price),
        Flaw("unknown plan", "plan", UNKNOWN_PLAN),
    )


def make_landing(
    landed_at: datetime,
    happened: Happened,
    *,
    complete_through: CompleteThrough,
    before: CompleteThrough,
) -> Landing:
    """Return events as one batch.

    Args:
        landed_at: When they land.
        happened: The events.
        complete_through: What the landing declares complete.
        before: What was declared complete before it; rows of these hours are late.
    """
    batch_id = f"sim-{landed_at:%Y%m%dT%H%M}"
    landed = {}
    late = {}
    for raw in RAW:
        events = happened[raw.table]
        landed[raw.table] = rows(raw, events, landed_at, batch_id)
        late[raw.table] = _count_late(events, before[raw.table])
    return Landing(landed_at, batch_id, rows=landed, complete_through=complete_through, late=late)


def rows(raw: RawTable, events: Events, landed_at: datetime, batch_id: str) -> pa.Table:
    """Return events as rows of a raw table, with all its columns, in order."""
    in_utc = landed_at.astimezone(UTC)
    landing_columns = {
        "landed_at": landed_at,
        "landing_date": in_utc.date(),
        "landing_hour": in_utc.hour,
        "batch_id": batch_id,
    }
    table = pa.table({name: _column(raw, name, events) for name in raw.columns})
    for name, value in landing_columns.items():
        kind = ARROW[raw.all_columns[name]]
        column = pa.repeat(pa.scalar(value, kind), len(events))
        table = table.append_column(name, column)
    return table


def spoil(raw: RawTable, good: pa.Table, chosen: list[tuple[int, Flaw]]) -> pa.Table:
    """Return bad copies of rows, each with its own id: a copy is not another delivery of the good row.

    Args:
        raw: The raw table.
        good: Its good rows.
        chosen: The place of each row to copy, and its flaw.
    """
    copies = [good.slice(0, 0)]
    for number, (place, flaw) in enumerate(chosen):
        own_id = f"{BAD_PREFIX}{good['batch_id'][place]}-{number}"
        row = _with_value(good.slice(place, 1), key_of(raw), own_id)
        copies.append(_with_value(row, flaw.column_of(raw), flaw.value))
    return pa.concat_tables(copies).combine_chunks()


def good_moments(raw: RawTable, landing: Landing) -> Ints:
    """Return the times of a landing's good rows, in microseconds since 1970-01-01 UTC."""
    landed = landing.rows[raw.table]
    key = landed[key_of(raw)]
    is_bad = pc.starts_with(key, BAD_PREFIX)
    is_good = pc.and_kleene(pc.is_valid(key), pc.invert(is_bad))
    moments = landed.filter(is_good)[raw.time_column].cast(pa.int64())
    return np.asarray(moments.to_numpy(), dtype=np.int64)


def key_of(raw: RawTable) -> str:
    """Return the key of a raw table: its first column."""
    return next(iter(raw.columns))


def microseconds(moment: datetime) -> int:
    """Return a moment in microseconds since 1970-01-01 UTC."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def _count_late(events: Events, complete_through: int | None) -> int:
    if complete_through is None:
        return 0
    is_late = events.moment < (complete_through + 1) * HOUR_MICROSECONDS
    return int(np.count_nonzero(is_late))


def _column(raw: RawTable, name: str, events: Events) -> pa.Array:
    kind = ARROW[raw.columns[name]]
    if name == key_of(raw):
        return _ids(name.removesuffix("_id"), events.number)
    if name == "account_id":
        return _ids("a", events.account)
    if name == raw.time_column:
        return pa.array(events.moment, pa.int64()).cast(kind)
    if name == "plan":
        return _take(list(PLANS), events.choice, kind)
    if name == "monthly_price":
        return _take(list(PLANS.values()), events.price, kind)
    assert name == "reason", name
    return _take(list(REASONS), events.choice, kind)


def _take(values: list[Any], indexes: Ints, kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind).take(pa.array(indexes))


def _ids(prefix: str, numbers: Ints) -> pa.Array:
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), ID_DIGITS, "0")
    return pc.binary_join_element_wise(prefix, digits, "-")


def _with_value(row: pa.Table, name: str, value: Any) -> pa.Table:
    place = row.schema.get_field_index(name)
    field = row.schema.field(place)
    return row.set_column(place, field, pa.array([value], field.type))
