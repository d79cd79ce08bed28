"""Which requests meet a row, against replay; and how long those that do not are tried."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.engagement.requests.identity import MutationRequest, collapse
from lake_assets.engagement.requests.pending import applicable, status_after_attempt
from lake_assets_tests.engagement.oracle import replay
from lake_assets_tests.engagement.requests.test_identity import IDS, START, apply, chain, histories


def test_a_request_meets_rows_that_an_earlier_one_brought() -> None:
    assert applicable(chain("1>2 2>3 1>4"), {"1"}) == {"r0", "r1"}
    assert applicable(chain("2>3 1>2"), {"1"}) == {"r1"}
    assert applicable(chain("1x 1>2"), {"1"}) == {"r0"}


@settings(max_examples=1000, deadline=None)
@given(histories(), st.sets(st.sampled_from(IDS)))
def test_those_that_meet_none_can_be_left_out(requests: list[MutationRequest], present: set[str]) -> None:
    rows = {f"row of {identity}": identity for identity in present}
    found = applicable(requests, present)
    assert apply(collapse([r for r in requests if r.request_id in found]), rows) == replay(requests, rows)


@settings(max_examples=300, deadline=None)
@given(histories(), st.sets(st.sampled_from(IDS)), st.sets(st.tuples(st.sampled_from(IDS), st.integers(-1, 4))))
def test_while_none_was_applied_a_row_that_just_came_is_like_any_other(
    requests: list[MutationRequest], present: set[str], came: set[tuple[str, int]]
) -> None:
    arrived = [(identity, START + timedelta(minutes=minute)) for identity, minute in came]
    assert applicable(requests, present, arrived=arrived) == applicable(
        requests, present | {identity for identity, _ in came}
    )


def test_a_request_is_tried_so_often_and_no_more() -> None:
    assert status_after_attempt(found=False, attempts=1, max_attempts=2) == "parked"
    assert status_after_attempt(found=False, attempts=2, max_attempts=2) == "dead"
    assert status_after_attempt(found=True, attempts=2, max_attempts=2) == "applied"
