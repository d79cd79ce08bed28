"""What may be loaded next, against looking at each offset by itself."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lake_assets.landing.coverage import Cover, limit_ends, ready_ends, uncovered
from lake_assets.landing.records import Shard, complete

RANGES = st.dictionaries(
    st.integers(0, 2), st.tuples(st.integers(0, 12), st.integers(0, 5)).map(lambda r: (r[0], r[0] + r[1]))
)
SHARDS = st.sampled_from([Shard("t"), Shard("t"), Shard("t", 0, 2), Shard("t", 1, 2), Shard("t", 1, 4)])
COVERS = st.lists(st.builds(Cover, RANGES, st.sampled_from([True, True, True, False]), SHARDS), max_size=12)
STARTS = st.dictionaries(st.integers(0, 2), st.integers(0, 10))


def is_ready(covers: list[Cover], partition: int, offset: int) -> bool:
    spans = [(cover, cover.ranges[partition]) for cover in covers if partition in cover.ranges]
    over = [cover for cover, (first, last) in spans if first <= offset <= last]
    return all(cover.readable for cover in over) and complete(cover.shard for cover in over)


@given(COVERS, STARTS)
def test_each_partition_is_ready_up_to_the_first_offset_that_is_not(
    covers: list[Cover], starts: dict[int, int]
) -> None:
    expected = {}
    for partition, start in starts.items():
        end = start
        while is_ready(covers, partition, end):
            end += 1
        expected[partition] = end
    assert ready_ends(covers, starts) == expected
    assert limit_ends(starts, expected, max_offsets=2) == {p: min(end, starts[p] + 2) for p, end in expected.items()}


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(COVERS, STARTS, STARTS)
def test_what_is_not_covered_is_each_offset_that_is_not_ready(
    covers: list[Cover], starts: dict[int, int], ends: dict[int, int]
) -> None:
    for partition, holes in uncovered(covers, starts, ends).items():
        assert holes == sorted(holes)
        assert all(first <= last for first, last in holes)
        assert all(later > last + 1 for (_, last), (later, _) in pairwise(holes))
        assert partition in starts
    found = {(p, o) for p, holes in uncovered(covers, starts, ends).items() for a, b in holes for o in range(a, b + 1)}
    assert found == {
        (partition, offset)
        for partition, start in starts.items()
        for offset in range(start, ends.get(partition, start))
        if not is_ready(covers, partition, offset)
    }
