"""`core.plan_fact`: one row for each change of plan."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.incremental.declaration import SessionContext, Source, Stateless, incremental_asset
from lake_assets.incremental.engine.audits import (
    accepted_values,
    no_missing_events,
    not_null,
    referential,
    row_count_like_earlier,
    source_target_counts,
    unique_key,
)
from lake_assets.membership.columns import described
from lake_assets.membership.raw import PLANS, PRICED


@incremental_asset(
    mode=Stateless(),
    sources=[Source("raw.plan_changes", time_column="event_ts", rules=PRICED)],
    key="change_id",
    time_column="changed_at",
    columns={
        "change_id": "string",
        "account_id": "string",
        "plan": "string",
        "monthly_price": "decimal(9, 2)",
        "changed_at": "timestamptz",
        "landed_at": "timestamptz",
    },
    descriptions=described("change_id", "account_id", "plan", "monthly_price", "changed_at", "landed_at"),
    audits=[
        source_target_counts(),
        no_missing_events(),
        not_null("account_id"),
        unique_key(),
        accepted_values("plan", tuple(PLANS)),
        # A change may arrive before its signup, so this audit only warns.
        referential("account_id", to="core.signup_fact", ref_column="account_id", blocking=False),
        row_count_like_earlier(),
    ],
    owners=["team:membership"],
    lineage={"changed_at": ["raw.plan_changes.event_ts"]},
)
def plan_fact(session: SessionContext, plan_changes: DataFrame) -> DataFrame:
    """Return every change of plan once: which account changed to which plan and price, and when.

    Whether it is an upgrade depends on the price before it; `core.account_state_dim` has that.
    """
    return plan_changes.select(
        "change_id", "account_id", "plan", "monthly_price", F.col("event_ts").alias("changed_at"), "landed_at"
    )
