"""Each rule of the membership tables by an example, which both the tables and the oracle must meet.

An example is one account: its events, `H:MM` on the first day, and what its rows must say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

from lake_assets.base.hours import hour_of, hour_start, parse_hour
from lake_assets.membership.raw import PRICED, SIGNUPS
from lake_assets_tests.membership import oracle
from lake_assets_tests.membership.in_memory import Lake, build, frame
from lake_assets_tests.membership.oracle import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = parse_hour("2026-01-01-00:00")
HOURS = range(FIRST, FIRST + 4)
START = hour_start(FIRST)

Event = tuple[str, Row]


def at(time: str) -> datetime:
    hour, minute = map(int, time.split(":"))
    return START.replace(hour=hour, minute=minute)


def signup(time: str, plan: str, price: str, key: str = "s") -> Event:
    return "raw.signups", {"signup_id": key, "event_ts": at(time), "plan": plan, "monthly_price": Decimal(price)}


def change(time: str, plan: str, price: str, key: str = "p") -> Event:
    return "raw.plan_changes", {"change_id": key, "event_ts": at(time), "plan": plan, "monthly_price": Decimal(price)}


def request(time: str, reason: str | None, key: str = "r") -> Event:
    return "raw.cancel_requests", {"request_id": key, "event_ts": at(time), "reason": reason}


def cancel(time: str, key: str = "c") -> Event:
    return "raw.cancels", {"cancel_id": key, "processing_ts": at(time)}


BASIC = signup("0:10", "basic", "7.99")

# What the account's row says from each hour on; no row before the first.
STATES: dict[str, tuple[Sequence[Event], dict[int, str]]] = {
    "a signup makes a stranger active": (
        [signup("1:10", "basic", "7.99")],
        {1: "Active basic 7.99 since 1:10 last 1:10"},
    ),
    "the first moment of an hour belongs to it": (
        [signup("2:00", "basic", "7.99")],
        {2: "Active basic 7.99 since 2:00 last 2:00"},
    ),
    "a signup of a member has no effect": (
        [BASIC, signup("1:10", "premium", "18.99", "s2")],
        {0: "Active basic 7.99 since 0:10 last 0:10"},
    ),
    "a higher price upgrades; a second upgrade is not a change of state": (
        [BASIC, change("1:10", "standard", "12.99", "p1"), change("2:10", "premium", "18.99", "p2")],
        {
            0: "Active basic 7.99 since 0:10 last 0:10",
            1: "Upgraded standard 12.99 since 1:10 last 1:10",
            2: "Upgraded premium 18.99 since 1:10 last 2:10",
        },
    ),
    "a lower price downgrades": (
        [signup("0:10", "premium", "18.99"), change("2:10", "basic", "7.99")],
        {0: "Active premium 18.99 since 0:10 last 0:10", 2: "Downgraded basic 7.99 since 2:10 last 2:10"},
    ),
    "an equal price changes the plan and leaves the state": (
        [BASIC, change("1:10", "standard", "7.99")],
        {0: "Active basic 7.99 since 0:10 last 0:10", 1: "Active standard 7.99 since 0:10 last 1:10"},
    ),
    "a higher price for the same plan upgrades": (
        [BASIC, change("1:10", "basic", "8.99")],
        {0: "Active basic 7.99 since 0:10 last 0:10", 1: "Upgraded basic 8.99 since 1:10 last 1:10"},
    ),
    "a change to the same plan and price has no effect": (
        [BASIC, change("1:10", "basic", "7.99")],
        {0: "Active basic 7.99 since 0:10 last 0:10"},
    ),
    "a cancel leaves plan and price, and tells the churn type": (
        [BASIC, request("0:50", "price"), cancel("1:10")],
        {0: "Active basic 7.99 since 0:10 last 0:10", 1: "Canceled basic 7.99 since 1:10 last 1:10 voluntary"},
    ),
    "of a canceled account, changes and cancels have no effect": (
        [BASIC, cancel("1:10", "c1"), change("1:20", "family", "24.99"), request("1:30", "x"), cancel("2:10", "c2")],
        {0: "Active basic 7.99 since 0:10 last 0:10", 1: "Canceled basic 7.99 since 1:10 last 1:10 involuntary"},
    ),
    "a signup of a canceled account makes it active": (
        [BASIC, cancel("1:10"), signup("3:10", "family", "24.99", "s2")],
        {
            0: "Active basic 7.99 since 0:10 last 0:10",
            1: "Canceled basic 7.99 since 1:10 last 1:10 involuntary",
            3: "Active family 24.99 since 3:10 last 3:10",
        },
    ),
    "of a stranger, changes and cancels have no effect, also once it signs up": (
        [change("0:10", "family", "24.99"), cancel("0:20"), signup("2:10", "basic", "7.99")],
        {2: "Active basic 7.99 since 2:10 last 2:10"},
    ),
    "who never signs up has no row": ([change("0:10", "family", "24.99"), cancel("0:20")], {}),
    "an hour tells the state at its end": (
        [BASIC, change("0:20", "family", "24.99", "p1"), cancel("0:30"), signup("0:40", "premium", "18.99", "s2")],
        {0: "Active premium 18.99 since 0:40 last 0:40"},
    ),
    "at the same time, a signup goes before a change, and that before a cancel": (
        [cancel("0:10", "1"), change("0:10", "family", "24.99", "2"), signup("0:10", "basic", "7.99", "3")],
        {0: "Canceled family 24.99 since 0:10 last 0:10 involuntary"},
    ),
    "of one kind and time, the lesser id goes first": (
        [BASIC, change("1:10", "standard", "12.99", "p2"), change("1:10", "family", "24.99", "p1")],
        {0: "Active basic 7.99 since 0:10 last 0:10", 1: "Downgraded standard 12.99 since 1:10 last 1:10"},
    ),
}

# What the account's cancels say, by time and id.
CHURN: dict[str, tuple[Sequence[Event], Sequence[str]]] = {
    "without a request, it is involuntary": ([cancel("2:00")], ["c involuntary"]),
    "with one before it, voluntary": ([request("0:30", "price"), cancel("2:00")], ["c voluntary r 0:30 price"]),
    "with one at its very time, voluntary": ([request("2:00", "price"), cancel("2:00")], ["c voluntary r 2:00 price"]),
    "without a reason too": ([request("0:30", None), cancel("2:00")], ["c voluntary r 0:30 None"]),
    "a later request does not count": ([cancel("2:00"), request("2:01", "price")], ["c involuntary"]),
    "the latest request counts": (
        [request("1:30", "moved", "r1"), request("0:30", "price", "r2"), cancel("2:00")],
        ["c voluntary r1 1:30 moved"],
    ),
    "of one time, that of the greatest id": (
        [request("1:30", "moved", "r1"), request("1:30", "price", "r2"), cancel("2:00")],
        ["c voluntary r2 1:30 price"],
    ),
    "a request leads to one cancel": (
        [request("0:30", "price"), cancel("1:00", "c1"), cancel("2:00", "c2")],
        ["c1 voluntary r 0:30 price", "c2 involuntary"],
    ),
    "one at the time of the previous cancel led to that one": (
        [request("1:00", "price"), cancel("1:00", "c1"), cancel("2:00", "c2")],
        ["c1 voluntary r 1:00 price", "c2 involuntary"],
    ),
    "each cancel has the request since the one before": (
        [request("0:30", "price", "r1"), cancel("1:00", "c1"), request("1:30", "moved", "r2"), cancel("2:00", "c2")],
        ["c1 voluntary r1 0:30 price", "c2 voluntary r2 1:30 moved"],
    ),
    "of two cancels at one time, the lesser id goes first": (
        [request("0:30", "price"), cancel("1:00", "c2"), cancel("1:00", "c1")],
        ["c1 voluntary r 0:30 price", "c2 involuntary"],
    ),
}


def raw_rows(examples: Iterable[tuple[str, Sequence[Event]]]) -> Lake:
    """All examples as raw rows: the account is called by the example's name, which also goes before its keys."""
    raw: Lake = {table: [] for table in oracle.KEY}
    for name, events in examples:
        for table, row in events:
            key = {oracle.KEY[table][0]: f"{name}|{row[oracle.KEY[table][0]]}"}
            raw[table].append({**row, **key, "account_id": name, "landed_at": at("5:00"), "batch_id": "b"})
    return raw


