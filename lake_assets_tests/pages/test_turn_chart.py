"""The picture of turns, against a slow look at every moment of every line."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lake_assets.pages.charts import FREE, TAKEN, WIDTH, TakenTurn, turn_lines

NAMES = ("ingestion", "mutation", "retention")
LENGTHS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=9)


def test_turns_that_follow_each_other_stand_side_by_side() -> None:
    turns = [TakenTurn("ingestion", 100, 112), TakenTurn("mutation", 112, 118), TakenTurn("ingestion", 118, 124)]
    assert turn_lines(turns, NAMES) == [
        f"ingestion {TAKEN * 36}{FREE * 18}{TAKEN * 18}",
        f"mutation  {FREE * 36}{TAKEN * 18}{FREE * 18}",
        f"retention {FREE * 72}",
        f"{'':10}0 s{'24 s':>69}",
    ]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(LENGTHS)
def test_each_moment_of_a_turn_is_a_block_and_no_other_is(steps: list[tuple[str, int, int]]) -> None:
    """A pause before each turn; looked at in the middle of each character."""
    turns, now = [], 0.0
    for name, pause, length in steps:
        turns.append(TakenTurn(name, now + pause, now + pause + length))
        now = turns[-1].ended
    start, end = turns[0].began, turns[-1].ended
    width = (end - start) / WIDTH
    for name, line in zip(NAMES, turn_lines(turns, NAMES), strict=False):
        own = [turn for turn in turns if turn.stream == name]
        for place, cell in enumerate(line[len("ingestion ") :]):
            begins, ends = start + place * width, start + (place + 1) * width
            if any(turn.began <= begins and ends < turn.ended for turn in own):
                assert cell == TAKEN
            if all(turn.ended <= begins - width or ends <= turn.began for turn in own):
                assert cell == FREE
