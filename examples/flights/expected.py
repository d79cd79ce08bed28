"""The three tables as pandas computes them from all landed rows at once.

This module shares no code with the tables. It counts the dimension hour by hour from sorted times, instead of adding up
changes since the hour before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from examples import comparison

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from examples.flights.data import Observations

HOUR = pd.Timedelta(hours=1)


def compare(catalog: Catalog, observations: Observations, end: pd.Timestamp) -> list[comparison.Comparison]:
    """Compare every target with pandas.

    Args:
        catalog: The catalog of the lake.
        observations: All rows that were landed.
        end: End of the last complete hour.
    """
    return comparison.compare(catalog, expected(observations, end))


def expected(observations: Observations, end: pd.Timestamp) -> dict[str, pd.DataFrame]:
    """Return table → its rows, for all observations and hours that end by `end`."""
    # A plane may depart early, so the first table can have flights that are scheduled later.
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
    arrivals = observations.arrivals.drop(columns=["scheduled_at", "known_at"])
    rows = observations.departures.merge(arrivals, on="flight_id", how="left", validate="one_to_one")
    late = (rows["departed_at"] - rows["scheduled_at"]).dt.total_seconds() / 60
    status = pd.Series("departed", index=rows.index)
    status = status.mask(rows["arrived_at"].notna(), "landed").mask(rows["departed_at"].isna(), "cancelled")
    return rows.assign(departure_delay_minutes=late.astype("Int32"), status=status)


def _airport_hours(flights: pd.DataFrame, end: pd.Timestamp) -> pd.DataFrame:
    found = [_hours_of(str(origin), rows, end) for origin, rows in flights.groupby("origin")]
    return pd.concat(found, ignore_index=True)


def _hours_of(origin: str, flights: pd.DataFrame, end: pd.Timestamp) -> pd.DataFrame:
    """Return every hour of one airport, each counted from all its flights."""
    scheduled = flights["scheduled_at"].dt.floor("h")
    hours = pd.Series(pd.date_range(scheduled.min(), end - HOUR, freq="h", unit="us"))
    hour_end = hours + HOUR
    midnight = hours.dt.tz_convert("America/New_York").dt.normalize().dt.tz_convert("UTC")
    is_cancelled = flights["departed_at"].isna()
    cancelled = scheduled[is_cancelled].sort_values()
    awaited = scheduled[~is_cancelled].sort_values()
    departure_hour = flights["departed_at"].dt.floor("h").combine(scheduled, max)
    departed = flights[~is_cancelled].assign(hour=departure_hour).sort_values("hour")
    departed_so_far = _count_before(departed["hour"], hour_end)
    departed_before_today = _count_before(departed["hour"], midnight)
    departed_today = departed_so_far - departed_before_today
    delays = departed["departure_delay_minutes"].astype("int64").cumsum()
    sums = pd.Series([0, *delays.to_numpy()])
    minutes = sums.take(departed_so_far).to_numpy() - sums.take(departed_before_today).to_numpy()
    return pd.DataFrame(
        {
            "state_hour": hours,
            "origin": origin,
            "awaited": _count_before(awaited, hour_end) - departed_so_far,
            "departed_today": departed_today,
            "cancelled_today": _count_before(cancelled, hour_end) - _count_before(cancelled, midnight),
            "delay_minutes_today": minutes,
            "mean_delay_minutes_today": pd.Series(minutes) / pd.Series(departed_today).where(departed_today > 0),
        }
    )


def _count_before(ascending: pd.Series, bounds: pd.Series):  # type: ignore[no-untyped-def]
    """Return the number of moments before each bound."""
    return ascending.to_numpy().searchsorted(bounds.to_numpy(), side="left")