def states(lake: Lake) -> dict[str, dict[int, str]]:
    """Account → hour → what its row says."""
    found: dict[str, dict[int, str]] = {name: {} for name in STATES}
    for r in sorted(lake["core.account_state_dim"], key=lambda r: r["state_hour"]):
        words = [r["state"], r["plan"], str(r["monthly_price"]), r["churn_type"]]
        words[3:3] = ["since", clock(r["state_since"]), "last", clock(r["last_event_ts"])]
        found[r["account_id"]][hour_of(r["state_hour"]) - FIRST] = " ".join(filter(None, words))
    return found


def bare(key: str) -> str:
    return key.split("|")[1]


def clock(moment: datetime) -> str:
    return f"{moment.hour}:{moment.minute:02}"


def expected_states() -> dict[str, dict[int, str]]:
    return {name: carried(rows) for name, (_, rows) in STATES.items()}


def carried(rows: dict[int, str]) -> dict[int, str]:
    first = min(rows, default=len(HOURS))
    return {hour: rows[max(h for h in rows if h <= hour)] for hour in range(first, len(HOURS))}


def churn(lake: Lake) -> dict[str, list[str]]:
    """Account → what its cancels say."""
    found: dict[str, list[str]] = {}
    for r in sorted(lake["core.cancel_fact"], key=lambda r: (r["canceled_at"], r["cancel_id"])):
        words = [bare(r["cancel_id"]), r["churn_type"]]
        if r["request_id"]:
            words += [bare(r["request_id"]), clock(r["requested_at"]), str(r["reason"])]
        found.setdefault(r["account_id"], []).append(" ".join(words))
    return found


