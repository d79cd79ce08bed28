"""Flights that left New York in 2013: when each was due, when it left, when it landed, or that it never flew.

A pipeline onboarded as `docs/onboarding.md` tells, with the public declaration alone. One table a file; `PIPELINE` is
what the engine, Dagster and `lake` are given. The other files bring the data and check the outcome.
"""

from examples.flights.airport_hour_dim import airport_hour_dim
from examples.flights.departure_fact import departure_fact
from examples.flights.flight_fact import flight_fact
from examples.flights.raw import RAW
from lake_assets.incremental.declaration import Pipeline

PIPELINE = Pipeline(raw=RAW, targets=(departure_fact, flight_fact, airport_hour_dim), start="2013-01-01-00:00")

__all__ = ["PIPELINE"]
