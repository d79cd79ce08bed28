"""`flights.departure_fact`: one row for each flight that departed or was cancelled."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from examples.flights.raw import PLACED
from lake_assets import SessionContext, Source, Stateless, audits, incremental_asset


@incremental_asset(
    namespace="flights",
    mode=Stateless(),
    sources=[Source("flights_raw.departures", time_column="scheduled_at", rules=PLACED)],
    key="flight_id",
    time_column="scheduled_at",
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
        "is_cancelled": "boolean",
        "landed_at": "timestamptz",
    },
    audits=[
        audits.source_target_counts(),
        audits.no_missing_events(),
        audits.not_null("carrier", "origin", "dest"),
        audits.unique_key(),
        audits.sql(
            "left_two_hours_early",
            "select flight_id from {staged} where departed_at < scheduled_at - interval 2 hours",
            blocking=False,
        ),
    ],
    lineage={"is_cancelled": ["flights_raw.departures.departed_at"]},
)
def departure_fact(session: SessionContext, departures: DataFrame) -> DataFrame:
    """Return every flight that departed or was cancelled once, in its scheduled hour.

    landed_at is when the row reached the lake. `flights.flight_fact` has the arrival of the plane.
    """
    return departures.withColumn("is_cancelled", F.col("departed_at").isNull()).select(*departure_fact.columns)
