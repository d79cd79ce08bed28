"""Requests in any order of time, cut into any batches, with rows that arrive between any of them: against replay.

The pure functions of a turn of mutation, put together as the stream does. A deleted row cannot come back: if a request
that was executed before a deletion arrives after it, the row stays deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.engagement.requests import MutationRequest, changed_aliases, in_order
from lake_assets_tests.engagement.requests.test_aliases import MINUTES, holding, since
from lake_assets_tests.engagement.requests.test_identity import HOURS, IDS, START, histories, request

Row = tuple[str, datetime, datetime]
"""The id that a row was sent with, when it engaged, and when it was sent."""
TURNS = 4
AT = st.integers(-1, MINUTES + 1)
ROWS = st.lists(st.tuples(st.sampled_from(IDS), AT, st.integers(0, TURNS - 1), AT), max_size=6)
"""Id, half day at which it engaged, turn of mutation before which it arrives, half day at which it was sent."""


@dataclass
class Lake:
    """What turns of mutation know, and where rows are: None for deleted ones."""

    known: list[MutationRequest] = field(default_factory=list)
    places: dict[int, str | None] = field(default_factory=dict)

    def turn(self, asked: Sequence[MutationRequest], rows: dict[int, Row], new: Sequence[int]) -> None:
        """A turn with requests. rows: all that arrived by then. new: those among them that came since the last turn."""
        ids = {each.request_id for each in self.known}
        batch = [each for each in in_order(asked) if each.request_id not in ids]
        self.places |= {row: rows[row][0] for row in new}
        changes = changed_aliases(iter(self.known), iter(batch), {rows[row][0] for row in new})
        for row, place in self.places.items():
            alias = holding(changes, *rows[row])
            if alias and place is not None:
                self.places[row] = alias[0].new_id
        self.known += batch


def played(
    requests: Sequence[MutationRequest], rows: Sequence[tuple[str, int, int, int]], turns: Sequence[int]
) -> tuple[list[str | None], list[str | None]]:
    """Where the rows end, in turns and by replay. turns: the turn of each request."""
    lake = Lake()
    arrived: dict[int, Row] = {}
    expected: dict[int, str | None] = {}
    sent: list[MutationRequest] = []
    for turn in range(TURNS):
        new = [number for number, row in enumerate(rows) if row[2] == turn]
        for number in new:
            who, engaged, _, was_sent = rows[number]
            arrived[number] = who, START + engaged * HOURS, START + was_sent * HOURS
        asked = [each for each, of in zip(requests, turns, strict=True) if of == turn]
        lake.turn(asked, arrived, new)
        seen = {each.request_id for each in sent}
        sent += [each for each in in_order(asked) if each.request_id not in seen]
        gone = {row for row, place in expected.items() if place is None}
        expected = {row: None if row in gone else since(sent, *arrived[row]) for row in arrived}
    return [lake.places[row] for row in range(len(rows))], [expected[row] for row in range(len(rows))]


@settings(max_examples=300, deadline=None)
@given(histories(MINUTES, HOURS), ROWS, st.lists(st.integers(0, TURNS - 1), min_size=10, max_size=10))
def test_any_cut_and_any_order_of_requests_leave_what_replay_leaves(
    requests: list[MutationRequest], rows: list[tuple[str, int, int, int]], turns: list[int]
) -> None:
    places, expected = played(requests, rows, turns[: len(requests)])
    assert places == expected


@settings(max_examples=150, deadline=None)
@given(
    histories(MINUTES, HOURS),
    ROWS,
    *2 * (st.lists(st.integers(0, TURNS - 1), min_size=10, max_size=10),),
    st.lists(st.integers(0, TURNS - 1), min_size=6, max_size=6),
)
def test_two_cuts_of_a_history_without_deletions_leave_the_same_rows(
    requests: list[MutationRequest],
    rows: list[tuple[str, int, int, int]],
    first: list[int],
    second: list[int],
    arrivals: list[int],
) -> None:
    """Each request id is there once: of two requests with one id, the one that comes first counts."""
    moves = [each for each in {r.request_id: r for r in requests}.values() if each.op != "delete"]
    at_other_times = [(who, at, turn, was) for (who, at, _, was), turn in zip(rows, arrivals, strict=False)]
    one, _ = played(moves, rows, first[: len(moves)])
    other, _ = played(moves, at_other_times, second[: len(moves)])
    assert one == other


def test_a_request_that_comes_late_turns_rows_off_the_way_that_they_have_gone() -> None:
    gone = [request(1, "convert", "a", "b"), request(3, "convert", "b", "c")]
    late = request(2, "convert", "b", "d")
    changes = changed_aliases(gone, [late], ())
    assert [(alias.old_id, alias.new_id) for alias in changes] == [("a", "d"), ("b", "d")]
