"""What maintenance expires and rewrites, against slow and obvious oracles: random histories, without tables."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lake_assets.incremental.operations.maintain import Link, partitions_to_compact, snapshots_to_expire


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Link], int | None]:
    """Snapshots that start from any earlier one, or from one that is gone; clocks that go back; any head, or none."""
    count = draw(st.integers(0, 12))
    links = [
        Link(i, draw(st.sampled_from([None, -1, *range(1, i), *[i - 1] * 5])) or None, draw(st.integers(0, 20)))
        for i in range(1, count + 1)
    ]
    return links, draw(st.sampled_from([None, *range(1, count + 1)]))


def is_ancestor(links: list[Link], old: int, head: int | None) -> bool:
    """Whether `old` is met on the way down from `head`, itself included."""
    by_id = {s.snapshot_id: s for s in links}
    if head is None or head not in by_id:
        return False
    return head == old or is_ancestor(links, old, by_id[head].parent_id)


def distance(links: list[Link], old: int, head: int | None) -> int:
    """Steps from `head` down to its ancestor `old`."""
    parents = {s.snapshot_id: s.parent_id for s in links}
    return 0 if head == old else 1 + distance(links, old, parents[head or 0])


def needed(links: list[Link], main: int | None, held: set[int], young: int, newest: int) -> set[int]:
    """Each snapshot with a reason of its own, and on main all between such a one and the head."""

    def has_a_reason(s: Link) -> bool:
        counted = is_ancestor(links, s.snapshot_id, main) and distance(links, s.snapshot_id, main) < newest
        return s.snapshot_id in held or s.committed_at_ms >= young or counted or s.snapshot_id == main

    reasons = {s.snapshot_id for s in links if has_a_reason(s)}
    on_main = {s.snapshot_id for s in links if is_ancestor(links, s.snapshot_id, main)}
    return reasons | {i for i in on_main for old in reasons & on_main if is_ancestor(links, old, i)}


@given(histories(), st.sets(st.integers(1, 14)), st.integers(0, 21), st.integers(0, 4))
def test_what_is_expired_is_what_nobody_needs(
    history: tuple[list[Link], int | None], held: set[int], young: int, newest: int
) -> None:
    links, main = history
    expired = snapshots_to_expire(links, main, held, young_ms=young, newest=newest)
    kept = needed(links, main, held, young, newest)
    assert expired == tuple(s.snapshot_id for s in links if s.snapshot_id not in kept)


@given(histories(), st.sets(st.integers(1, 14)))
def test_from_the_head_every_watermark_is_still_met(history: tuple[list[Link], int | None], marks: set[int]) -> None:
    links, main = history
    expired = set(snapshots_to_expire(links, main, marks, young_ms=100, newest=1))
    left = [s for s in links if s.snapshot_id not in expired]
    for mark in marks & {s.snapshot_id for s in links}:
        assert is_ancestor(left, mark, main) == is_ancestor(links, mark, main)
        assert mark in {s.snapshot_id for s in left}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 10))), st.integers(0, 10), st.integers(2, 4))
def test_partitions_with_many_small_files_are_compacted(files: list[tuple[str, int]], small: int, least: int) -> None:
    counts = {p: sum(1 for q, size in files if q == p and size < small) for p in "abc"}
    found = partitions_to_compact(files, small_bytes=small, min_files=least)
    assert found == {p: n for p, n in counts.items() if n >= least}
