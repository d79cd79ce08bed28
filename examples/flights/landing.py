"""Landing the observations: at regular times, all that has become known since, through pyiceberg alone.

For each raw table one Iceberg commit a batch, of its rows and of complete-through. So a batch is there or it is not,
and a replay that was interrupted goes on after the last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from examples.flights.raw import ARRIVALS, DEPARTURES
from lake_assets.base.hours import hour_key, hour_start
from lake_assets.incremental.metadata.tables import COMPLETE_THROUGH, complete_through, load

if TYPE_CHECKING:
    import pandas as pd
    from pyiceberg.catalog import Catalog

    from examples.flights.data import Observations


@dataclass(frozen=True)
class Batch:
    """What became known in the hours [first, end), landed at the end. Hours are numbers of `incremental.hours`."""

    first: int
    end: int

    @property
    def landed_at(self) -> datetime:
        return hour_start(self.end)

    @property
    def batch_id(self) -> str:
        return f"{hour_start(self.first):%Y%m%d%H}"


def batches(start: int, end: int, *, hours: int = 24) -> Iterator[Batch]:
    """The batches of `hours` hours from `start` on; the last one ends with `end`."""
    for first in range(start, end, hours):
        yield Batch(first, min(first + hours, end))


def land(catalog: Catalog, observations: Observations, batch: Batch) -> dict[str, int]:
    """Land a batch, or what is missing of it: table → rows landed now."""
    import pandas as pd

    known = observations.known(pd.Timestamp(hour_start(batch.first)), pd.Timestamp(batch.landed_at))
    tables = {DEPARTURES.table: known.departures, ARRIVALS.table: known.arrivals}
    return {name: _land(catalog, name, rows, batch) for name, rows in tables.items()}


def landed_until(catalog: Catalog) -> int | None:
    """The hour at which the last whole batch ended; None before the first."""
    through = [complete_through(load(catalog, raw.table), raw.table) for raw in (DEPARTURES, ARRIVALS)]
    known = [hour + 1 for hour in through if hour is not None]
    return min(known) if len(known) == len(through) else None


def _land(catalog: Catalog, name: str, rows: pd.DataFrame, batch: Batch) -> int:
    import pyarrow as pa

    table = load(catalog, name)
    through = complete_through(table, name)
    if through is not None and through >= batch.end - 1:
        return 0
    at = batch.landed_at
    landed = rows.assign(landed_at=at, landing_date=at.date(), landing_hour=at.hour, batch_id=batch.batch_id)
    with table.transaction() as transaction:
        if len(landed):
            transaction.append(pa.Table.from_pandas(landed, schema=table.schema().as_arrow(), preserve_index=False))
        transaction.set_properties({COMPLETE_THROUGH: hour_key(batch.end - 1)})
    return len(landed)