STATE_ROWS = raw_rows((name, events) for name, (events, _) in STATES.items())
CHURN_ROWS = raw_rows((name, events) for name, (events, _) in CHURN.items())


def test_states(spark: SparkSession) -> None:
    assert states(build(spark, STATE_ROWS, {}, [HOURS])) == expected_states()


def test_states_hour_by_hour(spark: SparkSession) -> None:
    assert states(build(spark, STATE_ROWS, {}, [[hour] for hour in HOURS])) == expected_states()


def test_churn_types(spark: SparkSession) -> None:
    assert churn(build(spark, CHURN_ROWS, {}, [HOURS])) == {name: rows for name, (_, rows) in CHURN.items()}


def test_the_oracle_meets_the_examples() -> None:
    assert states(truth(STATE_ROWS)) == expected_states()
    assert churn(truth(CHURN_ROWS)) == {name: rows for name, (_, rows) in CHURN.items()}


def truth(raw: Lake) -> Lake:
    return oracle.expected(raw, start=START, through=dict.fromkeys(oracle.KEY, hour_start(HOURS[-1])))


def test_rows_without_a_sound_plan_and_price_are_set_aside(spark: SparkSession) -> None:
    sold: list[tuple[str | None, str | None]] = [("basic", "7.99"), ("family", "0.00")]
    unsound: list[tuple[str | None, str | None]] = [
        ("basic", "-0.01"),
        ("basic", None),
        ("gold", "9.99"),
        (None, "7.99"),
    ]
    rows = [{"plan": plan, "monthly_price": price and Decimal(price)} for plan, price in sold + unsound]
    bad = frame(spark, SIGNUPS.table, rows).where(" or ".join(f"({rule.where})" for rule in PRICED))
    assert {(r["plan"], r["monthly_price"] and str(r["monthly_price"])) for r in bad.collect()} == set(unsound)


def test_the_oracle_sets_unsound_rows_aside_and_takes_the_first_delivery() -> None:
    def delivery(landed: str, batch: str = "b", **changed: object) -> Row:
        _, row = signup("1:00", "basic", "7.99", key="s")
        return {**row, "account_id": "a", "landed_at": at(landed), "batch_id": batch, **changed}

    unsound = [
        delivery("2:00", signup_id=None),
        delivery("2:00", event_ts=None),
        delivery("2:00", event_ts=START - timedelta(microseconds=1)),
        delivery("2:00", event_ts=at("3:01")),
        delivery("0:30", monthly_price=Decimal(-1)),
        delivery("0:30", plan="gold"),
    ]
    deliveries = [delivery("3:00", plan="family"), delivery("2:00", "b2", plan="premium"), delivery("2:00", "b1")]
    facts = truth({"raw.signups": [*deliveries, *unsound]})["core.signup_fact"]
    assert [(r["signup_id"], r["signed_up_at"], r["plan"]) for r in facts] == [("s", at("1:00"), "basic")]
