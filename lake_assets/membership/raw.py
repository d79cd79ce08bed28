"""The raw membership tables, as others land them, and the plans that are sold.

Here belongs what is known of a raw row before anybody reads it; what becomes of it is in the file of its fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from lake_assets.incremental.declaration import RawTable, Rule

PLANS: Mapping[str, Decimal] = {
    "basic": Decimal("7.99"),
    "standard": Decimal("12.99"),
    "premium": Decimal("18.99"),
    "family": Decimal("24.99"),
}
"""The plans that are sold, and their list price a month. What an account really pays is in its events."""

SIGNUPS = RawTable(
    "raw.signups",
    columns={
        "signup_id": "string",
        "account_id": "string",
        "plan": "string",
        "monthly_price": "decimal(9, 2)",
        "event_ts": "timestamptz",
    },
    time_column="event_ts",
    description="A person signed up, for the first time or again after a cancel.",
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
    time_column="event_ts",
    description="An account moved to a plan and a price; both are those after the change.",
)

CANCEL_REQUESTS = RawTable(
    "raw.cancel_requests",
    columns={"request_id": "string", "account_id": "string", "reason": "string", "event_ts": "timestamptz"},
    time_column="event_ts",
    description="A member asked to leave. Whether and when the membership ends, only a cancel says.",
)

CANCELS = RawTable(
    "raw.cancels",
    columns={"cancel_id": "string", "account_id": "string", "processing_ts": "timestamptz"},
    time_column="processing_ts",
    description="A membership ended: asked for by the member, or not (a payment that failed, a ban).",
)

RAW = (SIGNUPS, PLAN_CHANGES, CANCEL_REQUESTS, CANCELS)

PRICED = (
    Rule("no price or a negative one", "monthly_price is null or monthly_price < 0"),
    Rule("unknown plan", "plan is null or plan not in ({})".format(", ".join(f"'{name}'" for name in PLANS))),
)
"""What sets a row with a plan and a price aside."""
