"""What a landing is: events, and rows that are bad on purpose, as rows of the raw tables. Pure; arrow in memory."""

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

UNKNOWN_PLAN = "platinum"
BAD = "bad-"
PRICE = "decimal(9, 2)"
ARROW: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    PRICE: pa.decimal128(9, 2),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
    "int": pa.int32(),
}

CompleteThrough = Mapping[str, int | None]
"""Of each raw table, the last hour for which it has all data it will get on time; None as long as there is none."""


@dataclass(frozen=True)
class Landing:
    """One batch: rows that land together, at `landed_at`, which each row carries.

    rows: the new rows of each raw table, with all its columns; all tables are there, some without rows.
    complete_through: of each table, to be set after the rows; an hour number, None as long as there is none.
    late: of each table, how many good rows are of hours that were declared complete before this landing.
    """

    landed_at: datetime
    batch_id: str
    rows: Mapping[str, pa.Table]
    complete_through: CompleteThrough
    late: Mapping[str, int]

    @property
    def row_count(self) -> int:
        return sum(table.num_rows for table in self.rows.values())


@dataclass(frozen=True)
class Flaw:
    """What can be wrong with a row: `column` (None: the key; "time": the time column) is `value`."""

    reason: str
    column: str | None
    value: Any

    def concerns(self, raw: RawTable) -> bool:
        return self.column is None or self.column == "time" or self.column in raw.columns


def flaws(landed_at: datetime, first_hour: int) -> tuple[Flaw, ...]:
    """Every flaw that a row must go to quarantine for."""
    return (
        Flaw("null key", None, None),
        Flaw("null time", "time", None),
        Flaw("before the start", "time", hour_start(first_hour) - timedelta(days=400)),
        Flaw("over an hour after it landed", "time", landed_at + timedelta(days=2)),
        Flaw("negative price", "monthly_price", -next(iter(PLANS.values()))),
        Flaw("unknown plan", "plan", UNKNOWN_PLAN),
    )


def make_landing(
    landed_at: datetime, happened: Happened, *, complete_through: CompleteThrough, before: CompleteThrough
) -> Landing:
    """These events as one batch. before: complete-through as declared until now; what is at or below it is late."""
    batch_id = f"sim-{landed_at:%Y%m%dT%H%M}"
    return Landing(
        landed_at=landed_at,
        batch_id=batch_id,
        rows={raw.table: rows(raw, happened[raw.table], landed_at, batch_id) for raw in RAW},
        complete_through=complete_through,
        late={raw.table: _late(happened[raw.table], before[raw.table]) for raw in RAW},
    )


def rows(raw: RawTable, events: Events, landed_at: datetime, batch_id: str) -> pa.Table:
    """Events as rows of a raw table: all its columns, in order."""
    landing = {
        "landed_at": landed_at,
        "landing_date": landed_at.astimezone(UTC).date(),
        "landing_hour": landed_at.astimezone(UTC).hour,
        "batch_id": batch_id,
    }
    table = pa.table({name: _column(raw, name, events) for name in raw.columns})
    for name, value in landing.items():
        table = table.append_column(name, pa.repeat(pa.scalar(value, ARROW[raw.all_columns[name]]), len(events)))
    return table


def spoil(raw: RawTable, good: pa.Table, found: list[tuple[int, Flaw]]) -> pa.Table:
    """A copy of the row at each place with this flaw, under an id of its own: the good row stays another row."""
    key = next(iter(raw.columns))
    parts = [good.slice(0, 0)]
    for i, (place, flaw) in enumerate(found):
        row = _replaced(good.slice(place, 1), key, f"{BAD}{good['batch_id'][place]}-{i}")
        column = {None: key, "time": raw.time_column}.get(flaw.column, flaw.column)
        parts.append(_replaced(row, str(column), flaw.value))
    return pa.concat_tables(parts).combine_chunks()


def good_moments(raw: RawTable, landing: Landing) -> Ints:
    """The times of a landing's rows, as microseconds since 1970, but for those made bad on purpose."""
    rows = landing.rows[raw.table]
    key = rows[next(iter(raw.columns))]
    good = pc.and_kleene(pc.is_valid(key), pc.invert(pc.starts_with(key, BAD)))
    return np.asarray(rows.filter(good)[raw.time_column].cast(pa.int64()).to_numpy(), dtype=np.int64)


def microseconds(moment: datetime) -> int:
    """Microseconds since 1970."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _late(events: Events, before: int | None) -> int:
    if before is None:
        return 0
    return int(np.count_nonzero(events.moment < (before + 1) * HOUR_MICROSECONDS))


def _column(raw: RawTable, name: str, events: Events) -> pa.Array:
    """A column of the raw table; the first is its key."""
    kind = ARROW[raw.columns[name]]
    if name == next(iter(raw.columns)):
        return _ids(name.removesuffix("_id"), events.number)
    if name == "account_id":
        return _ids("a", events.account)
    if name == raw.time_column:
        return pa.array(events.moment, pa.int64()).cast(kind)
    values, index = {
        "plan": (tuple(PLANS), events.choice),
        "monthly_price": (tuple(PLANS.values()), events.price),
        "reason": (REASONS, events.choice),
    }[name]
    return pa.array(values, kind).take(pa.array(index))


def _ids(prefix: str, numbers: Ints) -> pa.Array:
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 9, "0")
    return pc.binary_join_element_wise(prefix, digits, "-")


def _replaced(row: pa.Table, name: str, value: Any) -> pa.Table:
    field = row.schema.field(name)
    return row.set_column(row.schema.get_field_index(name), field, pa.array([value], field.type))
