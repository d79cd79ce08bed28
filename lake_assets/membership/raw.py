"""The raw membership tables, which other systems write, and the plans on sale.

This module describes raw rows; the module of a fact describes how they are transformed.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from lake_assets.incremental.declaration import RawTable, Rule, Topic
from lake_assets.membership.columns import described

PLANS: Mapping[str, Decimal] = {
    "basic": Decimal("7.99"),
    "standard": Decimal("12.99"),
    "premium": Decimal("18.99"),
    "family": Decimal("24.99"),
}
"""The plans on sale, with their list price per month. The price that an account pays is in its events."""

ACCOUNTS = Topic("account_id")
"""Each table is landed from the topic of its name, and each message is about an account."""

SIGNUPS = RawTable(
    "raw.signups",
    columns={
        "signup_id": "string",
        "account_id": "string",
        "plan": "string",
        "monthly_price": "decimal(9, 2)",
        "event_ts": "timestamptz",
    },
    descriptions=described("signup_id", "account_id", "plan", "monthly_price", "event_ts"),
    time_column="event_ts",
    description="A person signed up, for the first time or again after a cancel.",
    feed=ACCOUNTS,
)

PLAN_CHANGES = RawTable(
    "raw.plan_changes",
    columns={
        "change_id": "string",
        "account_id": "string",
        "plan": "string",
        "monthly_price": "decimal(9, 2)",
        "event_ts": "timestamptz",
    },
    descriptions=described("change_id", "account_id", "plan", "monthly_price", "event_ts"),
    time_column="event_ts",
    description="An account moved to a plan and a price; both are those after the change.",
    feed=ACCOUNTS,
)

CANCEL_REQUESTS = RawTable(
    "raw.cancel_requests",
    columns={"request_id": "string", "account_id": "string", "reason": "string", "event_ts": "timestamptz"},
    descriptions=described("request_id", "account_id", "reason", "event_ts"),
    time_column="event_ts",
    description="A member asked to leave. Only a cancel says whether and when the membership ends.",
    feed=ACCOUNTS,
)

CANCELS = RawTable(
    "raw.cancels",
    columns={"cancel_id": "string", "account_id": "string", "processing_ts": "timestamptz"},
    descriptions=described("cancel_id", "account_id", "processing_ts"),
    time_column="processing_ts",
    description="A membership ended, at the member's request or not (a failed payment, a ban).",
    feed=ACCOUNTS,
)

RAW = (SIGNUPS, PLAN_CHANGES, CANCEL_REQUESTS, CANCELS)

PLAN_NAMES = ", ".join(f"'{name}'" for name in PLANS)
PRICED = (
    Rule("no price or a negative one", "monthly_price is null or monthly_price < 0"),
    Rule("unknown plan", f"plan is null or plan not in ({PLAN_NAMES})"),
)
"""Rules that quarantine a row with a plan and a price."""
