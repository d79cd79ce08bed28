"""Offset ranges, against a look at each offset."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lake_assets.landing.records import RangeIndex, Ranges, first_offsets, last_offsets, next_offsets, union
from lake_assets_tests.landing.made import file

SPANS = st.tuples(st.integers(0, 12), st.integers(0, 5)).map(lambda span: (span[0], span[0] + span[1]))
RANGES = st.dictionaries(st.integers(0, 2), SPANS)


def places(ranges: Ranges) -> set[tuple[int, int]]:
    """Every partition and offset."""
    return {(p, offset) for p, (first, last) in ranges.items() for offset in range(first, last + 1)}


@given(st.lists(RANGES, max_size=12), RANGES)
def test_ranges_overlap_if_both_have_an_offset(several: list[Ranges], one: Ranges) -> None:
    expected = any(places(other) & places(one) for other in several)
    assert RangeIndex(several).overlaps(one) == expected


@given(st.lists(RANGES, max_size=6))
def test_a_union_reaches_from_the_least_offset_to_the_greatest(several: list[Ranges]) -> None:
    expected: dict[int, list[int]] = {}
    for ranges in several:
        for partition, offset in places(ranges):
            expected.setdefault(partition, []).append(offset)
    found = union(several)
    assert found == {partition: (min(offsets), max(offsets)) for partition, offsets in expected.items()}
    assert list(found) == sorted(found)


def test_first_last_and_next_offsets_of_files() -> None:
    files = [file("x", {0: (3, 5)}), file("y", {0: (6, 6), 1: (0, 2)})]
    assert first_offsets(files) == {0: 3, 1: 0}
    assert last_offsets(files) == {0: 6, 1: 2}
    assert next_offsets(files) == {0: 7, 1: 3}
