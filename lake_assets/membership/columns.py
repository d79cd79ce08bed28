"""What is in the columns of the membership tables, for people. A name means the same in every table."""

from __future__ import annotations

DESCRIPTIONS = {
    "signup_id": "The signup.",
    "change_id": "The plan change.",
    "request_id": "The request to leave. In a fact of cancels: the request that came before the cancel, if any did.",
    "cancel_id": "The cancel.",
    "account_id": "The account, which belongs to one person.",
    "plan": "The plan that the account is on, or moves to.",
    "monthly_price": "The price that the account pays in a month on that plan. It may differ from the list price.",
    "reason": "Why the person asked to leave, in their words.",
    "event_ts": "When it happened.",
    "processing_ts": "When the membership ended.",
    "landed_at": "When the row landed in the raw table.",
    "signed_up_at": "When the person signed up.",
    "changed_at": "When the account moved to the plan.",
    "requested_at": "When the person asked to leave.",
    "canceled_at": "When the membership ended.",
    "churn_type": "voluntary if a request to leave came before the cancel, else involuntary; null for a member.",
    "state_hour": "Start of the hour at the end of which the account had this state.",
    "state_day": "Start of the day at the end of which the accounts were counted.",
    "state": "Active, Upgraded, Downgraded or Canceled.",
    "state_since": "When the account entered the state.",
    "last_event_ts": "When the last event happened that changed the state, the plan or the price.",
    "accounts": "Number of accounts in this state and on this plan.",
    "accounts_entered": "How many of these accounts entered the state on this day.",
}


def described(*columns: str) -> dict[str, str]:
    """Return what is in the columns of a table. A name that no table has is a KeyError."""
    return {column: DESCRIPTIONS[column] for column in columns}
