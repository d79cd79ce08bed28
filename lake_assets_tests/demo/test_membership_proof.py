"""The demo's verdict follows from what was sent alone."""

from __future__ import annotations

from dataclasses import replace

from lake_assets.demo.membership import compare, expected_rows
from lake_assets.demo.membership_simulator import EXAMPLE, bad_batch, dirty_batch, worked_example
from lake_assets.membership import PIPELINE

POPULATION = replace(EXAMPLE, accounts=400)
SENT = [*worked_example(POPULATION), dirty_batch(POPULATION, hour=8)]
FACT = PIPELINE.target("signup_fact")


def test_all_that_was_sent_and_is_valid_is_expected() -> None:
    expected = expected_rows(SENT, start=PIPELINE.start_hour)
    sent = [row for landing in SENT for row in landing.rows["raw.signups"].to_pylist()]
    plans = {"basic", "standard", "premium", "family"}
    good = {row["signup_id"] for row in sent if row["plan"] in plans and row["event_ts"] is not None}
    found = {row["signup_id"] for row in expected[FACT.table]}
    assert found
    assert found <= good
    assert {row["state_hour"].hour for row in expected["core.account_state_dim"]} == set(range(9))
    assert expected["core.account_state_daily"] == []


def test_a_lost_row_is_missing_and_a_changed_one_is_both() -> None:
    rows = expected_rows(SENT, start=PIPELINE.start_hour)[FACT.table]
    assert compare(FACT.columns, rows, rows) == (0, 0)
    elsewhen = [{**row, "landed_at": None} for row in reversed(rows)]
    assert compare(FACT.columns, elsewhen, rows) == (0, 0)
    assert compare(FACT.columns, rows[1:], rows) == (1, 0)
    assert compare(FACT.columns, [{**rows[0], "plan": "gold"}, *rows[1:]], rows) == (1, 1)
    assert compare(FACT.columns, [*rows, rows[0]], rows) == (0, 1)


def test_a_repaired_batch_has_the_right_accounts() -> None:
    bad = bad_batch(POPULATION, hour=9)
    fixed = {r["signup_id"]: r["account_id"] for r in bad.repaired.rows["raw.signups"].to_pylist()}
    assert {signup: fixed[signup] for signup in bad.right} == bad.right
    assert None not in fixed.values()
