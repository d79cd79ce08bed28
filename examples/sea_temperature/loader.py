"""The readings of `bokeh_sampledata`, each with the time it becomes known, and the tables as pandas computes them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

TABLES = Path(__file__).parent / "tables"
RAW = "sea_raw.readings"
START = "2016-02-15-00:00"
BUOY = "B01"


def readings() -> pd.DataFrame:
    """Return the columns of the raw table, and known_at (UTC): every fifth packet of six hours is three days late.

    One time, at the end, is there with two values. The buoy and the time identify a reading: the first one is taken.
    """
    from bokeh_sampledata.sea_surface_temperature import sea_surface_temperature

    data = sea_surface_temperature[~sea_surface_temperature.index.duplicated()]
    read_at = pd.Series(data.index).dt.tz_convert("UTC")
    packet = (read_at - read_at.iloc[0]) // pd.Timedelta(hours=6)
    days_late = (packet % 5 == 4) * 3
    return pd.DataFrame(
        {
            "buoy": BUOY,
            "read_at": read_at,
            "celsius": data["temperature"].to_numpy(),
            "known_at": read_at + pd.to_timedelta(days_late, unit="D"),
        }
    )


def expected(rows: pd.DataFrame, end: pd.Timestamp) -> dict[str, pd.DataFrame]:
    """Return target → its rows, for all landed rows and the days that are complete at `end`."""
    day = rows["read_at"].dt.floor("D")
    by_day = rows[rows["read_at"] < end].groupby(day)["celsius"].agg(["size", "max"])
    days = pd.date_range(by_day.index.min(), end, freq="D", inclusive="left", unit="us")
    by_day = by_day.reindex(days)
    dimension = pd.DataFrame(
        {
            "day": days,
            "buoy": BUOY,
            "readings": by_day["size"].fillna(0).to_numpy(),
            "warmest": by_day["max"].to_numpy(),
            "warmest_so_far": by_day["max"].cummax().ffill().to_numpy(),
        }
    )
    return {"sea.reading_fact": rows, "sea.sea_day_dim": dimension}
