"""`core.cancel_request_fact`: one row for each request to leave."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.incremental.declaration import SessionContext, Source, Stateless, incremental_asset
from lake_assets.incremental.engine.audits import (
    no_missing_events,
    not_null,
    referential,
    row_count_like_earlier,
    source_target_counts,
    unique_key,
)
from lake_assets.membership.columns import described


@incremental_asset(
    mode=Stateless(),
    sources=[Source("raw.cancel_requests", time_column="event_ts")],
    key="request_id",
    time_column="requested_at",
    columns={
        "request_id": "string",
        "account_id": "string",
        "reason": "string",
        "requested_at": "timestamptz",
        "landed_at": "timestamptz",
    },
    descriptions=described("request_id", "account_id", "reason", "requested_at", "landed_at"),
    audits=[
        source_target_counts(),
        no_missing_events(),
        not_null("account_id"),
        unique_key(),
        # A request may arrive before its signup, so this audit only warns.
        referential("account_id", to="core.signup_fact", ref_column="account_id", blocking=False),
        row_count_like_earlier(),
    ],
    owners=["team:membership"],
    lineage={"requested_at": ["raw.cancel_requests.event_ts"]},
)
def cancel_request_fact(session: SessionContext, cancel_requests: DataFrame) -> DataFrame:
    """Return every request to leave once: which account asked, when, and the reason (null if none was given)."""
    return cancel_requests.select(
        "request_id", "account_id", "reason", F.col("event_ts").alias("requested_at"), "landed_at"
    )
