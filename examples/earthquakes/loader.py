"""The reports of `hvsampledata`, each with the time it becomes known, and the tables as pandas computes them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

TABLES = Path(__file__).parent / "tables"
RAW = "quakes_raw.reports"
START = "2024-04-01-00:00"
HOURS_LATE = 24
"""A report comes at once if the magnitude is 7 or more, and this many hours later for each unit below it."""


def reports() -> pd.DataFrame:
    """Return the columns of the raw table, and known_at (UTC), which the package does not have."""
    import hvsampledata

    found = hvsampledata.earthquakes("pandas")
    quaked_at = found["time"].dt.tz_localize("UTC")
    late = pd.to_timedelta((7 - found["mag"]).clip(lower=0) * HOURS_LATE, unit="h").dt.round("s")
    return pd.DataFrame(
        {
            "place": found["place"].astype(str),
            "quaked_at": quaked_at,
            "depth_km": found["depth"],
            "magnitude": found["mag"],
            "known_at": quaked_at + late,
        }
    )


def expected(rows: pd.DataFrame, end: pd.Timestamp) -> dict[str, pd.DataFrame]:
    """Return target → its rows, for all landed rows and the days that are complete at `end`."""
    bounds = [float("-inf"), 70, 300, float("inf")]
    classes = pd.cut(rows["depth_km"], bounds, right=False, labels=["shallow", "intermediate", "deep"])
    facts = rows.assign(depth_class=classes.astype(str))
    complete = facts[facts["quaked_at"] < end]
    day = complete["quaked_at"].dt.floor("D").rename("day")
    grouped = complete.groupby([day, "depth_class"], as_index=False)
    daily = grouped.agg(earthquakes=("place", "size"), strongest=("magnitude", "max"))
    return {"quakes.earthquake_fact": facts, "quakes.earthquake_daily": daily}
