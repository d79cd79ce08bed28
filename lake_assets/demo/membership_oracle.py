"""The truth about the membership tables, slow and obvious: from every raw row delivered to every target's rows.

In plain Python, written from the design alone, sharing no code with the tables. It knows of no session, snapshot, Spark
or order of arrival: what it returns is what one full rebuild must give.

Rows are dicts: ids and plans str, prices Decimal, times datetimes in UTC; a raw row also has landed_at and batch_id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

Row = dict[str, Any]
Check = Callable[[Row], bool]

HOUR = timedelta(hours=1)
PLANS = {"basic", "standard", "premium", "family"}
MEMBER = {"Active", "Upgraded", "Downgraded"}

KEY = {
    "raw.signups": ("signup_id", "event_ts"),
    "raw.plan_changes": ("change_id", "event_ts"),
    "raw.cancel_requests": ("request_id", "event_ts"),
    "raw.cancels": ("cancel_id", "processing_ts"),
}
"""A raw row's identity: its key, and its event time."""


def expected(
    raw: Mapping[str, Sequence[Row]], *, start: datetime, through: Mapping[str, datetime]
) -> dict[str, list[Row]]:
    """The rows of every target, each table's in no particular order.

    raw: raw table → all its rows, in any order, each as often as it was delivered.
    start: the first event hour. through: raw table → start of the last hour for which it is complete, inclusive.

    The stateless facts have all events, complete or not. The others end with the last hour for which all they are built
    from is complete.
    """
    clean = {table: first_deliveries(table, sound(table, raw.get(table, ()), start)) for table in KEY}
    signups = [renamed(r, event_ts="signed_up_at") for r in clean["raw.signups"]]
    plan_changes = [renamed(r, event_ts="changed_at") for r in clean["raw.plan_changes"]]
    requests = [renamed(r, event_ts="requested_at") for r in clean["raw.cancel_requests"]]

    cancels_end = min(through["raw.cancels"], through["raw.cancel_requests"]) + HOUR
    cancels = [r for r in churn(clean["raw.cancels"], requests) if r["canceled_at"] < cancels_end]

    states_end = min(cancels_end, through["raw.signups"] + HOUR, through["raw.plan_changes"] + HOUR)
    hourly = list(states(signups, plan_changes, cancels, states_end))
    return {
        "core.signup_fact": signups,
        "core.plan_fact": plan_changes,
        "core.cancel_request_fact": requests,
        "core.cancel_fact": cancels,
        "core.account_state_dim": hourly,
        "core.account_state_daily": list(daily(hourly)),
    }


# Raw rows: which are sound, and which delivery counts


def sound(table: str, rows: Iterable[Row], start: datetime) -> list[Row]:
    """The rows that do not belong in quarantine."""
    return [r for r in rows if not any(is_bad(r) for is_bad in reasons(table, start))]


def reasons(table: str, start: datetime) -> list[Check]:
    """What sends a row of a table to quarantine. A missing price is as bad as a negative one."""
    key, time = KEY[table]
    found: list[Check] = [
        lambda r: r[key] is None,
        lambda r: r[time] is None,
        lambda r: r[time] is not None and r[time] < start,
        lambda r: r[time] is not None and r[time] > r["landed_at"] + HOUR,
    ]
    if table in ("raw.signups", "raw.plan_changes"):
        found += [
            lambda r: r["monthly_price"] is None or r["monthly_price"] < 0,
            lambda r: r["plan"] not in PLANS,
        ]
    return found


def first_deliveries(table: str, rows: Iterable[Row]) -> list[Row]:
    """One row for each identity: the delivery that landed first, then of the least batch, then of the least content."""
    first: dict[tuple[Any, ...], Row] = {}
    for row in sorted(rows, key=lambda r: (r["landed_at"], r["batch_id"], sorted(map(str, r.items())))):
        first.setdefault(tuple(row[column] for column in KEY[table]), row)
    return list(first.values())


def renamed(row: Row, **names: str) -> Row:
    """A row of a fact: as in raw, its time under the fact's name, without the columns of landing but landed_at."""
    dropped = {"batch_id", "landing_date", "landing_hour"}
    return {names.get(column, column): value for column, value in row.items() if column not in dropped}


# Churn


