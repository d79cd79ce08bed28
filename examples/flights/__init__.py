"""Flights from New York in 2013: when each was scheduled, departed and arrived, or that it was cancelled.

The pipeline is added as `docs/onboarding.md` describes, with the public declaration alone. Each table has its own file;
`PIPELINE` is what the engine, Dagster and `lake` use. The other files provide the data and check the result.
"""

from examples.flights.airport_hour_dim import airport_hour_dim
from examples.flights.departure_fact import departure_fact
from examples.flights.flight_fact import flight_fact
from examples.flights.raw import RAW
from lake_assets import Pipeline

PIPELINE = Pipeline(raw=RAW, targets=(departure_fact, flight_fact, airport_hour_dim), start="2013-01-01-00:00")

__all__ = ["PIPELINE"]
