"""How a session ends, and what it leaves: through the command line, the tables, and death at named points."""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from typing import Any

from lake_assets_tests.doors.lake_door import LakeDoor
from lake_assets_tests.doors.test_first_steps import PAYMENT_FACT

FACT = "core.payment_fact"
HEADER = "payment_id,account_id,amount,event_ts"
DIED = 137


def csv(*rows: str) -> str:
    return "\n".join([HEADER, *rows, ""])


def row(number: int, time: str, amount: str = "1.00") -> str:
    return f"p{number},a1,{amount},2026-01-01T{time}:00Z"


def payments(lake: LakeDoor) -> dict[str, Decimal]:
    found = {each["payment_id"]: each["amount"] for each in lake.rows(FACT)}
    assert len(found) == len(lake.rows(FACT)), "a row is there twice"
    return found


def state(lake: LakeDoor) -> dict[str, Any]:
    """What the last session has left, in the summary of the snapshot that the tag names."""
    table = lake.table(FACT)
    tagged = table.snapshot_by_id(table.metadata.refs["lake-published"].snapshot_id)
    assert tagged is not None
    assert tagged.summary is not None
    summary = tagged.summary.additional_properties
    found: dict[str, Any] = {**json.loads(summary["lake.state"]), "n": int(summary["lake.n"])}
    return found


def logged(lake: LakeDoor) -> list[tuple[str, int]]:
    return sorted((each["state"], each["revision"]) for each in lake.rows("etl.session"))


def test_one_commit_ends_a_session_wherever_its_process_dies(lake: LakeDoor) -> None:
    lake.declare(PAYMENT_FACT)
    lake("init")
    lake.land("raw.payments", csv(row(1, "00:05"), row(2, "01:05")), through="2026-01-01-01:00")
    for point in ("after-planned", "after-staged", "before-committed"):
        assert lake.run("catch-up", LAKE_FAILPOINT=point).code == DIED
        assert lake.table(FACT).current_snapshot() is None
        assert lake.rows("etl.session") == lake.rows("etl.high_watermark") == []
    assert lake.run("catch-up", LAKE_FAILPOINT="after-committed").code == DIED
    assert payments(lake) == {"p1": Decimal(1), "p2": Decimal(1)}, "it has happened"
    assert (state(lake)["n"], logged(lake)) == (1, []), "only the log lacks it"

    waits = lake.run("signal", "payment_fact", "--wait-for", "2026-01-01-02:00", "--timeout", "0")
    assert (waits.code, waits.out) == (1, f"{FACT} is complete through 2026-01-01-01:00.\n")
    lake.land("raw.payments", csv(row(3, "01:30"), row(4, "02:05")), through="2026-01-01-02:00")
    before = len(list(lake.table(FACT).metadata.snapshots))
    lake("catch-up")
    assert sorted(payments(lake)) == ["p1", "p2", "p3", "p4"]
    assert (state(lake)["n"], logged(lake)) == (2, [("committed", 1), ("committed", 2)])
    assert len(list(lake.table(FACT).metadata.snapshots)) == before + 1, "a session is one snapshot of its target"
    assert lake.json("signal", "payment_fact", "--wait-for", "2026-01-01-02:00")["is_complete"]
    sessions = lake.json("sessions", "payment_fact")
    assert [len(each["built"]) for each in sessions] == [2, 2]

    # The log is for people: without it nothing is lost, and no target is built again.
    for name in ("etl.session", "etl.high_watermark"):
        lake.catalog.drop_table(name)
    lake("init")
    lake.land("raw.payments", csv(row(5, "03:05")), through="2026-01-01-03:00")
    lake("catch-up")
    assert sorted(payments(lake)) == ["p1", "p2", "p3", "p4", "p5"]
    assert state(lake)["n"] == 3


