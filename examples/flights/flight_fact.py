"""`flights.flight_fact`: one row for each flight, with its status so far.

A flight has two raw rows, hours apart, and its row is rebuilt when the second one arrives: the table is stateful.
No hour depends on another, so only changed hours are built.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets import SessionContext, Source, Stateful, audits, incremental_asset

MINUTE_SECONDS = 60
CANCELLED, DEPARTED, LANDED = STATUSES = ("cancelled", "departed", "landed")


@incremental_asset(
    namespace="flights",
    mode=Stateful(load="changed"),
    sources=[
        Source("flights.departure_fact", time_column="scheduled_at", landed_column="landed_at"),
        Source("flights_raw.arrivals", time_column="scheduled_at", key="flight_id"),
    ],
    key="flight_id",
    time_column="scheduled_at",
    columns={
        "flight_id": "string",
        "carrier": "string",
        "origin": "string",
        "dest": "string",
        "scheduled_at": "timestamptz",
        "departed_at": "timestamptz",
        "arrived_at": "timestamptz",
        "departure_delay_minutes": "int",
        "arrival_delay_minutes": "int",
        "air_minutes": "int",
        "status": "string",
    },
    audits=[
        audits.source_target_counts(),
        audits.not_null("carrier", "origin", "dest", "status"),
        audits.unique_key(),
        audits.accepted_values("status", STATUSES),
        audits.sql("landed_before_it_left", "select flight_id from {staged} where arrived_at <= departed_at"),
        audits.sql(
            "landed_without_leaving", "select flight_id from {staged} where status = 'landed' and departed_at is null"
        ),
    ],
    lineage={
        "departure_delay_minutes": ["flights.departure_fact.departed_at", "flights.departure_fact.scheduled_at"],
        "status": ["flights.departure_fact.is_cancelled", "flights_raw.arrivals.arrived_at"],
    },
)
def flight_fact(session: SessionContext, departures: DataFrame, arrivals: DataFrame) -> DataFrame:
    """Return every flight once, in its scheduled hour.

    Returns:
        One row for each flight. status: `cancelled`; or `departed`, and `landed` once its arrival is known. Delays are
        minutes, negative if early. The arrival delay and the minutes in the air are null for a diverted flight.
    """
    departed = session.within(departures, "scheduled_at")
    arrival_columns = ("flight_id", "scheduled_at", "arrived_at", "arrival_delay_minutes", "air_minutes")
    landed = session.within(arrivals, "scheduled_at").select(*arrival_columns)
    rows = departed.join(landed, ["flight_id", "scheduled_at"], "left")
    rows = rows.withColumns({"departure_delay_minutes": _departure_delay(), "status": _status()})
    return rows.select(*flight_fact.columns)


def _departure_delay() -> Column:
    seconds = F.unix_seconds(F.col("departed_at")) - F.unix_seconds(F.col("scheduled_at"))
    return (seconds / MINUTE_SECONDS).cast("int")


def _status() -> Column:
    landed = F.when(F.col("arrived_at").isNotNull(), LANDED)
    return F.when(F.col("is_cancelled"), CANCELLED).otherwise(F.coalesce(landed, F.lit(DEPARTED)))
