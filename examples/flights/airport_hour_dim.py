"""`flights.airport_hour_dim`: the state of each airport of New York at the end of every hour.

The flights awaited in an hour are those awaited in the hour before, plus those scheduled, minus those that departed, so
the table is sequential. A session starts from the rows before its first hour and sums up all its hours in one job.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from examples.flights.flight_fact import CANCELLED
from lake_assets import Sequential, SessionContext, Source, audits, incremental_asset

ZONE = "America/New_York"
"""The time zone of the three airports: their day starts at midnight there."""
HOUR_SECONDS = 3600

OF_THE_DAY = ("departed_today", "cancelled_today", "delay_minutes_today")
SUMMED = ("awaited", *OF_THE_DAY)


@incremental_asset(
    namespace="flights",
    # No chunks: a flight counts in the hour of its departure, which is not always the hour of its row.
    mode=Sequential(chunk_hours=None),
    sources=[Source("flights.flight_fact", time_column="scheduled_at")],
    key="origin",
    time_column="state_hour",
    columns={
        "state_hour": "timestamptz",
        "origin": "string",
        "awaited": "long",
        "departed_today": "long",
        "cancelled_today": "long",
        "delay_minutes_today": "long",
        "mean_delay_minutes_today": "double",
    },
    audits=[
        audits.unique_key(),
        audits.not_null("origin", *SUMMED),
        audits.sql(
            "a_count_below_zero",
            "select origin from {staged} where awaited < 0 or departed_today < 0 or cancelled_today < 0",
        ),
    ],
    lineage={
        "state_hour": ["flights.flight_fact.scheduled_at", "flights.flight_fact.departed_at"],
        "awaited": ["flights.flight_fact.scheduled_at", "flights.flight_fact.departed_at"],
        "departed_today": ["flights.flight_fact.departed_at"],
        "cancelled_today": ["flights.flight_fact.status"],
        "delay_minutes_today": ["flights.flight_fact.departure_delay_minutes"],
        "mean_delay_minutes_today": ["flights.flight_fact.departure_delay_minutes"],
    },
)
def airport_hour_dim(session: SessionContext, flights: DataFrame) -> DataFrame:
    """Return the state of each airport at the end of each hour, from its first flight on.

    Returns:
        One row for each hour and airport. awaited: scheduled flights that were not cancelled and have not departed. A
        flight counts as departed in the hour of its departure, but not before its scheduled hour. The other columns
        count from midnight in New York: departed flights, cancelled flights, and the delay of departed flights in
        minutes (negative if early), as a sum and as a mean (null if none has departed).
    """
    changes = _state_before(session).unionByName(_changes(session, flights))
    sums = [F.sum(name).alias(name) for name in SUMMED]
    rows = _every_hour(session, changes.groupBy("origin", "hour").agg(*sums))
    by_hour = Window.partitionBy("origin").orderBy("hour")
    by_hour_of_day = Window.partitionBy("origin", _day()).orderBy("hour")
    totals = {name: F.sum(name).over(by_hour_of_day) for name in OF_THE_DAY}
    totals["awaited"] = F.sum("awaited").over(by_hour)
    own = rows.withColumns(totals).where(F.col("hour") >= session.hours[0])
    mean = F.when(F.col("departed_today") > 0, F.col("delay_minutes_today") / F.col("departed_today"))
    state_hour = F.timestamp_seconds(F.col("hour") * HOUR_SECONDS)
    found = own.withColumns({"mean_delay_minutes_today": mean, "state_hour": state_hour})
    return found.select(*airport_hour_dim.columns)


def _state_before(session: SessionContext) -> DataFrame:
    """Return origin, hour, `SUMMED`: the state before the session's first hour, as changes of the hour before it."""
    assert session.published is not None, "only an append has no published rows"
    hour = session.hours[0] - 1
    rows = session.published.where(F.col("state_hour") == _start(hour))
    return rows.select("origin", F.lit(hour).cast("long").alias("hour"), *SUMMED)


def _changes(session: SessionContext, flights: DataFrame) -> DataFrame:
    """Return origin, hour, `SUMMED`: the change by each flight when it is scheduled, and when it departs."""
    start = _start(session.hours[0])
    # Iceberg's metadata has the bounds of both columns, so files with earlier flights only are not read.
    flights = flights.where((F.col("scheduled_at") >= start) | (F.col("departed_at") >= start))
    is_cancelled = F.col("status") == CANCELLED
    zero = F.lit(0).cast("long")
    scheduled_hour = _hour("scheduled_at")
    scheduled = flights.select(
        "origin",
        scheduled_hour.alias("hour"),
        (~is_cancelled).cast("long").alias("awaited"),
        zero.alias("departed_today"),
        is_cancelled.cast("long").alias("cancelled_today"),
        zero.alias("delay_minutes_today"),
    )
    departed = flights.where(~is_cancelled).select(
        "origin",
        F.greatest(scheduled_hour, _hour("departed_at")).alias("hour"),
        F.lit(-1).cast("long").alias("awaited"),
        F.lit(1).cast("long").alias("departed_today"),
        zero.alias("cancelled_today"),
        F.col("departure_delay_minutes").cast("long").alias("delay_minutes_today"),
    )
    is_own = F.col("hour").between(session.hours[0], session.hours[-1])
    return scheduled.unionByName(departed).where(is_own)


def _every_hour(session: SessionContext, changes: DataFrame) -> DataFrame:
    """Add zeros for hours without changes, for each airport from its first hour to the session's last."""
    last = F.lit(session.hours[-1]).cast("long")
    own_hours = F.explode(F.sequence(F.min("hour"), last))
    hours = changes.groupBy("origin").agg(own_hours.alias("hour"))
    return hours.join(changes, ["origin", "hour"], "left").fillna(0, list(SUMMED))


def _start(hour: int) -> Column:
    return F.timestamp_seconds(F.lit(hour * HOUR_SECONDS))


def _hour(time: str) -> Column:
    return F.floor(F.unix_seconds(F.col(time)) / HOUR_SECONDS)


def _day() -> Column:
    moment = F.timestamp_seconds(F.col("hour") * HOUR_SECONDS)
    return F.to_date(F.from_utc_timestamp(moment, ZONE))