def test_what_others_do_to_a_target_is_rebuilt_and_a_rollback_stops_it(lake: LakeDoor) -> None:
    lake.declare(PAYMENT_FACT)
    lake("init")
    lake.land("raw.payments", csv(row(1, "00:05"), row(2, "01:05")), through="2026-01-01-01:00")
    lake("catch-up")
    first = lake.table(FACT).metadata.current_snapshot_id
    lake.land("raw.payments", csv(row(3, "02:05")), through="2026-01-01-02:00")
    lake("catch-up")

    # Somebody patches by hand at night.
    lake.table(FACT).delete("payment_id = 'p1'")
    lake.table(FACT).append(lake.table(FACT).scan("payment_id = 'p2'").to_arrow())
    planned = lake.json("plan", "payment_fact")
    assert [hour["hour"] for hour in planned["hours"]] == ["2026-01-01-00:00", "2026-01-01-01:00"]
    assert "no session made" in planned["hours"][0]["reason"]
    assert lake.run("catch-up", LAKE_FAILPOINT="after-committed").code == DIED
    assert sorted(payments(lake)) == ["p1", "p2", "p3"]

    assert first is not None
    lake.table(FACT).manage_snapshots().set_current_snapshot(snapshot_id=first).commit()
    assert "rolled back" in lake.refused("catch-up")
    assert sorted(payments(lake)) == ["p1", "p2"], "a person has to say what is to be done"
    lake("repair", "payment_fact")
    lake("catch-up")
    assert sorted(payments(lake)) == ["p1", "p2", "p3"]
    lake("verify", "payment_fact")
    numbers = [number for state, number in logged(lake) if state == "committed"]
    assert numbers == list(range(1, len(numbers) + 1)), "also the session whose process died is in the log"


def test_commands_say_which_hours_other_code_has_built(lake: LakeDoor) -> None:
    lake.declare(PAYMENT_FACT)
    lake("init")
    lake.land("raw.payments", csv(row(1, "00:05"), row(2, "01:05"), row(3, "02:05")), through="2026-01-01-02:00")
    lake("catch-up")
    same = "-- a comment\nselect payment_id,  account_id,\n  amount, event_ts AS paid_at FROM payments"
    lake.declare({**PAYMENT_FACT, "sql": same})
    lake("check", "tables")
    assert "built by other code" not in lake("plan", "payment_fact"), "a comment and white space build no row"

    doubled = (
        "SELECT payment_id, account_id, CAST(2 * amount AS decimal(9, 2)) AS amount, event_ts AS paid_at FROM payments"
    )
    lake.declare({**PAYMENT_FACT, "sql": doubled})
    lake("check", "tables")
    text = lake("plan", "payment_fact").replace("\n", " ")
    assert "built by other code: 2026-01-01-00:00..2026-01-01-02:00 (3 hours)" in text
    assert "lake rebuild payment_fact 2026-01-01-00:00 2026-01-01-02:00" in text
    assert "built by other code" in json.dumps(lake.json("report")["data_path"]), "the report says it, too"
    lake("catch-up")
    assert set(payments(lake).values()) == {Decimal(1)}, "nothing is rebuilt by itself"

    lake.land("raw.payments", csv(row(4, "03:05")), through="2026-01-01-03:00")
    assert "built by other code" in lake("catch-up").replace("\n", " ")
    lake("rebuild", "payment_fact", "2026-01-01-01:00", "2026-01-01-01:00")
    assert payments(lake) == {"p1": 1, "p2": 2, "p3": 1, "p4": 2}
    text = lake("plan", "payment_fact").replace("\n", " ")
    assert "2026-01-01-00:00, 2026-01-01-02:00 (2 hours)" in text
    lake("rebuild", "payment_fact", "2026-01-01-00:00", "2026-01-01-02:00")
    assert "built by other code" not in lake("plan", "payment_fact")
    assert set(payments(lake).values()) == {Decimal(2)}
    built = {each["code_version"] for each in lake.rows("etl.session")}
    assert len(built) == 2


def test_a_session_that_an_audit_stops_waits_and_its_rows_come_once(lake: LakeDoor) -> None:
    lake.declare(
        {
            **PAYMENT_FACT,
            "audits": [
                "unique_key",
                {"sql": {"name": "small", "query": "SELECT payment_id, paid_at FROM {staged} WHERE amount > 100"}},
            ],
        }
    )
    lake("init")
    lake.land("raw.payments", csv(row(1, "00:05", "500")), through="2026-01-01-00:00")
    assert "small" in lake.refused("catch-up")
    assert lake.table(FACT).current_snapshot() is None
    assert [each for each, _ in logged(lake)] == ["blocked"]
    assert "stopped by an audit" in lake.run("catch-up").text.replace("\n", " ")
    lake.land("raw.payments", csv(row(2, "01:05")), through="2026-01-01-01:00")
    lake.run("catch-up")
    assert lake.values(FACT, "payment_id") == ["p2"], "the other hour is published, this one is held back"
    lake.declare({**PAYMENT_FACT, "audits": ["unique_key"]})
    lake("catch-up")
    assert lake.values(FACT, "payment_id") == ["p1", "p2"]
    assert isinstance(lake.rows("etl.session")[0]["started_at"], datetime)
