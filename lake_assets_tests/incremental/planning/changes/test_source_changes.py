"""Whether a source has moved since its watermark, and ranges of hours, against looking at each hour by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_assets.incremental.engine.source_changes import SourceChanges, Watermark, merge_ranges

RANGES = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 4)).map(lambda found: (found[0], sum(found))), max_size=8
)


@given(RANGES)
def test_merged_ranges_have_the_same_hours_and_a_gap_between_them(ranges: list[tuple[int, int]]) -> None:
    hours = {hour for first, last in ranges for hour in range(first, last + 1)}
    firsts = sorted(hour for hour in hours if hour - 1 not in hours)
    lasts = sorted(hour for hour in hours if hour + 1 not in hours)
    assert merge_ranges(ranges) == tuple(zip(firsts, lasts, strict=True))


@pytest.mark.parametrize(
    ("since", "head", "moved"),
    [
        (None, (None, None), False),
        (None, (1, None), True),
        (None, (None, 5), True),
        ((1, 5), (1, 5), False),
        ((1, 5), (2, 5), True),
        ((1, 5), (1, 6), True),
        ((1, None), (1, 5), True),
    ],
)
def test_a_source_has_moved_by_its_head_or_by_its_complete_through(
    since: tuple[int, int] | None, head: tuple[int | None, int | None], moved: bool
) -> None:
    def mark(snapshot_id: int | None, complete_through: int | None) -> Watermark:
        return Watermark("raw.a", "uuid", snapshot_id, complete_through=complete_through)

    found = SourceChanges("raw.a", "at", mark(*since) if since else None, mark(*head))
    assert found.moved == moved