def churn(cancels: Iterable[Row], requests: Iterable[Row]) -> Iterator[Row]:
    """The rows of cancel_fact."""
    for of_account, asked in by_account(cancels, requests):
        previous: datetime | None = None
        for cancel in sorted(of_account, key=lambda c: (c["processing_ts"], c["cancel_id"])):
            time = cancel["processing_ts"]
            request = latest_request(asked, after=previous, up_to=time)
            yield {
                "cancel_id": cancel["cancel_id"],
                "account_id": cancel["account_id"],
                "canceled_at": time,
                "churn_type": "voluntary" if request else "involuntary",
                **{column: request.get(column) for column in ("request_id", "requested_at", "reason")},
            }
            previous = time


def latest_request(asked: Iterable[Row], *, after: datetime | None, up_to: datetime) -> Row:
    """The last request after a time, up to another, inclusive; empty if there is none."""
    found = [r for r in asked if r["requested_at"] <= up_to and (after is None or r["requested_at"] > after)]
    return max(found, key=lambda r: (r["requested_at"], r["request_id"]), default={})


# States


def states(signups: Iterable[Row], plan_changes: Iterable[Row], cancels: Iterable[Row], end: datetime) -> Iterator[Row]:
    """The rows of account_state_dim: each hour that ends by `end`, from all events of the account up to its end."""
    for account in by_account(signups, plan_changes, cancels):
        events = in_order(*account)
        hour = min((hour_of(e["at"]) for e in events), default=end)
        while hour < end:
            state = after(e for e in events if e["at"] < hour + HOUR)
            if state is not None:
                yield {"state_hour": hour, **state}
            hour += HOUR


def in_order(signups: Iterable[Row], plan_changes: Iterable[Row], cancels: Iterable[Row]) -> list[Row]:
    """An account's events by time, then signup < plan change < cancel, then id."""
    events = [{**r, "at": r["signed_up_at"], "kind": 1, "id": r["signup_id"]} for r in signups]
    events += [{**r, "at": r["changed_at"], "kind": 2, "id": r["change_id"]} for r in plan_changes]
    events += [{**r, "at": r["canceled_at"], "kind": 3, "id": r["cancel_id"]} for r in cancels]
    return sorted(events, key=lambda e: (e["at"], e["kind"], e["id"]))


def after(events: Iterable[Row]) -> Row | None:
    """An account's state after these events; None for a stranger."""
    account: Row | None = None
    for event in events:
        account = {1: sign_up, 2: change_plan, 3: cancel}[event["kind"]](account, event)
    return account


def sign_up(account: Row | None, event: Row) -> Row:
    if account and account["state"] in MEMBER:
        return account
    return {
        "account_id": event["account_id"],
        "state": "Active",
        "plan": event["plan"],
        "monthly_price": event["monthly_price"],
        "state_since": event["at"],
        "last_event_ts": event["at"],
        "churn_type": None,
    }


def change_plan(account: Row | None, event: Row) -> Row | None:
    if account is None or account["state"] not in MEMBER:
        return account
    plan, price = event["plan"], event["monthly_price"]
    if (plan, price) == (account["plan"], account["monthly_price"]):
        return account  # a move to where the member is already has no effect
    state = account["state"]
    if price > account["monthly_price"]:
        state = "Upgraded"
    if price < account["monthly_price"]:
        state = "Downgraded"
    since = account["state_since"] if state == account["state"] else event["at"]
    return {
        **account,
        "state": state,
        "plan": plan,
        "monthly_price": price,
        "state_since": since,
        "last_event_ts": event["at"],
    }


def cancel(account: Row | None, event: Row) -> Row | None:
    if account is None or account["state"] not in MEMBER:
        return account
    return {
        **account,
        "state": "Canceled",
        "state_since": event["at"],
        "last_event_ts": event["at"],
        "churn_type": event["churn_type"],
    }


# Days


def daily(hourly: Iterable[Row]) -> Iterator[Row]:
    """The rows of account_state_daily: at the end of each complete day, how many are in which state, and came to it."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in hourly:
        if row["state_hour"].hour == 23:
            groups[row["state_hour"] - 23 * HOUR, row["state"], row["plan"]].append(row)
    for (day, state, plan), there in groups.items():
        entered = [r for r in there if r["state_since"] >= day]
        yield {
            "state_day": day,
            "state": state,
            "plan": plan,
            "accounts": len(there),
            "accounts_entered": len(entered),
        }


# All


def by_account(*tables: Iterable[Row]) -> Iterator[tuple[list[Row], ...]]:
    """For each account, its rows of each table."""
    found: dict[str, tuple[list[Row], ...]] = defaultdict(lambda: tuple([] for _ in tables))
    for i, rows in enumerate(tables):
        for row in rows:
            found[row["account_id"]][i].append(row)
    yield from found.values()


def hour_of(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
