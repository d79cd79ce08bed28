"""`core.cancel_fact`: one row for each cancel, with the request that led to it.

A cancel is voluntary when its account has a request at or before it and after its previous cancel. So each row hangs on
rows of any age, and a request that comes late changes cancels that are built already: the table is stateful.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lake_assets.incremental.declaration import SessionContext, Source, Stateful, incremental_asset
from lake_assets.incremental.staging.audits import (
    accepted_values,
    no_missing_events,
    not_null,
    referential,
    row_count_like_earlier,
    source_target_counts,
    unique_key,
)

CHURN_TYPES = ("voluntary", "involuntary")


@incremental_asset(
    mode=Stateful(),
    sources=[
        Source("raw.cancels", time_column="processing_ts", key="cancel_id"),
        Source("core.cancel_request_fact", time_column="requested_at"),
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
    audits=[
        source_target_counts(),
        no_missing_events(),
        not_null("account_id", "churn_type"),
        unique_key(),
        accepted_values("churn_type", CHURN_TYPES),
        # A cancel may well arrive before the signup that it follows: a warning, never a stop.
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
    """Every cancel, once: which account left, when, and whether it had asked to.

    `voluntary`: the account has a request at or before the cancel and after its previous cancel; the latest such gives
    request_id, requested_at and reason. `involuntary` (a payment that failed, a ban): it has none, and these are null.
    """
    cancels = cancels.withColumn("canceled_at", F.col("processing_ts"))
    now = session.within(cancels, "canceled_at")
    of_these_accounts = now.select("account_id").distinct()
    others = session.outside(cancels, "canceled_at").join(of_these_accounts, "account_id", "left_semi")
    asked = requests.join(of_these_accounts, "account_id", "left_semi")
    return _with_request(_by_account(now, others, asked)).where("is_now").select(*cancel_fact.columns)


def _by_account(now: DataFrame, others: DataFrame, asked: DataFrame) -> DataFrame:
    """Cancels and requests as one list: account_id, at, and the columns of either; is_now for the session's cancels."""
    cancel_columns = ("account_id", F.col("canceled_at").alias("at"), "cancel_id", "canceled_at")
    rows = now.select(*cancel_columns, F.lit(True).alias("is_now"))
    rows = rows.unionByName(others.select(*cancel_columns), allowMissingColumns=True)
    requests = asked.select("account_id", F.col("requested_at").alias("at"), "request_id", "requested_at", "reason")
    return rows.unionByName(requests, allowMissingColumns=True)


def _with_request(rows: DataFrame) -> DataFrame:
    """Each row with the latest request up to it, unless a cancel came between; and the churn type that follows."""
    # A request at the very time of a cancel goes before it: it led to it.
    by_time = Window.partitionBy("account_id").orderBy("at", F.col("cancel_id").isNotNull(), "cancel_id", "request_id")
    asked = F.when(F.col("request_id").isNotNull(), F.struct("request_id", "requested_at", "reason"))
    latest = F.last(asked, ignorenulls=True).over(by_time.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    previous = F.last("canceled_at", ignorenulls=True).over(by_time.rowsBetween(Window.unboundedPreceding, -1))
    led_to_it = previous.isNull() | (latest["requested_at"] > previous)
    seen = rows.select("account_id", "cancel_id", "canceled_at", "is_now", F.when(led_to_it, latest).alias("request"))
    churn_type = F.when(F.col("request").isNull(), "involuntary").otherwise("voluntary")
    return seen.select("*", "request.*", churn_type.alias("churn_type"))
