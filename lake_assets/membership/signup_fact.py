"""`core.signup_fact`: one row for each signup."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.incremental.declaration import SessionContext, Source, Stateless, incremental_asset
from lake_assets.incremental.engine.audits import (
    accepted_values,
    no_missing_events,
    not_null,
    row_count_like_earlier,
    source_target_counts,
    unique_key,
)
from lake_assets.membership.columns import described
from lake_assets.membership.raw import PLANS, PRICED


@incremental_asset(
    mode=Stateless(),
    sources=[Source("raw.signups", time_column="event_ts", rules=PRICED)],
    key="signup_id",
    time_column="signed_up_at",
    columns={
        "signup_id": "string",
        "account_id": "string",
        "plan": "string",
        "monthly_price": "decimal(9, 2)",
        "signed_up_at": "timestamptz",
        "landed_at": "timestamptz",
    },
    descriptions=described("signup_id", "account_id", "plan", "monthly_price", "signed_up_at", "landed_at"),
    audits=[
        source_target_counts(),
        no_missing_events(),
        not_null("account_id"),
        unique_key(),
        accepted_values("plan", tuple(PLANS)),
        row_count_like_earlier(),
    ],
    owners=["team:membership"],
    lineage={"signed_up_at": ["raw.signups.event_ts"]},
)
def signup_fact(session: SessionContext, signups: DataFrame) -> DataFrame:
    """Return every signup once: which account took which plan, at what price, and when.

    An account has several signups if it came back after a cancel, or if it signed up while it was a member.
    `core.account_state_dim` has the effect of a signup.
    """
    return signups.select(
        "signup_id", "account_id", "plan", "monthly_price", F.col("event_ts").alias("signed_up_at"), "landed_at"
    )
