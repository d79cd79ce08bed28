"""Data directories that the version before has left in the midst of its work: this one opens them and ends right.

`benchmarks/home_before.py` has made them, and says what was done and where it stopped. What is right here is written
down, and is the same for every version: nothing is lost, nothing counts twice.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lake_assets_tests.doors.golden_home import GoldenLake

POINTS = (
    "before_planned",
    "after_planned",
    "after_staged",
    "after_audits",
    "after_staged_recorded",
    "after_quarantine",
    "before_published",
    "after_published",
    "after_published_recorded",
    "after_watermark",
    "after_committed",
)
"""Every other one, from the first on, builds a row for each payment; the rest a sum for each account and hour."""

PAYMENTS = {
    "p1": ("a1", "10.00", "00:05"),
    "p2": ("a2", "20.00", "00:10"),
    "p3": ("a1", "5.00", "01:05"),
    "p6": ("a2", "2.00", "02:30"),
    "p7": ("a1", "3.00", "00:50"),
    "p8": ("a2", "4.00", "03:05"),
    "p9": ("a1", "6.00", "04:10"),
    "p10": ("a2", "8.00", "01:15"),
    "p11": ("a5", "9.00", "05:00"),
}

SUMS = {
    ("a1", "00:00"): "13.00",
    ("a2", "00:00"): "20.00",
    ("a1", "01:00"): "5.00",
    ("a2", "01:00"): "8.00",
    ("a2", "02:00"): "2.00",
    ("a2", "03:00"): "4.00",
    ("a1", "04:00"): "6.00",
    ("a5", "05:00"): "9.00",
}
SO_FAR = {
    "p1": "10.00",
    "p7": "13.00",
    "p3": "18.00",
    "p9": "24.00",
    "p2": "20.00",
    "p10": "28.00",
    "p6": "30.00",
    "p8": "34.00",
    "p11": "9.00",
}
BALANCES = {
    "00:00": {"a1": ("13.00", 1), "a2": ("20.00", 0)},
    "01:00": {"a1": ("18.00", 1), "a2": ("28.00", 1)},
    "02:00": {"a1": ("18.00", 1), "a2": ("30.00", 1)},
    "03:00": {"a1": ("18.00", 2), "a2": ("34.00", 1)},
    "04:00": {"a1": ("24.00", 2), "a2": ("34.00", 2)},
    "05:00": {"a1": ("24.00", 2), "a2": ("34.00", 2), "a5": ("9.00", 0)},
}
"""Hour → account → what it has paid, and how often it has visited."""

SEEN = {"00:00": 14, "01:00": 28, "02:00": 41}
"""Hour → readings of each of five sensors until its end. One sensor has one more in each of the two hours after."""

ORDERS = {"o1": ("paid", "02:10"), "o3": ("paid", "01:20"), "o4": ("new", "03:30")}
REFUNDS = {"r1": "Ann", "r2": "Bob", "r3": "Ann", "r5": "Bob"}


LATER = {
    "at_before_planned": "00 01 03 04 05",
    "at_after_planned": "00 01 03 04 05",
    "at_after_staged": "00 01 03 04 05",
    "at_after_audits": "00 01 03 04 05",
    "at_after_staged_recorded": "00 01 03 04 05",
    "at_after_quarantine": "00 01 03 04 05",
    "at_before_published": "00 01 03 04 05",
    "at_after_published": "01 03 04 05",
    "at_after_published_recorded": "01 05",
    "at_after_watermark": "01 05",
    "at_after_committed": "01 05",
    "opened_fact": "00 01 03 04 05",
    "written_fact": "00 01 03 04 05",
    "late_fact": "00 01 05",
    "so_far_fact": "00 01 02 03 05",
    "balance_dim": "01 02 03 04 05",
    "refund_fact": "02 03",
    "seen_fact": "04",
    "order_fact": "00 01 02 03",
}
"""Target → the hours that sessions of this version build. What was published before comes out equal."""

TWICE = {"order_fact": "01"}
"""The same, of hours whose rows have changed again after the interrupted session had begun: once or twice."""


@pytest.fixture
def engine(tmp_path: Path, spark_server: str, s3: str) -> GoldenLake:
    return GoldenLake.unpack("engine", tmp_path, s3, LAKE_SPARK_REMOTE=spark_server)


def at(time: str) -> datetime:
    return datetime.fromisoformat(f"2026-01-01T{time}:00").replace(tzinfo=UTC)


def payments(*left_out: str) -> list[tuple[Any, ...]]:
    """The rows of a table of payments."""
    found = {name: row for name, row in PAYMENTS.items() if name not in left_out}
    return sorted((name, account, Decimal(amount), at(time)) for name, (account, amount, time) in found.items())


def tuples(lake: GoldenLake, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of a table, sorted."""
    return sorted(tuple(row[column] for column in columns) for row in lake.rows(table, *columns))


