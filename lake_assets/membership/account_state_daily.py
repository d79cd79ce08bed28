"""`core.account_state_daily`: the number of accounts in each state and on each plan at the end of every day.

Each day is counted from the dimension's last hour of the day, so no day depends on another. Late rows rebuild their
day, and later days only if the last hour of these changed, too.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.incremental.declaration import SessionContext, Source, Stateful, incremental_asset
from lake_assets.incremental.engine.audits import accepted_values, not_null, sql, unique_key
from lake_assets.membership.account_state_dim import STATES
from lake_assets.membership.columns import described


@incremental_asset(
    mode=Stateful(load="changed", chunk_hours=7 * 24),
    sources=[Source("core.account_state_dim", time_column="state_hour")],
    grain="day",
    key=("state", "plan"),
    time_column="state_day",
    columns={
        "state_day": "timestamptz",
        "state": "string",
        "plan": "string",
        "accounts": "long",
        "accounts_entered": "long",
    },
    descriptions=described("state_day", "state", "plan", "accounts", "accounts_entered"),
    audits=[
        unique_key(),
        not_null("state", "plan", "accounts", "accounts_entered"),
        accepted_values("state", STATES),
        sql("entered_are_among_them", "select state from {staged} where accounts_entered > accounts"),
    ],
    owners=["team:membership"],
    lineage={
        "state_day": ["core.account_state_dim.state_hour"],
        "accounts": ["core.account_state_dim.account_id"],
        "accounts_entered": ["core.account_state_dim.state_since"],
    },
)
def account_state_daily(session: SessionContext, states: DataFrame) -> DataFrame:
    """Return the accounts by state and plan at the end of each day.

    Returns:
        One row for each day, state and plan with at least one account. state_day: the start of the day. accounts: the
        number of accounts. accounts_entered: the number of these that entered the state on that day.
    """
    at_the_end = session.at_end_of_day(states, "state_hour")
    day = F.col("state_hour") - F.expr("INTERVAL 23 HOURS")
    entered = F.count_if(F.col("state_since") >= F.col("state_day"))
    counts = (F.count("*").alias("accounts"), entered.alias("accounts_entered"))
    return at_the_end.withColumn("state_day", day).groupBy("state_day", "state", "plan").agg(*counts)
