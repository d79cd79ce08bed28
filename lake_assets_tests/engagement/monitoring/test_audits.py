"""Which batches were not told of just once, as far as the log of notifications reaches back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lake_assets.engagement.monitoring import unnotified


@given(st.integers(0, 9), st.sets(st.integers(1, 9)), st.lists(st.integers(1, 9)), st.integers(1, 9))
def test_each_batch_is_told_of_once(last: int, missing: set[int], again: list[int], oldest: int) -> None:
    """All batches up to `last` were told of, but for some, and some again; the log has forgotten those before one."""
    told = [b for b in [*range(1, last + 1), *again] if oldest <= b <= last and b not in missing]
    wrong = [b for b in range(1, 10) if b > last or (told and b >= min(told) and (b in missing or b in again))]
    assert unnotified(range(1, 10), told[::-1], last) == wrong


def test_without_any_notification_all_batches_are_named() -> None:
    assert unnotified([2, 1], [], 0) == [1, 2]
