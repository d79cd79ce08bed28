"""The raw flight tables: a row for each departure or cancellation, and a row for each arrival.

The event time of both is the scheduled departure: their targets are partitioned by it, and it decides which rows are
late.
"""

from lake_assets import RawTable, Rule

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
    description="A plane left the gate, or the flight was cancelled: then departed_at is null.",
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
    description="A plane reached its destination. Delay and time in the air of a diverted flight are not known.",
)

RAW = (DEPARTURES, ARRIVALS)

PLACED = (Rule("no origin or destination", "origin is null or dest is null"),)
"""Rules that quarantine a departure."""
