"""`flights.airport_hour_dim`: how things stand at each airport of New York at the end of every hour.

What is awaited in an hour is what was awaited in the hour before, plus what was due, minus what left: the table is
sequential. A session starts from the rows before its first hour and sums up all its hours in one job.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from examples.flights.flight_fact import CANCELLED
from lake_assets.base.hours import hour_start
from lake_assets.incremental.declaration import Sequential, SessionContext, Source, incremental_asset
from lake_assets.incremental.staging.audits import not_null, sql, unique_key

ZONE = "America/New_York"
"""Whose midnight ends a day at the three airports."""

OF_THE_DAY = ("departed_today", "cancelled_today", "delay_minutes_today")
SUMMED = ("awaited", *OF_THE_DAY)


@incremental_asset(
    namespace="flights",
    mode=Sequential(chunk_hours=None),  # a flight also acts in the hour in which it left, not in that of its row alone
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
        unique_key(),
        not_null("origin", *SUMMED),
        sql(
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
    """The state at the end of each hour of each airport, from its first flight on: one row an hour and airport.

    awaited: flights that were due by then, were not cancelled, and had not left. A flight leaves in the hour in which
    it left, but never before the hour in which it was due. The others count from midnight in New York: flights that
    left, flights due that were cancelled, and the minutes by which those that left were late (early ones negative), as
    a sum and as a mean (null while none has left).
    """
    changes = _before(session).unionByName(_changes(session, flights)).groupBy("origin", "hour")
    rows = _every_hour(session, changes.agg(*(F.sum(name).alias(name) for name in SUMMED)))
    by_hour = Window.partitionBy("origin").orderBy("hour")
    by_hour_of_day = Window.partitionBy("origin", _day()).orderBy("hour")
    mean = F.when(F.col("departed_today") > 0, F.col("delay_minutes_today") / F.col("departed_today"))
    return (
        rows.withColumns(
            {
                "awaited": F.sum("awaited").over(by_hour),
                **{name: F.sum(name).over(by_hour_of_day) for name in OF_THE_DAY},
            }
        )
        .where(F.col("hour") >= session.hours[0])
        .withColumns({"mean_delay_minutes_today": mean, "state_hour": F.timestamp_seconds(F.col("hour") * 3600)})
        .select(*airport_hour_dim.columns)
    )


def _before(session: SessionContext) -> DataFrame:
    """origin, hour, `SUMMED`: the state before the session's first hour, as if all of it had changed in that hour."""
    assert session.published is not None, "only an append has no published rows"
    hour = session.hours[0] - 1
    rows = session.published.where(F.col("state_hour") == F.lit(hour_start(hour)))
    return rows.select("origin", F.lit(hour).cast("long").alias("hour"), *SUMMED)


def _changes(session: SessionContext, flights: DataFrame) -> DataFrame:
    """origin, hour, `SUMMED`: by how much each flight changes them, when it is due and when it leaves."""
    first, last = session.hours[0], session.hours[-1]
    start, zero = F.lit(hour_start(first)), F.lit(0).cast("long")
    # Both bounds are in Iceberg's metadata: the files of flights long gone are not read.
    flights = flights.where((F.col("scheduled_at") >= start) | (F.col("departed_at") >= start))
    due_hour, is_cancelled = _hour("scheduled_at"), F.col("status") == CANCELLED
    due = flights.select(
        "origin",
        due_hour.alias("hour"),
        F.when(is_cancelled, 0).otherwise(1).cast("long").alias("awaited"),
        zero.alias("departed_today"),
        F.when(is_cancelled, 1).otherwise(0).cast("long").alias("cancelled_today"),
        zero.alias("delay_minutes_today"),
    )
    left = flights.where(~is_cancelled).select(
        "origin",
        F.greatest(due_hour, _hour("departed_at")).alias("hour"),
        F.lit(-1).cast("long").alias("awaited"),
        F.lit(1).cast("long").alias("departed_today"),
        zero.alias("cancelled_today"),
        F.col("departure_delay_minutes").cast("long").alias("delay_minutes_today"),
    )
    return due.unionByName(left).where(F.col("hour").between(first, last))


def _every_hour(session: SessionContext, changes: DataFrame) -> DataFrame:
    """The changes, with zeros for the hours without any: of each airport from its first hour to the session's last."""
    last = F.lit(session.hours[-1]).cast("long")
    hours = changes.groupBy("origin").agg(F.explode(F.sequence(F.min("hour"), last)).alias("hour"))
    return hours.join(changes, ["origin", "hour"], "left").fillna(0, list(SUMMED))


def _hour(time: str) -> Column:
    return F.floor(F.unix_seconds(F.col(time)) / 3600)


def _day() -> Column:
    return F.to_date(F.from_utc_timestamp(F.timestamp_seconds(F.col("hour") * 3600), ZONE))