def paid(lake: GoldenLake, name: str) -> list[tuple[Any, ...]]:
    return tuples(lake, f"core.{name}", "payment_id", "account_id", "amount", "paid_at")


def balances(lake: GoldenLake) -> dict[str, dict[str, tuple[str, int]]]:
    found: dict[str, dict[str, tuple[str, int]]] = {}
    for at_hour, account, amount, visits in tuples(lake, "core.balance_dim", "at_hour", "account_id", "paid", "visits"):
        of_hour = found.setdefault(f"{at_hour:%H:%M}", {})
        assert account not in of_hour
        of_hour[account] = (str(amount), visits)
    return found


def finished(lake: GoldenLake) -> dict[tuple[str, str], dict[str, Any]]:
    """Target and session → its row of `etl.session`, of the sessions that are finished. No session has two."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in lake.rows("etl.session"):
        if row["state"] == "committed":
            key = row["process_name"].removeprefix("core."), row["session_id"]
            assert key not in found
            found[key] = row
    return found


def hours_built(sessions: dict[tuple[str, str], dict[str, Any]]) -> dict[str, str]:
    """Target → the hours that sessions have built, as often as they have, but those of `TWICE` once."""
    found: dict[str, list[str]] = {}
    for (target, _), row in sessions.items():
        for key in json.loads(row["built_hours"] or "[]"):
            hours = found.setdefault(target, [])
            if not (key[11:13] in hours and key[11:13] in TWICE.get(target, "")):
                hours.append(key[11:13])
    return {target: " ".join(sorted(hours)) for target, hours in found.items()}


def check_sessions(lake: GoldenLake, before: dict[tuple[str, str], dict[str, Any]]) -> dict[str, str]:
    """Check that the sessions of before and the later ones are listed; return the hours that the later ones built."""
    after = finished(lake)
    # A column that this version has added is null in them.
    assert {key: {name: after[key][name] for name in row} for key, row in before.items()} == before
    for target in {target for target, _ in after}:
        listed = {session["plan"]["session_id"] for session in lake.json("sessions", target)}
        assert {session for of, session in after if of == target} <= listed
    return hours_built({key: row for key, row in after.items() if key not in before})


def quarantined(lake: GoldenLake) -> Counter[tuple[str, str, str]]:
    """Target, payment and reason → how often it is in quarantine."""
    rows = lake.rows("etl.quarantine")
    return Counter((row["target"], json.loads(row["row"])["payment_id"], row["reason"]) for row in rows)


def write_externally(lake: GoldenLake, target: str) -> None:
    """Append what another program appends for the open session of a target of payments: the new rows that it plans."""
    opened = lake.json("session", "init", target)
    assert opened["plan"]["load"] == "append"
    (source,) = opened["plan"]["sources"]
    raw, table = lake.table("raw.payments"), lake.table(opened["table"])
    earlier = {row["payment_id"] for row in table.scan().to_arrow().to_pylist()}
    hours = {planned["hour"] for planned in opened["plan"]["hours"]}
    rows = [
        {**row, "paid_at": row["event_ts"]}
        for row in raw.scan(snapshot_id=source["to_snapshot_id"]).to_arrow().to_pylist()
        if row["payment_id"] not in earlier and row["amount"] >= 0 and f"{row['event_ts']:%Y-%m-%d-%H:00}" in hours
    ]
    written = pa.Table.from_pylist(rows, table.schema().as_arrow())
    table.append(written, snapshot_properties={"wap.id": opened["wap_id"]}, branch=None)


@pytest.mark.journey
@pytest.mark.timeout(1800)
def test_an_engine_goes_on_where_it_stopped(engine: GoldenLake) -> None:
    lake = engine
    before = finished(lake)
    # A payment of this one landed again. Its program did not write it again, which is right.
    assert "1 repeated" in lake("session", "publish", "written_fact")
    lake("catch-up", *(f"at_{point}" for point in POINTS))
    done = lake.run("catch-up")
    failed = [line for line in done.err.splitlines() if line.startswith("Error")]
    assert all("core.refund_fact" in line for line in failed), f"an hour is held, and nothing else fails: {done.text}"
    assert len(failed) == done.code

    for number, point in enumerate(POINTS):
        if number % 2:
            found = tuples(lake, f"core.at_{point}", "account_id", "paid_at", "amount")
            assert found == sorted((account, at(hour), Decimal(amount)) for (account, hour), amount in SUMS.items())
        else:
            assert paid(lake, f"at_{point}") == payments(), point
    assert paid(lake, "written_fact") == paid(lake, "opened_fact") == payments()
    assert paid(lake, "late_fact") == payments("p7", "p10"), "late rows wait"
    so_far = {name: str(amount) for name, amount in tuples(lake, "core.so_far_fact", "payment_id", "paid_so_far")}
    assert so_far == SO_FAR
    assert balances(lake) == {hour: BALANCES[hour] for hour in ("00:00", "01:00", "02:00")}, "the others are pending"
    assert tuples(lake, "core.order_fact", "order_id", "status", "ordered_at") == [
        (order, status, at(time)) for order, (status, time) in ORDERS.items()
    ]
    assert tuples(lake, "core.seen_fact", "sensor_id", "at_hour", "seen") == sorted(
        [(f"s{number}", at(hour), count) for number in range(5) for hour, count in SEEN.items()]
        + [("s3", at("03:00"), 42), ("s3", at("04:00"), 43)]
    )
    assert dict(tuples(lake, "core.refund_fact", "refund_id", "name")) == REFUNDS, "one hour is held"
    so_often = len(finished(lake))
    assert lake.run("catch-up").code == done.code
    assert len(finished(lake)) == so_often, "nothing is left to do"

    # What was missing comes: the pending hours and the held one are built, the late rows are written if wanted.
    lake.land("raw.visits", "visit_id,account_id,event_ts\nv4,a2,2026-01-01T04:00:00Z\n", through="2026-01-01-05:00")
    lake.land("raw.customers", "customer_id,name,event_ts\nc6,Eve,2026-01-01T03:00:00Z\n")
    lake("catch-up", "balance_dim", "refund_fact", "late_fact", "--deferred")
    assert balances(lake) == BALANCES
    assert dict(tuples(lake, "core.refund_fact", "refund_id", "name")) == {**REFUNDS, "r4": "Eve"}
    assert paid(lake, "late_fact") == payments()
    assert check_sessions(lake, before) == LATER
    of_payments = {f"core.{name}" for name in LATER.keys() - {"refund_fact", "seen_fact", "order_fact"}}
    assert quarantined(lake) == dict.fromkeys(
        ((target, payment, "negative") for target in of_payments for payment in ("n1", "n2")), 1
    )

    lake("erase", "customer", "c4")
    lake("erase", "--sweep")
    for customer in ("c3", "c4"):
        assert lake.json("erasure", "certify", "customer", customer)["nowhere"]
    assert dict(tuples(lake, "core.refund_fact", "refund_id", "name")) == {**REFUNDS, "r4": "Eve"}


@pytest.fixture
def waiting(tmp_path: Path, spark_server: str, s3: str) -> GoldenLake:
    return GoldenLake.unpack("waiting", tmp_path, s3, LAKE_SPARK_REMOTE=spark_server)


WAITED = {
    "p1": ("a1", "10.00", "00:05"),
    "p2": ("a2", "20.00", "01:10"),
    "p3": ("a1", "5.00", "02:05"),
    "p4": ("a1", "1.00", "05:30"),
    "p5": ("a2", "3.00", "07:20"),
    "p6": ("a1", "2.00", "00:40"),
    "p7": ("a2", "7.00", "06:45"),
    "p8": ("a1", "9.00", "08:10"),
    "p9": ("a2", "4.00", "03:15"),
    "p10": ("a1", "8.00", "09:05"),
}


WAITED_LATER = {
    "blocked_fact": "00 03 06 08 09",
    "published_fact": "03 09",
    "opened_fact": "00 03 06 08 09",
    "repaired_fact": "00 02 03 06 08 09",
    "reset_fact": "03 06 08 09",
    "skipped_fact": "00 09",
    "balance_dim": "01 02 03 04 05 06 07 08 09",
}
"""As `LATER`. The repair builds one hour more; the skipped hour is built when a person asks for it."""


def waited(*left_out: str) -> list[tuple[Any, ...]]:
    """The rows of a table of payments."""
    found = {name: row for name, row in WAITED.items() if name not in left_out}
    return sorted((name, account, Decimal(amount), at(time)) for name, (account, amount, time) in found.items())


def sums_until(hour: int) -> dict[str, Decimal]:
    """Account → what it has paid until the end of an hour."""
    found: dict[str, Decimal] = {}
    for account, amount, time in WAITED.values():
        if int(time[:2]) <= hour:
            found[account] = found.get(account, Decimal(0)) + Decimal(amount)
    return found


@pytest.mark.journey
@pytest.mark.timeout(1800)
def test_hours_that_wait_are_not_forgotten(waiting: GoldenLake) -> None:
    lake = waiting
    before = finished(lake)
    # The program of one external session writes now, and that of the other one has left nothing but the commit to do.
    write_externally(lake, "opened_fact")
    lake("session", "publish", "opened_fact")
    lake("session", "commit", "opened_fact")
    lake("session", "commit", "published_fact")
    assert paid(lake, "opened_fact") == paid(lake, "published_fact") == waited("p9", "p10"), "they have landed since"
    done = lake.run("catch-up")
    assert "core.blocked_fact" in done.err, "an audit has stopped its session"
    assert len([line for line in done.err.splitlines() if line.startswith("Error")]) == done.code == 1, done.text
    for name in ("repaired_fact", "reset_fact", "published_fact", "opened_fact"):
        assert paid(lake, name) == waited(), name
    found: dict[int, dict[str, Decimal]] = {}
    for hour, account, sum_of_account in tuples(lake, "core.balance_dim", "at_hour", "account_id", "paid"):
        assert account not in found.setdefault(hour.hour, {})
        found[hour.hour][account] = sum_of_account
    assert found == {hour: sums_until(hour) for hour in range(10)}

    # What came too late is skipped, which is no difference, until a person asks for it.
    assert paid(lake, "skipped_fact") == waited("p6", "p9")
    hours = ("2026-01-01-00:00", "2026-01-01-09:00")
    lake("verify", "skipped_fact", *hours)
    lake("rebuild", "skipped_fact", "2026-01-01-00:00", "2026-01-01-00:00")
    assert paid(lake, "skipped_fact") == waited("p9")
    lake("verify", "skipped_fact", *hours)

    declaration = lake.folder / "tables" / "core.blocked_fact.yaml"
    declaration.write_text(declaration.read_text().replace("quarantine_limit: 0", "quarantine_limit: 1"))
    lake("catch-up", "blocked_fact", "--again")
    assert paid(lake, "blocked_fact") == waited()
    assert check_sessions(lake, before) == WAITED_LATER
    assert quarantined(lake) == dict.fromkeys(((f"core.{target}", "n1", "negative") for target in WAITED_LATER), 1)
