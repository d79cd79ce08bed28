"""The raw flight tables: a row for each plane that left or never will, and a row for each that landed.

Both are counted by the hour in which the flight was due to leave: that is what their targets are partitioned by, and
what a row is late for.
"""

from lake_assets.incremental.declaration import RawTable, Rule

DEPARTURES = RawTable(
    "flights_raw.departures",
    columns={
        "flight_id": "string",
        "carrier": "string",
        "flight_number": "int",
        "tail_number": "string",
        "origin": "string",
        "dest": "string",
        "distance_miles": "int",
        "scheduled_at": "timestamptz",
        "departed_at": "timestamptz",
    },
    time_column="scheduled_at",
    description="A plane left the gate; or, without departed_at, the flight was cancelled.",
)

ARRIVALS = RawTable(
    "flights_raw.arrivals",
    columns={
        "flight_id": "string",
        "scheduled_at": "timestamptz",
        "arrived_at": "timestamptz",
        "arrival_delay_minutes": "int",
        "air_minutes": "int",
    },
    time_column="scheduled_at",
    description="A plane reached its destination. Of a diverted flight, delay and time in the air are not known.",
)

RAW = (DEPARTURES, ARRIVALS)

PLACED = (Rule("no origin or destination", "origin is null or dest is null"),)
"""What sets a departure aside."""
