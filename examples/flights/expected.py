"""The three tables as pandas computes them, from all that was landed, at once; and how the lake's differ from it.

Shares no code with the tables. The dimension is counted hour by hour from sorted times, not summed up from the hour
before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from lake_assets.incremental.metadata.tables import load

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from examples.flights.data import Observations

HOUR = pd.Timedelta(hours=1)


@dataclass(frozen=True)
class Comparison:
    """One table against pandas. rows, expected: how many the lake has and should have.

    missing, unexpected: rows that only pandas, or only the lake, has. A row that is there twice shows in the numbers.
    """

    table: str
    rows: int
    expected: int
    missing: pd.DataFrame
    unexpected: pd.DataFrame

    @property
    def equal(self) -> bool:
        return self.rows == self.expected and self.missing.empty and self.unexpected.empty


def compare(catalog: Catalog, observations: Observations, end: pd.Timestamp) -> list[Comparison]:
    """Every target against pandas. observations: all that was landed. end: of the last hour that is complete."""
    return [_compared(catalog, table, rows) for table, rows in expected(observations, end).items()]


def expected(observations: Observations, end: pd.Timestamp) -> dict[str, pd.DataFrame]:
    """Table → its rows. A plane may leave early: a flight due at `end` or later is in no table but the first."""
    flights = _flights(observations)
    flights = flights[flights["scheduled_at"] < end]
    return {
        "flights.departure_fact": _departures(observations),
        "flights.flight_fact": flights,
        "flights.airport_hour_dim": _airport_hours(flights, end),
    }


def _departures(observations: Observations) -> pd.DataFrame:
    rows = observations.departures
    return rows.assign(is_cancelled=rows["departed_at"].isna())


def _flights(observations: Observations) -> pd.DataFrame:
    left, landed = observations.departures, observations.arrivals.drop(columns=["scheduled_at", "known_at"])
    rows = left.merge(landed, on="flight_id", how="left", validate="one_to_one")
    late = (rows["departed_at"] - rows["scheduled_at"]).dt.total_seconds() / 60
    status = pd.Series("departed", index=rows.index)
    status = status.mask(rows["arrived_at"].notna(), "landed").mask(rows["departed_at"].isna(), "cancelled")
    return rows.assign(departure_delay_minutes=late.astype("Int32"), status=status)


def _airport_hours(flights: pd.DataFrame, end: pd.Timestamp) -> pd.DataFrame:
    found = [_hours_of(str(origin), rows, end) for origin, rows in flights.groupby("origin")]
    return pd.concat(found, ignore_index=True)


def _hours_of(origin: str, flights: pd.DataFrame, end: pd.Timestamp) -> pd.DataFrame:
    """Every hour of one airport, each counted from all its flights."""
    due = flights["scheduled_at"].dt.floor("h")
    hours = pd.Series(pd.date_range(due.min(), end - HOUR, freq="h", unit="us"))
    midnight = hours.dt.tz_convert("America/New_York").dt.normalize().dt.tz_convert("UTC")
    cancelled = flights["departed_at"].isna()
    gone = flights[~cancelled].assign(hour=flights["departed_at"].dt.floor("h").combine(due, max)).sort_values("hour")
    late = gone["departure_delay_minutes"].astype("int64").cumsum().to_numpy()
    left, left_before = (_number(gone["hour"], bound) for bound in (hours + HOUR, midnight))
    calls = due[cancelled].sort_values()
    sums = pd.Series([0, *late])
    minutes = sums.take(left).to_numpy() - sums.take(left_before).to_numpy()
    departed = left - left_before
    return pd.DataFrame(
        {
            "state_hour": hours,
            "origin": origin,
            "awaited": _number(due[~cancelled].sort_values(), hours + HOUR) - left,
            "departed_today": departed,
            "cancelled_today": _number(calls, hours + HOUR) - _number(calls, midnight),
            "delay_minutes_today": minutes,
            "mean_delay_minutes_today": pd.Series(minutes) / pd.Series(departed).where(departed > 0),
        }
    )


def _number(ascending: pd.Series, bounds: pd.Series):  # type: ignore[no-untyped-def]
    """How many of the moments lie before each bound."""
    return ascending.to_numpy().searchsorted(bounds.to_numpy(), side="left")


def _compared(catalog: Catalog, name: str, rows: pd.DataFrame) -> Comparison:
    """As the table's own types on both sides, so that only values can differ."""
    import pyarrow as pa

    schema = pa.schema([f for f in load(catalog, name).schema().as_arrow() if f.name != "landed_at"])
    found = load(catalog, name).scan(selected_fields=tuple(schema.names)).to_arrow().select(schema.names).cast(schema)
    wanted = pa.Table.from_pandas(rows, schema=schema, preserve_index=False)
    both = wanted.to_pandas().merge(found.to_pandas(), how="outer", indicator=True)
    parts = {side: both[both["_merge"] == side].drop(columns="_merge") for side in ("left_only", "right_only")}
    return Comparison(name, found.num_rows, wanted.num_rows, parts["left_only"], parts["right_only"])
