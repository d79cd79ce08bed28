"""Which files are compacted together, against brute force over all paths of small graphs."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.errors import ConfigurationError, LandingError
from lake_assets.landing.operations import GroupLimits, candidates, select
from lake_assets.landing.records import DataFile, first_offsets, last_offsets, merged_ranges, next_offsets
from lake_assets_tests.landing.made import file

WIDE = GroupLimits(max_files=100, max_bytes=10_000)
LIMITS = st.builds(GroupLimits, st.integers(2, 5), st.integers(1, 20))
A = file("A", {1: (1, 2), 2: (1, 2)})
B = file("B", {3: (2, 3), 4: (2, 3)})
C = file("C", {2: (4, 6), 3: (4, 6)})
D = file("D", {1: (4, 6), 4: (4, 6)}, size=50)
E = file("E", {2: (7, 8)})


@st.composite
def lakes(draw: st.DrawFn) -> list[DataFile]:
    """Up to ten files over up to four partitions, laid down in one order: no cycle. Sizes and deletions vary."""
    ends = dict.fromkeys(range(4), 0)
    found = []
    for number in range(draw(st.integers(0, 10))):
        ranges = {}
        for partition in draw(st.sets(st.sampled_from(sorted(ends)), min_size=1, max_size=3)):
            first = ends[partition] + draw(st.integers(0, 1))
            last = first + draw(st.integers(0, 2))
            ends[partition], ranges[partition] = last + 1, (first, last)
        name = f"f{draw(st.integers(0, 9))}{number}"
        deletions = draw(st.sampled_from([(), (), (), ("r1",)]))
        found.append(file(name, ranges, size=draw(st.integers(1, 9)), deletions=deletions))
    return found


def follows(one: DataFile, other: DataFile) -> bool:
    """Whether other has a later offset of a partition that one has too."""
    return any(p in other.ranges and last < other.ranges[p][0] for p, (_, last) in one.ranges.items())


def has_cycle(files: Sequence[DataFile]) -> bool:
    """By taking away, again and again, what nothing comes before."""
    left = list(files)
    while left:
        first = [f for f in left if not any(follows(other, f) for other in left if other is not f)]
        if not first:
            return True
        left = [f for f in left if f not in first]
    return False


def is_consecutive(group: Sequence[DataFile], files: Sequence[DataFile]) -> bool:
    """R1, partition by partition."""
    for partition in {p for f in group for p in f.ranges}:
        chain = sorted((f for f in files if partition in f.ranges), key=lambda f: f.ranges[partition])
        if [inside for inside, _ in groupby(f in group for f in chain)].count(True) > 1:
            return False
    return True


def merged(group: Sequence[DataFile]) -> DataFile:
    name = "+".join(sorted(f.name for f in group))
    size = sum(f.size for f in group)
    return file(name, merged_ranges(group), size=size, deletions=group[0].deletions)


def replaced(files: Sequence[DataFile], groups: Iterable[Sequence[DataFile]]) -> list[DataFile]:
    """The files after a round: whether each pair follows is kept, for a merged file as for what it was made from."""
    chosen = list(groups)
    gone = {f.name for group in chosen for f in group}
    return [f for f in files if f.name not in gone] + [merged(group) for group in chosen]


def cycle_by_replacing(files: Sequence[DataFile], group: Sequence[DataFile]) -> bool:
    """Whether a path leaves the group and comes back: the group as one node, all that it was made from within."""
    outside = [f for f in files if f not in group]
    reached = [f for f in outside if any(follows(g, f) for g in group)]
    for f in reached:  # grows while it is walked
        if any(follows(f, g) for g in group):
            return True
        reached += [o for o in outside if o not in reached and follows(f, o)]
    return False


@settings(max_examples=300, deadline=None)
@given(lakes(), LIMITS)
def test_every_group_is_consecutive_convex_and_within_limits(files: list[DataFile], limits: GroupLimits) -> None:
    groups = select(files, limits)
    for group in groups:
        assert 2 <= len(group) <= limits.max_files
        assert sum(f.size for f in group) <= limits.max_bytes
        assert len({(f.shard, f.deletions) for f in group}) == 1
        assert is_consecutive(group, files)
        assert not cycle_by_replacing(files, group)
    assert not has_cycle(replaced(files, groups))
    assert len({f.name for group in groups for f in group}) == sum(map(len, groups))


@settings(max_examples=150, deadline=None)
@given(lakes(), LIMITS, st.randoms(use_true_random=False))
def test_the_order_of_files_does_not_matter(files: list[DataFile], limits: GroupLimits, chance: random.Random) -> None:
    shuffled = chance.sample(files, len(files))
    assert select(shuffled, limits) == select(files, limits)


@settings(max_examples=150, deadline=None)
@given(lakes(), LIMITS, st.integers(0, 10), st.integers(0, 10))
def test_up_to_a_cut_it_does_not_matter_what_lies_beyond(
    files: list[DataFile], limits: GroupLimits, at: int, seen: int
) -> None:
    """A cut at the first `at` files; a zone that has the first `seen` chooses what the other does, or nothing yet."""
    cut = last_offsets(files[:at])
    chosen = select(files[:at], limits)
    assert select(candidates(files, cut), limits) == chosen
    assert select(candidates(files[:seen], cut), limits) in ([], chosen)


@given(lakes())
def test_a_partition_begins_with_its_first_file_and_goes_on_behind_its_last(files: list[DataFile]) -> None:
    spans = [(partition, *span) for file in files for partition, span in file.ranges.items()]
    assert first_offsets(files) == {p: min(first for q, first, _ in spans if q == p) for p, _, _ in spans}
    assert next_offsets(files) == {p: 1 + max(last for q, _, last in spans if q == p) for p, _, _ in spans}


@settings(max_examples=100, deadline=None)
@given(lakes(), LIMITS)
def test_rounds_come_to_an_end(files: list[DataFile], limits: GroupLimits) -> None:
    for _ in range(len(files) + 1):
        groups = select(files, limits)
        if not groups:
            return
        files = replaced(files, groups)
    raise AssertionError("groups were still found after as many rounds as files")


@settings(max_examples=100, deadline=None)
@given(lakes())
def test_without_limits_and_deletions_all_that_is_convex_together_is_one_file(files: list[DataFile]) -> None:
    alike = [replace(f, deletions=frozenset()) for f in files]
    assert [len(group) for group in select(alike, WIDE)] == ([len(files)] if len(files) > 1 else [])


def test_the_worked_example() -> None:
    files = [E, D, C, B, A]
    assert cycle_by_replacing(files, [A, B, E])
    assert not is_consecutive([A, B, E], files)
    assert select(files, GroupLimits(max_files=4, max_bytes=10)) == [[A, B, C, E]]
    assert merged_ranges([A, B, C, E]) == {1: (1, 2), 2: (1, 8), 3: (2, 6), 4: (2, 3)}


def test_consecutive_in_each_partition_is_not_enough() -> None:
    first, between = file("first", {0: (0, 0)}), file("between", {0: (1, 1), 1: (0, 0)})
    last = file("last", {1: (1, 1)})
    files = [first, between, last]
    assert is_consecutive([first, last], files)
    assert cycle_by_replacing(files, [first, last])
    assert has_cycle([merged([first, last]), between])
    crowded = [replace(between, deletions=frozenset({"r1"})), first, last]
    assert select(crowded, WIDE) == []


def test_files_that_are_a_cycle_already_are_left_alone() -> None:
    one, other = file("one", {0: (0, 0), 1: (1, 1)}), file("other", {0: (1, 1), 1: (0, 0)})
    free = [file(f"free{n}", {2: (n, n)}) for n in range(2)]
    assert select([one, other, *free], WIDE) == [free]


@pytest.mark.parametrize("other", [(5, 9), (0, 0), (3, 4), (0, 9)])
def test_overlapping_offsets_are_refused(other: tuple[int, int]) -> None:
    with pytest.raises(LandingError, match="of partition 7 is in two files, "):
        select([file("one", {7: (0, 5)}), file("other", {7: other})], WIDE)


def test_files_of_two_shards_are_never_merged() -> None:
    assert select([A, replace(B, shard="t")], WIDE) == []


def test_a_cut_that_is_not_reached_has_no_candidates() -> None:
    assert candidates([A, C, E], {1: 2, 2: 8, 3: 6}) == [A, C, E]
    assert candidates([A, C], {1: 2, 2: 8, 3: 6}) == []
    assert candidates([A, C, E], {1: 2, 2: 5, 3: 6}) == []


def test_limits_that_allow_nothing_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="at most 1 files"):
        GroupLimits(1, 10)
