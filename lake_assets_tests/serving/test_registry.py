"""The nodes of served tables on a real ZooKeeper: compare-and-set, all or none, and segments bound to their entries."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from lake_assets.errors import EntryEnded, ServingError
from lake_assets.serving import registry as module
from lake_assets.serving.lineage import Change, LineageEntry, SegmentLineage, State
from lake_assets.serving.registry import LINEAGE, SEGMENTS, Registry, SegmentInfo, States
from lake_assets_tests.serving.scenario import World, fresh_name

if TYPE_CHECKING:
    from kazoo.client import KazooClient

AT = datetime(2026, 1, 1, tzinfo=UTC)
PUSH = LineageEntry("push", (), ("a", "b"), State.IN_PROGRESS, AT)
A = SegmentInfo("a", 1, 10, "0" * 64, AT, "push")
B = SegmentInfo("b", 2, 20, "1" * 64, AT + timedelta(hours=1), "push")


def write(served: World, *entries: LineageEntry, deletions: frozenset[str] = frozenset()) -> None:
    lineage = SegmentLineage(served.table, {entry.id: entry for entry in entries})
    served.registry.update(lambda states: {served.table: Change(lineage, deletions)}, served.table)


def version(served: World) -> int | None:
    return served.registry.read(served.table)[served.table].version


def test_a_table_has_no_version_until_its_first_write(served: World) -> None:
    state = served.registry.read(served.table)[served.table]
    assert (state.version, state.segments, state.routed) == (None, frozenset(), frozenset())
    assert served.table not in served.registry.tables()
    write(served, PUSH)
    assert version(served) == 0
    assert served.table in served.registry.tables()
    write(served, PUSH)
    assert version(served) == 0  # an unchanged lineage is not written


def test_segments_are_registered_once_and_give_the_lineage_a_new_version(served: World) -> None:
    write(served, PUSH)
    for _ in range(2):
        served.registry.register(served.table, "push", [A, B])
    state = served.registry.read(served.table)[served.table]
    assert (state.version, state.segments, state.routed) == (1, frozenset({"a", "b"}), frozenset())
    assert list(served.registry.infos(served.table, ["b", "unknown", "a"])) == [B, A]
    assert served.registry.read_by(served.table, ["a", "b"], AT) == {"a": AT}
    with pytest.raises(ServingError, match="cannot be pushed"):
        served.registry.register(served.table, "push", [SegmentInfo("a", 9, 10, "2" * 64, AT, "push")])


def test_segments_are_registered_only_while_their_entry_is_in_progress(served: World) -> None:
    write(served, PUSH)
    served.registry.check_in_progress(served.table, "push")
    write(served, PUSH.changed(State.REVERTED, AT))
    for entry_id, why in (("push", "was reverted"), ("other", "has no entry")):
        with pytest.raises(EntryEnded, match=why):
            served.registry.check_in_progress(served.table, entry_id)
        with pytest.raises(EntryEnded, match=why):
            served.registry.register(served.table, entry_id, [A])
    assert served.registry.read(served.table)[served.table].segments == frozenset()


def test_segments_are_deleted_with_the_lineage_that_gives_them_up(served: World) -> None:
    write(served, PUSH)
    served.registry.register(served.table, "push", [A, B])
    write(served, PUSH, deletions=frozenset({"b"}))  # also if the lineage stays as it is
    assert served.zk.get_children(f"{SEGMENTS}/{served.table}") == ["a"]
    write(served, PUSH.changed(State.REVERTED, AT), deletions=frozenset({"a", "b", "never registered"}))
    assert served.zk.get_children(f"{SEGMENTS}/{served.table}") == []
    assert version(served) == 3


def test_a_lost_compare_and_set_is_decided_again(served: World) -> None:
    write(served, PUSH)
    seen = []

    def decide(states: States) -> dict[str, Change]:
        lineage = states[served.table].lineage
        seen.append(sorted(lineage.entries))
        if len(seen) == 1:
            write(served, PUSH, LineageEntry("other", (), ("c",), State.COMPLETED, AT))
        return {served.table: Change(lineage.updated(PUSH.changed(State.COMPLETED, AT)), frozenset())}

    served.registry.update(decide, served.table)
    assert seen == [["push"], ["other", "push"]]
    assert served.states == [State.COMPLETED, State.COMPLETED]


def test_of_several_tables_all_are_written_or_none(served: World, monkeypatch: pytest.MonkeyPatch) -> None:
    other = fresh_name()
    write(served, PUSH)
    monkeypatch.setattr(module, "MAX_TRIES", 2)

    def decide(states: States) -> dict[str, Change]:
        served.zk.set(f"{LINEAGE}/{served.table}", served.zk.get(f"{LINEAGE}/{served.table}")[0])
        changed = states[served.table].lineage.updated(PUSH.changed(State.COMPLETED, AT))
        begun = SegmentLineage(other, {"push": PUSH})
        return {other: Change(begun, frozenset()), served.table: Change(changed, frozenset())}

    with pytest.raises(ServingError, match="2 times in a row"):
        served.registry.update(decide, served.table, other)
    assert served.states == [State.IN_PROGRESS]
    assert served.zk.exists(f"{LINEAGE}/{other}") is None


class Overlapped:
    """A client that asks for the segments of a table first when its lineage was written. asked: how often for some."""

    def __init__(self, found: World) -> None:
        self.found, self.asked = found, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.found.zk, name)

    def get_children_async(self, path: str) -> Any:
        self.asked += 1
        if self.asked == 1:
            write(self.found, PUSH.changed(State.REVERTED, AT))
        return self.found.zk.get_children_async(path)


def test_a_read_of_several_tables_is_repeated_if_one_of_them_was_written_meanwhile(served: World) -> None:
    write(served, PUSH)
    client = Overlapped(served)
    states = Registry(cast("KazooClient", client)).read(served.table, fresh_name())
    assert (client.asked, states[served.table].version) == (4, 1)
