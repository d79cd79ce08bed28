"""What maintenance expires, against a slow and obvious oracle: random histories, without tables."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.snapshots import Snapshot

from lake_assets.incremental.engine.retention import snapshots_to_expire


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Snapshot], int | None]:
    """Snapshots that start from any earlier one, or from one that is gone; clocks that go back; any head, or none."""
    count = draw(st.integers(0, 12))
    links = [
        Snapshot(  # type: ignore[call-arg]
            snapshot_id=i,
            parent_snapshot_id=draw(st.sampled_from([None, -1, *range(1, i), *[i - 1] * 5])) or None,
            timestamp_ms=draw(st.integers(0, 20)),
            manifest_list="",
        )
        for i in range(1, count + 1)
    ]
    return links, draw(st.sampled_from([None, *range(1, count + 1)]))


def is_ancestor(links: list[Snapshot], old: int, head: int | None) -> bool:
    """Whether `old` is met on the way down from `head`, itself included."""
    by_id = {s.snapshot_id: s for s in links}
    if head is None or head not in by_id:
        return False
    return head == old or is_ancestor(links, old, by_id[head].parent_snapshot_id)


def distance(links: list[Snapshot], old: int, head: int | None) -> int:
    """Steps from `head` down to its ancestor `old`."""
    parents = {s.snapshot_id: s.parent_snapshot_id for s in links}
    return 0 if head == old else 1 + distance(links, old, parents[head or 0])


def needed(links: list[Snapshot], main: int | None, held: set[int], young: int, newest: int) -> set[int]:
    """Each snapshot with a reason of its own, and on main all between such a one and the head."""

    def has_a_reason(s: Snapshot) -> bool:
        counted = is_ancestor(links, s.snapshot_id, main) and distance(links, s.snapshot_id, main) < newest
        return s.snapshot_id in held or s.timestamp_ms >= young or counted or s.snapshot_id == main

    reasons = {s.snapshot_id for s in links if has_a_reason(s)}
    on_main = {s.snapshot_id for s in links if is_ancestor(links, s.snapshot_id, main)}
    return reasons | {i for i in on_main for old in reasons & on_main if is_ancestor(links, old, i)}


@given(histories(), st.sets(st.integers(1, 14)), st.integers(0, 21), st.integers(0, 4))
def test_what_is_expired_is_what_nobody_needs(
    history: tuple[list[Snapshot], int | None], held: set[int], young: int, newest: int
) -> None:
    links, main = history
    expired = snapshots_to_expire(links, main, held, young_ms=young, newest=newest)
    kept = needed(links, main, held, young, newest)
    assert expired == [s.snapshot_id for s in links if s.snapshot_id not in kept]


@given(histories(), st.sets(st.integers(1, 14)))
def test_from_the_head_every_watermark_is_still_met(
    history: tuple[list[Snapshot], int | None], marks: set[int]
) -> None:
    links, main = history
    expired = set(snapshots_to_expire(links, main, marks, young_ms=100, newest=1))
    left = [s for s in links if s.snapshot_id not in expired]
    for mark in marks & {s.snapshot_id for s in links}:
        assert is_ancestor(left, mark, main) == is_ancestor(links, mark, main)
        assert mark in {s.snapshot_id for s in left}
