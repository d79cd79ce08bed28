"""Which requests meet a row, against replay; and how long those that do not are tried."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.engagement.requests import MutationRequest, applicable, status_after_attempt
from lake_assets_tests.engagement.requests.test_aliases import since
from lake_assets_tests.engagement.requests.test_identity import HOURS, IDS, START, chain, histories

EARLIER = START - timedelta(minutes=1)
"""Before any request."""


def before_all(ids: Iterable[str]) -> list[tuple[str, datetime]]:
    """Rows of these ids that engaged before any request."""
    return [(identity, EARLIER) for identity in ids]


def test_a_request_meets_rows_that_an_earlier_one_brought() -> None:
    assert applicable(chain("1>2 2>3 1>4"), before_all("1")) == {"r0", "r1"}
    assert applicable(chain("2>3 1>2"), before_all("1")) == {"r1"}
    assert applicable(chain("1x 1>2"), before_all("1")) == {"r0"}


def test_a_request_meets_no_row_that_engaged_after_it() -> None:
    requests = chain("1>2 1>3 2>4")
    assert applicable(requests, [("1", START)]) == {"r0", "r2"}
    assert applicable(requests, [("1", START + timedelta(seconds=1))]) == {"r1"}
    assert applicable(requests, [("1", START), ("1", START + timedelta(seconds=1))]) == {"r0", "r1", "r2"}


@settings(max_examples=300, deadline=None)
@given(histories(3, HOURS), st.sets(st.tuples(st.sampled_from(IDS), st.integers(-1, 4))))
def test_those_that_meet_none_can_be_left_out(requests: list[MutationRequest], engaged: set[tuple[str, int]]) -> None:
    rows = [(identity, START + number * HOURS) for identity, number in sorted(engaged)]
    found = applicable(requests, [(identity, at, at.date()) for identity, at in rows])
    met = [request for request in requests if request.request_id in found]
    assert [since(met, *row) for row in rows] == [since(requests, *row) for row in rows]


@settings(max_examples=300, deadline=None)
@given(histories(), st.sets(st.sampled_from(IDS)), st.sets(st.tuples(st.sampled_from(IDS), st.integers(-1, 4))))
def test_while_none_was_applied_a_row_that_just_came_is_like_any_other(
    requests: list[MutationRequest], present: set[str], came: set[tuple[str, int]]
) -> None:
    arrived = [(identity, START + timedelta(minutes=minute)) for identity, minute in came]
    former = before_all(present)
    assert applicable(requests, former, as_sent=arrived) == applicable(requests, [*former, *arrived])


def test_a_request_is_tried_so_often_and_no_more() -> None:
    assert status_after_attempt(found=False, attempts=1, max_attempts=2) == "parked"
    assert status_after_attempt(found=False, attempts=2, max_attempts=2) == "dead"
    assert status_after_attempt(found=True, attempts=2, max_attempts=2) == "applied"
