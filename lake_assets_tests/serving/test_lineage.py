"""The protocol: each rule on its own, and random histories against a slow oracle that keeps whole snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lake_assets.errors import EntryEnded, LakeError, ServingError, UsageError
from lake_assets.serving.lineage import (
    Change,
    LineageEntry,
    Retention,
    SegmentLineage,
    State,
    clean_up,
    delete_segments,
    end_replace,
    revert_replace,
    roll_back,
    routed,
    start_replace,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(hours=24)
MOMENT = timedelta(milliseconds=1)
DAILY = Retention(DAY, DAY)


class Table:
    """One table as a test plays it: its lineage, and the segments that are there."""

    def __init__(self) -> None:
        self.lineage, self.present, self.now = SegmentLineage("t"), set[str](), NOW

    @property
    def routed(self) -> frozenset[str]:
        return routed(self.lineage, self.present)

    def take(self, change: Change) -> frozenset[str]:
        self.lineage = change.lineage
        self.present -= change.deletions
        return change.deletions

    def start(self, sources: Iterable[str], targets: Iterable[str], *, force: bool = False, snapshots: int = 2) -> str:
        self.now += MOMENT
        started = start_replace(
            self.lineage,
            segments_from=sources,
            segments_to=targets,
            routed=self.routed,
            now=self.now,
            force=force,
            snapshots=snapshots,
        )
        self.take(started)
        return started.entry_id

    def end(self, entry_id: str) -> None:
        self.now += MOMENT
        self.take(end_replace(self.lineage, entry_id, ready=self.present, now=self.now))

    def push(self, targets: Iterable[str], *, snapshots: int = 2) -> str:
        """A whole one: all that is routed is replaced."""
        entry_id = self.start(sorted(self.routed), targets, snapshots=snapshots)
        self.present.update(targets)
        self.end(entry_id)
        return entry_id

    def revert(self, entry_id: str, *, force: bool = False) -> frozenset[str]:
        self.now += MOMENT
        return self.take(revert_replace(self.lineage, entry_id, present=self.present, now=self.now, force=force))

    def clean_up(self, retention: Retention = DAILY) -> frozenset[str]:
        return self.take(clean_up(self.lineage, present=self.present, now=self.now, retention=retention))


@pytest.fixture
def table() -> Table:
    return Table()


def refused(table: Table, error: type[LakeError], act: Callable[[], object], match: str | None = None) -> None:
    """It is, and nothing has changed."""
    before = table.lineage, set(table.present)
    with pytest.raises(error, match=match):
        act()
    assert (table.lineage, table.present) == before


def test_what_is_being_pushed_is_seen_from_its_end_on_and_what_it_replaces_until_then(table: Table) -> None:
    table.push(["a", "b"])
    second = table.start(["a", "b"], ["c"])
    table.present.add("c")
    assert table.routed == {"a", "b"}
    table.end(second)
    assert table.routed == {"c"}
    assert table.revert(second) == {"c"}
    assert table.routed == {"a", "b"}


def test_starts_that_are_refused(table: Table) -> None:
    first = table.push(["a", "b"])
    refused(table, ServingError, lambda: table.start([], []), match="neither a source nor a target")
    refused(table, ServingError, lambda: table.start(["x"], ["c"]), match="x")
    refused(table, ServingError, lambda: table.start([], ["a"]), match="see them already")
    refused(table, UsageError, lambda: table.start([], ["c"], snapshots=1))
    table.start(["a", "b"], ["c"])
    refused(table, ServingError, lambda: table.start(["a"], ["d"]), match="IN_PROGRESS")
    refused(table, ServingError, lambda: table.start([], ["c"]), match="names them")
    table.revert(next(e for e in table.lineage.entries if e != first), force=True)
    table.push(["d"])
    refused(table, ServingError, lambda: table.start(["a"], ["e"]), match="COMPLETED")
    refused(table, ServingError, lambda: table.start([], ["a"]), match="names them")


def test_ends_that_are_refused_and_one_that_comes_twice(table: Table) -> None:
    table.push(["a"])
    refused(table, EntryEnded, lambda: table.end("none"), match="has no entry")
    second = table.start(["a"], ["b"])
    refused(table, ServingError, lambda: table.end(second), match="b, which was not uploaded")
    table.present.add("b")
    table.present.remove("a")
    refused(table, ServingError, lambda: table.end(second), match="a, which no longer exists")
    table.present.add("a")
    table.end(second)
    before = table.lineage
    table.end(second)
    assert table.lineage == before
    table.revert(second)
    refused(table, EntryEnded, lambda: table.end(second), match="was reverted")


def test_reverts_that_are_refused(table: Table) -> None:
    first = table.push(["a"])
    second = table.push(["b"])
    third = table.start(["b"], ["c"], snapshots=3)
    refused(table, EntryEnded, lambda: table.revert("none"), match="has no entry")
    refused(table, ServingError, lambda: table.revert(third), match="in progress")
    refused(table, ServingError, lambda: table.revert(second), match=third)
    assert table.revert(third, force=True) == {"c"}
    refused(table, EntryEnded, lambda: table.revert(third, force=True), match="was reverted")
    table.present.remove("a")
    refused(table, ServingError, lambda: table.revert(second), match="a, which no longer exists")
    refused(table, ServingError, lambda: table.revert(first), match="replaces")


def test_deletions_that_are_refused(table: Table) -> None:
    def delete(*names: str) -> Change:
        return delete_segments(table.lineage, names, routed=table.routed)

    table.present.add("old")
    table.push(["a"])
    second = table.start(["a"], ["b"])
    table.present.add("stray")
    for name in ("a", "b", "stray"):
        refused(table, ServingError, partial(delete, name), match=name)
    table.revert(second, force=True)
    assert delete("b").deletions == {"b"}


def test_a_start_is_two_entries_when_it_comes_twice(table: Table) -> None:
    assert table.start([], ["a"]) != table.start([], ["b"])
    assert len(table.lineage.entries) == 2


def test_a_forced_start_reverts_what_overlaps_it_and_takes_its_targets_over(table: Table) -> None:
    table.push(["a", "b"])
    old = table.start(["a"], ["c", "d"])
    beside = table.start(["b"], ["e"])
    table.present.update("cd")
    new = table.start(["a"], ["d", "f"], force=True)
    assert table.lineage.entry(old).state is State.REVERTED
    assert table.lineage.entry(old).segments_to == ("c",)
    assert table.lineage.entry(beside).state is State.IN_PROGRESS
    assert "c" not in table.present
    again = table.start([], ["d", "f"], force=True)
    assert new not in table.lineage.entries
    assert table.lineage.entry(again).segments_to == ("d", "f")


def test_two_starts_without_sources_do_not_overlap(table: Table) -> None:
    first, second = table.start([], ["a"]), table.start([], ["b"], force=True)
    table.present.update("ab")
    table.end(first)
    table.end(second)
    assert table.routed == {"a", "b"}


def test_a_name_that_was_reverted_can_be_pushed_again_and_is_seen(table: Table) -> None:
    first = table.push(["a"])
    table.revert(first)
    table.push(["a"])
    assert table.routed == {"a"}
    assert first not in table.lineage.entries


@pytest.mark.parametrize("snapshots", [2, 3, 4])
def test_a_start_deletes_what_is_one_snapshot_too_many(table: Table, snapshots: int) -> None:
    for number in range(6):
        table.push([f"s{number}"], snapshots=snapshots)
    assert sorted(table.present) == [f"s{number}" for number in range(6 - snapshots, 6)]


def test_a_start_that_keeps_fewer_than_before_deletes_all_that_are_too_many(table: Table) -> None:
    reverted = [table.push([f"s{number}"], snapshots=6) for number in range(6)][-1]
    table.revert(reverted)
    table.push(["new"], snapshots=2)
    assert table.present == {"s4", "new"}


def test_a_start_from_a_part_of_a_snapshot_deletes_nothing(table: Table) -> None:
    table.push(["a"])
    table.push(["b", "c"])
    table.start(["b"], ["d"])
    assert table.present == {"a", "b", "c"}


def test_rolling_back_over_several_steps_is_all_or_nothing(table: Table) -> None:
    entries = [table.push([f"s{number}"], snapshots=4) for number in range(4)]

    def roll(entry_id: str) -> Change:
        return roll_back(table.lineage, entry_id, present=table.present, now=table.now)

    table.present.remove("s1")
    refused(table, ServingError, lambda: roll(entries[1]), match="no longer exists")
    table.present.add("s1")
    assert table.take(roll(entries[1])) == {"s1", "s2", "s3"}
    assert table.routed == {"s0"}


def test_clean_up_takes_two_cycles_and_is_strict(table: Table) -> None:
    first, second, third = table.push(["a"]), table.push(["b"], snapshots=3), table.push(["c"], snapshots=3)
    assert table.clean_up() == set()
    assert set(table.lineage.entries) == {second, third}  # the first replaced nothing
    table.now = table.lineage.entry(second).timestamp + DAY
    assert table.clean_up() == set()
    table.now += MOMENT
    assert table.clean_up() == {"a"}
    assert second in table.lineage.entries
    assert table.clean_up() == set()
    assert set(table.lineage.entries) == {third}
    table.now += 10 * DAY
    assert table.clean_up() == set()  # what the newest replaced is what can be gone back to
    assert table.routed == {"c"}
    assert first not in table.lineage.entries


def test_clean_up_ends_what_came_to_nothing(table: Table) -> None:
    table.push(["a"])
    left, reverted = table.start(["a"], ["b", "c"]), table.start([], ["d"])
    table.present.update("bd")
    table.lineage = revert_replace(table.lineage, reverted, present=table.present, now=table.now, force=True).lineage
    table.now = table.lineage.entry(left).timestamp + DAY
    assert table.clean_up() == set()
    assert {left, reverted} <= set(table.lineage.entries)
    table.now += 2 * MOMENT
    assert table.clean_up(Retention(replaced=DAY, lineage=2 * DAY)) == set()
    assert table.clean_up() == {"b", "d"}
    assert {left, reverted} <= set(table.lineage.entries)
    table.clean_up()
    assert not table.lineage.entries
    assert table.routed == {"a"}


def test_what_was_reverted_at_the_moment_of_the_newest_push_is_not_the_newest() -> None:
    pushed = LineageEntry("pushed", ("a",), ("b",), State.COMPLETED, NOW)
    reverted = LineageEntry("reverted", (), ("d",), State.REVERTED, NOW)
    lineage = SegmentLineage("t", {entry.id: entry for entry in (pushed, reverted)})
    assert clean_up(lineage, present={"a", "b", "d"}, now=NOW + DAY + MOMENT, retention=DAILY).deletions == {"d"}


def test_what_nobody_may_go_back_to_does_not_stay(table: Table) -> None:
    table.push(["a"])
    table.push(["b"])
    change = clean_up(table.lineage, present=table.present, now=table.now, retention=DAILY, banned=["a", "b"])
    assert change.deletions == {"a"}


class Histories(RuleBasedStateMachine):
    """Whole snapshots are pushed and taken back; killed pushes leave entries, killed clean-ups leave segments.

    The oracle knows no lineage: it keeps the snapshots that were switched to, as a stack.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = Table()
        self.stack: list[frozenset[str]] = [frozenset()]
        self.open: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        self.done: list[str] = []
        self.number = 0
        self.snapshots = 2  # of the last start

    @rule(size=st.integers(1, 3), force=st.booleans(), snapshots=st.integers(2, 4))
    def start(self, size: int, force: bool, snapshots: int) -> None:
        names = [f"s{self.number + i}" for i in range(size)]
        self.number += size
        sources = sorted(self.table.routed)
        self.table.now += MOMENT
        try:
            entry_id = self.table.start(sources, names, force=force, snapshots=snapshots)
        except ServingError as refused:
            if force or "already replaces" not in refused.problem:
                raise
            return
        self.snapshots = snapshots
        self.open = {k: v for k, v in self.open.items() if k in self.table.lineage.entries}
        self.open[entry_id] = frozenset(sources), frozenset(names)

    @rule(snapshots=st.integers(2, 4))
    def push(self, snapshots: int) -> None:
        name = f"s{self.number}"
        self.number += 1
        try:
            entry_id = self.table.push([name], snapshots=snapshots)
        except ServingError as refused:
            if "already replaces" not in refused.problem:
                raise
            return
        self.snapshots = snapshots
        self.stack.append(frozenset([name]))
        self.done.append(entry_id)

    @rule(data=st.data(), share=st.integers(0, 3))
    def upload(self, data: st.DataObject, share: int) -> None:
        if self.open:
            entry = self.table.lineage.entry(data.draw(st.sampled_from(sorted(self.open))))
            if entry.state is State.IN_PROGRESS:
                self.table.present.update(entry.segments_to[: share or None])

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if not self.open:
            return
        entry_id = data.draw(st.sampled_from(sorted(self.open)))
        sources, targets = self.open[entry_id]
        if self.table.routed != sources:
            return  # a writer of snapshots looks at that in the same write
        before = self.table.lineage
        try:
            self.table.end(entry_id)
        except ServingError as refused:
            if not isinstance(refused, EntryEnded) and "was not uploaded" not in refused.problem:
                raise
            assert self.table.lineage is before
            return
        assert targets <= self.table.present
        self.stack.append(targets)
        self.done.append(entry_id)
        del self.open[entry_id]

    @rule(data=st.data(), force=st.booleans())
    def revert(self, data: st.DataObject, force: bool) -> None:
        known = sorted(self.table.lineage.entries)
        if not known:
            return
        entry_id = data.draw(st.sampled_from(known))
        was, before = self.table.lineage.entry(entry_id), self.table.lineage
        try:
            self.table.revert(entry_id, force=force)
        except ServingError:
            assert self.table.lineage is before
            return
        if was.state is State.COMPLETED:
            assert self.stack.pop() == set(was.segments_to)
            self.done.pop()

    @rule(hours=st.sampled_from([1, 23, 25, 100]))
    def wait(self, hours: int) -> None:
        self.table.now += timedelta(hours=hours)

    @rule()
    def clean(self) -> None:
        self.table.clean_up()
        self.open = {k: v for k, v in self.open.items() if k in self.table.lineage.entries}

    @invariant()
    def readers_see_one_whole_snapshot(self) -> None:
        assert self.table.routed == self.stack[-1]
        assert self.stack[-1] <= self.table.present

    @invariant()
    def no_more_is_stored_than_the_snapshots_and_what_is_being_pushed(self) -> None:
        live = [e for e in self.table.lineage.entries.values() if e.state is State.IN_PROGRESS]
        named = {name for e in live for name in e.segments_to}
        whole = {name for snapshot in self.stack[-self.snapshots :] for name in snapshot}
        assert self.table.present <= whole | named


Histories.TestCase.settings = hypothesis_settings(max_examples=100, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase
