"""The demo's verdict: every target, compared with what the oracle makes of all rows that were sent.

The oracle is plain Python and shares no code with the pipeline. Neither the raw tables nor the engine are asked what
the rows should be, so a row that was lost on any part of the way is missing here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from lake_assets.base.hours import hour_start
from lake_assets.demo import membership_oracle
from lake_assets.demo.membership_oracle import Row
from lake_assets.demo.membership_simulator import Landing
from lake_assets.incremental.declaration import LANDED


@dataclass(frozen=True)
class Verdict:
    """A target's rows, compared with those that should be there.

    Attributes:
        table: The target's table.
        rows: Number of rows of the target.
        missing: Number of rows that should be there and are not.
        extra: Number of rows that are there and should not be.
    """

    table: str
    rows: int
    missing: int
    extra: int

    @property
    def equal(self) -> bool:
        return self.missing == self.extra == 0


def expected_rows(sent: Sequence[Landing], *, start: int) -> dict[str, list[Row]]:
    """Return target → the rows that it should have after all batches.

    Args:
        sent: All batches, with their rows as they are now if a producer has repaired some.
        start: First hour of the pipeline.
    """
    rows: dict[str, list[Row]] = {table: [] for table in membership_oracle.KEY}
    through = {table: hour_start(start - 1) for table in membership_oracle.KEY}
    for landing in sent:
        for table, found in landing.rows.items():
            rows[table] += found.to_pylist()
        for table, hour in landing.complete_through.items():
            if hour is not None:
                through[table] = max(through[table], hour_start(hour))
    return membership_oracle.expected(rows, start=hour_start(start), through=through)


def compare(table: str, columns: Iterable[str], found: Iterable[Row], expected: Iterable[Row]) -> Verdict:
    """Compare a target's rows with the expected ones, without the time when a row landed: the zones decide it."""
    compared = [column for column in columns if column != LANDED]
    there = _counted(found, compared)
    wanted = _counted(expected, compared)
    return Verdict(
        table,
        rows=there.total(),
        missing=(wanted - there).total(),
        extra=(there - wanted).total(),
    )


def _counted(rows: Iterable[Row], columns: Sequence[str]) -> Counter[tuple[object, ...]]:
    return Counter(tuple(_plain(row[column]) for column in columns) for row in rows)


def _plain(value: object) -> object:
    """Return a value that is equal for equal moments, whatever time zone they are given in."""
    return value.timestamp() if isinstance(value, datetime) else value


def repaired(landing: Landing, right: Mapping[str, str]) -> Landing:
    """Return a batch as it is once its producer has put the right accounts into some signups.

    Args:
        landing: The batch as it landed.
        right: Signup → its account.
    """
    table = "raw.signups"
    signups = landing.rows[table]
    rows = signups.to_pylist()
    for row in rows:
        row["account_id"] = right.get(row["signup_id"], row["account_id"])
    mended = type(signups).from_pylist(rows, schema=signups.schema)
    return Landing(
        landing.landed_at,
        landing.batch_id,
        {**landing.rows, table: mended},
        landing.complete_through,
        landing.late,
    )
