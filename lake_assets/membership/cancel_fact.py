"""`core.cancel_fact`: one row for each cancel, with the request that led to it.

A cancel is voluntary if its account has a request at or before it and after its previous cancel. So a row can depend on
rows of any age, and a late request changes cancels that are already built: the table is stateful.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lake_assets.incremental.declaration import SessionContext, Source, Stateful, incremental_asset
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

CHURN_TYPES = ("voluntary", "involuntary")


@incremental_asset(
    mode=Stateful(entity="account_id"),
    sources=[
        Source("raw.cancels", time_column="processing_ts", key="cancel_id"),
        Source("core.cancel_request_fact", time_column="requested_at", landed_column="landed_at"),
    ],
    key="cancel_id",
    time_column="canceled_at",
    columns={
        "cancel_id": "string",
        "account_id": "string",
        "canceled_at": "timestamptz",
        "churn_type": "string",
        "request_id": "string",
        "requested_at": "timestamptz",
        "reason": "string",
    },
    descriptions=described(
        "cancel_id", "account_id", "canceled_at", "churn_type", "request_id", "requested_at", "reason"
    ),
    audits=[
        source_target_counts(),
        no_missing_events(),
        not_null("account_id", "churn_type"),
        unique_key(),
        accepted_values("churn_type", CHURN_TYPES),
        # A cancel may arrive before its signup, so this audit only warns.
        referential("account_id", to="core.signup_fact", ref_column="account_id", blocking=False),
        row_count_like_earlier(),
    ],
    owners=["team:membership"],
    lineage={
        "account_id": ["raw.cancels.account_id"],
        "canceled_at": ["raw.cancels.processing_ts"],
        "churn_type": ["raw.cancels.processing_ts", "core.cancel_request_fact.requested_at"],
    },
)
def cancel_fact(session: SessionContext, cancels: DataFrame, requests: DataFrame) -> DataFrame:
    """Return every cancel once: which account left, when, and whether it had asked to leave.

    Returns:
        One row for each cancel. churn_type is `voluntary` if the account has a request at or before the cancel and
        after its previous cancel; request_id, requested_at and reason are those of the latest such request. Otherwise
        it is `involuntary` (a failed payment, a ban), and these columns are null.
    """
    cancels = cancels.withColumn("canceled_at", F.col("processing_ts"))
    own = session.within(cancels, "canceled_at")
    accounts = own.select("account_id").distinct()
    others = session.outside(cancels, "canceled_at").join(accounts, "account_id", "left_semi")
    own_requests = requests.join(accounts, "account_id", "left_semi")
    rows = _with_request(_cancels_and_requests(own, others, own_requests))
    return rows.where("is_own").select(*cancel_fact.columns)


def _cancels_and_requests(own: DataFrame, others: DataFrame, requests: DataFrame) -> DataFrame:
    """Return cancels and requests in one table: account_id, at, and the columns of either.

    Args:
        own: Cancels of the session's hours; they get is_own = true.
        others: Other cancels of the same accounts.
        requests: Requests of the same accounts.
    """
    canceled_at = F.col("canceled_at").alias("at")
    requested_at = F.col("requested_at").alias("at")
    of_own = own.select("account_id", canceled_at, "cancel_id", "canceled_at", F.lit(True).alias("is_own"))
    of_others = others.select("account_id", canceled_at, "cancel_id", "canceled_at")
    of_requests = requests.select("account_id", requested_at, "request_id", "requested_at", "reason")
    rows = of_own.unionByName(of_others, allowMissingColumns=True)
    return rows.unionByName(of_requests, allowMissingColumns=True)


def _with_request(rows: DataFrame) -> DataFrame:
    """Add to each row the latest request up to it, unless a cancel lies between, and the churn type."""
    # A request at the time of a cancel belongs to the cancel, so it sorts before it.
    is_cancel = F.col("cancel_id").isNotNull()
    by_time = Window.partitionBy("account_id").orderBy("at", is_cancel, "cancel_id", "request_id")
    so_far = by_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = by_time.rowsBetween(Window.unboundedPreceding, -1)
    request = F.when(F.col("request_id").isNotNull(), F.struct("request_id", "requested_at", "reason"))
    latest = F.last(request, ignorenulls=True).over(so_far)
    previous_cancel = F.last("canceled_at", ignorenulls=True).over(before)
    is_after_previous = previous_cancel.isNull() | (latest["requested_at"] > previous_cancel)
    own_request = F.when(is_after_previous, latest).alias("request")
    found = rows.select("account_id", "cancel_id", "canceled_at", "is_own", own_request)
    churn_type = F.when(F.col("request").isNull(), "involuntary").otherwise("voluntary")
    return found.select("*", "request.*", churn_type.alias("churn_type"))
