"""Land the observations at regular times, through pyiceberg alone: each batch has all rows that became known since.

A batch is one Iceberg commit for each raw table, with the rows and complete-through. So a batch is landed as a whole or
not at all, and an interrupted replay continues after the last batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from examples.flights.raw import ARRIVALS, DEPARTURES
from lake_assets.base.hours import hour_key, hour_start
from lake_assets.incremental.engine.iceberg import COMPLETE_THROUGH, complete_through, load

if TYPE_CHECKING:
    import pandas as pd
    from pyiceberg.catalog import Catalog

    from examples.flights.data import Observations


@dataclass(frozen=True)
class Batch:
    """The rows that became known in the hours [first, end), in hours since 1970-01-01 UTC. They land at the end."""

    first: int
    end: int

    @property
    def landed_at(self) -> datetime:
        """When the batch lands."""
        return hour_start(self.end)

    @property
    def batch_id(self) -> str:
        """The id of the batch: its first hour."""
        return f"{hour_start(self.first):%Y%m%d%H}"


def batches(start: int, end: int, *, hours: int = 24) -> Iterator[Batch]:
    """Yield the batches of `hours` hours from `start` on; the last one ends with `end`."""
    for first in range(start, end, hours):
        yield Batch(first, min(first + hours, end))


def land(catalog: Catalog, observations: Observations, batch: Batch) -> dict[str, int]:
    """Land a batch, or the part of it that is missing; return table → number of rows that landed now."""
    import pandas as pd

    known = observations.known(pd.Timestamp(hour_start(batch.first)), pd.Timestamp(batch.landed_at))
    tables = {DEPARTURES.table: known.departures, ARRIVALS.table: known.arrivals}
    return {name: _land(catalog, name, rows, batch) for name, rows in tables.items()}


def landed_until(catalog: Catalog) -> int | None:
    """Return the end of the last batch that landed in both tables; None before the first."""
    ends = []
    for raw in (DEPARTURES, ARRIVALS):
        through = complete_through(load(catalog, raw.table), raw.table)
        if through is None:
            return None
        ends.append(through + 1)
    return min(ends)


def _land(catalog: Catalog, name: str, rows: pd.DataFrame, batch: Batch) -> int:
    import pyarrow as pa

    table = load(catalog, name)
    through = complete_through(table, name)
    if through is not None and through >= batch.end - 1:
        return 0
    at = batch.landed_at
    landed = rows.assign(
        landed_at=at,
        landing_date=at.date(),
        landing_hour=at.hour,
        batch_id=batch.batch_id,
    )
    with table.transaction() as transaction:
        if len(landed):
            schema = table.schema().as_arrow()
            transaction.append(pa.Table.from_pandas(landed, schema=schema, preserve_index=False))
        transaction.set_properties({COMPLETE_THROUGH: hour_key(batch.end - 1)})
    return len(landed)
