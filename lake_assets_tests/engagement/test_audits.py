"""Which batches were not told of just once, as far as the logs of both tables reach back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lake_assets.engagement.audits import unmatched

IDS = st.lists(st.integers(1, 8), max_size=10)


@given(IDS, st.integers(1, 8), st.integers(1, 8))
def test_logs_that_begin_anywhere_agree_from_where_both_tell(ids: list[int], one: int, other: int) -> None:
    written, told = [b for b in ids if b >= one], [b for b in ids if b >= other]
    if written and told:
        assert unmatched(written, told[::-1]) == []


@given(IDS.filter(bool), st.data())
def test_what_one_log_has_oftener_is_named(ids: list[int], data: st.DataObject) -> None:
    extra = data.draw(st.integers(min(ids), 9))
    assert unmatched([*ids, extra], ids) == unmatched(ids, [*ids, extra]) == [extra]


def test_batches_of_which_nothing_was_told_are_named() -> None:
    assert unmatched([2, 1], []) == [1, 2]
