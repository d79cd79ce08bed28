"""Memberships: signups, plan changes, requests to leave and cancels; the state of each account by hour, counted by day.

Each table has its own file. `PIPELINE` is the pipeline that the engine, Dagster and `lake` use.
"""

from lake_assets.incremental.declaration import Pipeline, Subject
from lake_assets.membership.account_state_daily import account_state_daily
from lake_assets.membership.account_state_dim import account_state_dim
from lake_assets.membership.cancel_fact import cancel_fact
from lake_assets.membership.cancel_request_fact import cancel_request_fact
from lake_assets.membership.plan_fact import plan_fact
from lake_assets.membership.raw import RAW
from lake_assets.membership.signup_fact import signup_fact
from lake_assets.settings import settings

PIPELINE = Pipeline(
    raw=RAW,
    targets=(signup_fact, plan_fact, cancel_request_fact, cancel_fact, account_state_dim, account_state_daily),
    start=settings().start,
    subjects=(Subject("account", columns=("account_id",)),),
)

__all__ = ["PIPELINE"]
