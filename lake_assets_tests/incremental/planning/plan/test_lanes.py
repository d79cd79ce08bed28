"""Late rows that wait: nothing is lost, nothing waits too long, and new hours and corrections never wait."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.base.hours import HOUR, Grain
from lake_assets.incremental.declaration import Defer, Stateless
from lake_assets.incremental.engine import planning
from lake_assets.incremental.engine.model import (
    DeferredHour,
    LateRows,
    NoSession,
    PlanningInput,
    SessionPlan,
    wait_in_words,
)
from lake_assets.incremental.engine.planning import (
    committed_after,
    deferred_hours,
    pending_hours,
    plan,
)
from lake_assets.incremental.engine.source_changes import FileChange
from lake_assets_tests.incremental.planning.plan.random_inputs import (
    SPAN,
    START,
    grains,
    hours,
    some_hours,
    thorough,
    together,
)
from lake_assets_tests.incremental.planning.plan.world import Token, World, act, late, numbers, reset, run

RAW = "raw.a"
MORNING = datetime(2026, 1, 2, 9, tzinfo=UTC)
TWO_HOURS = Defer(older_than="2 hours", at_most="60 minutes")


@dataclass
class LaneWorld(World):
    """A stateless target with a policy, and a clock. Each file of a landing has one row, of one hour."""

    policy: Defer | None = None
    clock: datetime = MORNING
    committed_at: dict[int, datetime] = field(default_factory=dict)
    oldest: int = 1
    """The first snapshot that has not expired."""

    def land(self, name: str, effect: Any, touched: frozenset[int]) -> None:
        super().land(name, effect, touched)
        newest = self.history[name][-1]
        milliseconds = int(self.clock.timestamp() * 1000)
        self.history[name][-1] = replace(newest, committed_at_ms=milliseconds)
        self.committed_at[newest.snapshot_id] = self.clock

    def inputs(self, *, to_watermark: bool = False) -> PlanningInput:
        found = super().inputs(to_watermark=to_watermark)
        watermark = self.marks[RAW].snapshot_id or 0 if RAW in self.marks else 0
        history = tuple(range(self.oldest, watermark + 1))
        return replace(found, late=self.policy, now=self.clock, history=history)

    def published(self) -> set[Token]:
        """All rows of the target: an hour without rows may be there, or not."""
        return {token for rows in self.target.values() for token in rows}

    def unpublished(self) -> set[Token]:
        """All rows that have landed and that the target lacks."""
        newest = {RAW: len(self.history.get(RAW, []))}
        landed = self.tokens({RAW: 0}, newest, {"append", "rewrite"})
        return {token for token in landed if token not in self.target.get(token[2], frozenset())}

    def check_bounds(self) -> None:
        """Once nothing is due: what waits is late, appended, young and little; and the decision says until when."""
        decision = plan(self.inputs())
        assert isinstance(decision, NoSession)
        waiting = {token for token in self.unpublished() if token[2] not in self.bad | self.committed.held_hours}
        if self.policy is None:
            assert not waiting
            return
        effects = {s.snapshot_id: s.effect for s in self.history.get(RAW, [])}
        oldest = min((self.committed_at[number] for _, number, _ in waiting), default=None)
        for _, number, hour in waiting:
            assert effects[number] == "append"
            assert self.clock < self.committed_at[number] + self.policy.longest_wait
            last = max(together({hour}, self.grain))
            through = self.committed.complete_through
            assert through is not None
            assert last <= through
        assert self.policy.or_rows is None or len(waiting) < self.policy.or_rows
        shown = {each.hour for each in decision.deferred}
        assert {hour for _, _, hour in waiting} <= shown
        if oldest is not None:
            assert decision.look_again_at is not None
            assert self.clock < decision.look_again_at <= oldest + self.policy.longest_wait


def lane(policy: Defer | None, through: int = 9, grain: Grain = HOUR) -> LaneWorld:
    """All hours up to one are loaded, at the first moment of the clock."""
    world = LaneWorld(Stateless(), [RAW], grain, policy=policy)
    world.land(RAW, "append", frozenset(range(START, START + through + 1)))
    world.through[RAW] = START + through
    run(world, rounds=2)
    return world


policies = st.builds(
    Defer,
    older_than=st.integers(0, 4).map(lambda hours: timedelta(hours=hours)),
    at_most=st.sampled_from(["30 minutes", "60 minutes", "3 hours"]),
    or_rows=st.none() | st.integers(1, 9),
)
kinds = st.sampled_from(
    ["append", "append", "append", "rewrite", "none", "complete", "quiet", "quiet", "run", "later", "later", "rebuild"]
)
disturbances = st.sampled_from(["break", "mend", "new code", "expire", "reset", "append", "quiet"])
actions = st.lists(st.tuples(kinds | disturbances, st.just(0), some_hours, hours), max_size=25)


def quiet(world: LaneWorld) -> bool:
    """Run all that is due; whether nothing was stopped."""
    for _ in range(3 + 2 * SPAN):
        decision = plan(world.inputs())
        if isinstance(decision, NoSession):
            return True
        if not world.commit(decision):
            return False
        world.check()
    raise AssertionError("it does not come to rest")


@given(policies, grains, actions)
@settings(thorough, max_examples=150)
def test_nothing_waits_longer_than_declared_and_nothing_is_lost(
    policy: Defer, grain: Grain, steps: list[tuple[str, int, frozenset[int], int]]
) -> None:
    worlds = [lane(chosen, grain=grain) for chosen in (policy, None)]
    for world in worlds:
        for number, step in enumerate(steps):
            if step[0] == "later":
                world.clock += timedelta(minutes=1 + 7 * number)
            elif step[0] == "expire":
                world.oldest = len(world.history[RAW])
            elif step[0] != "quiet":
                act(world, step)
            elif quiet(world):
                world.check_bounds()
        world.land(RAW, "rewrite", frozenset(world.bad))
        world.bad.clear()
        world.through[RAW] = max(together({START + SPAN - 1}, grain))
        assert quiet(world)
        world.clock += policy.longest_wait
        assert quiet(world)
        assert not world.unpublished()
        assert not world.committed.pending | world.committed.held_hours
        assert not world.committed.deferred
        world.check()
    with_lane, without = worlds
    assert with_lane.published() == without.published()


@given(policies, grains, some_hours, some_hours, st.integers(0, SPAN - 1), st.integers(0, 6))
@settings(thorough, max_examples=100)
def test_exactly_the_old_hours_that_were_complete_wait(
    policy: Defer, grain: Grain, first: frozenset[int], second: frozenset[int], through: int, ahead: int
) -> None:
    policy = replace(policy, or_rows=None)
    world = lane(policy, through, grain)
    before = world.committed.complete_through
    assert before is not None
    for touched in (first, second):
        world.land(RAW, "append", touched)
    newest = START + through + ahead
    world.through[RAW] = newest
    ends = [h for h in range(START, before + 1) if max(together({h}, grain)) == h]
    old = [end for end in ends if end + policy.older_than_hours <= newest]
    expected = {h for h in together(first | second, grain) if old and h <= old[-1]}
    assert set(deferred_hours(world.inputs())) == expected


def test_new_hours_are_published_at_once_and_the_late_ones_with_one_session() -> None:
    world = lane(TWO_HOURS)
    world.land(RAW, "append", late(3, 9, 10))
    world.through[RAW] = START + 10
    decision = plan(world.inputs())
    assert isinstance(decision, SessionPlan)
    assert (decision.load, numbers(decision.hour_numbers), numbers(decision.pending)) == ("append", [9, 10], [3])
    assert decision.notes == (
        "hour 2026-01-01-03:00: up to 1 late rows are deferred since 2026-01-02 09:00 UTC, until 2026-01-02 10:00 UTC",
    )
    world.commit(decision)
    world.clock += timedelta(minutes=30)
    world.land(RAW, "append", late(2, 3))
    waits = plan(world.inputs())
    assert waits == NoSession(
        "wait",
        "hours 2026-01-01-02:00..2026-01-01-03:00: up to 3 late rows are deferred since 2026-01-02 09:00 UTC,"
        " until 2026-01-02 10:00 UTC",
        look_again_at=MORNING + timedelta(hours=1),
        deferred=(
            DeferredHour(START + 2, int(world.clock.timestamp() * 1000), 1, after=2),
            DeferredHour(START + 3, int(MORNING.timestamp() * 1000), 2, after=1),
        ),
    )
    assert numbers(pending_hours(world.committed, waits).hours) == [2, 3]
    world.clock = MORNING + timedelta(hours=1)
    due = plan(world.inputs())
    assert isinstance(due, SessionPlan)
    assert (due.load, numbers(due.hour_numbers), due.deferred) == ("append", [2, 3], ())
    assert due.late_rows == (LateRows(1, 2, late_hours(3)),), "hour 2 came after the watermark"
    assert due.hours[1].reason == "late rows, deferred since 2026-01-02 09:00 UTC, are due"
    world.commit(due)
    assert world.committed.deferred == ()
    assert isinstance(plan(world.inputs()), NoSession)


def test_each_snapshot_is_read_once_for_the_hours_that_wait_since_before_it() -> None:
    world = lane(TWO_HOURS)
    for number, touched in enumerate([(3, 10), (1, 3, 11), (2, 12)]):
        world.land(RAW, "append", late(*touched))
        world.through[RAW] = START + 10 + number
        run(world)
    world.clock += timedelta(hours=1)
    world.land(RAW, "append", late(2, 13))
    due = plan(world.inputs())
    assert isinstance(due, SessionPlan)
    assert (due.load, numbers(due.hour_numbers)) == ("append", [1, 2, 3, 13])
    assert due.late_rows == (
        LateRows(1, 2, late_hours(3)),
        LateRows(2, 3, late_hours(1, 3)),
        LateRows(3, 4, late_hours(1, 2, 3)),
    )
    assert [each.after for each in world.committed.deferred] == [2, 3, 1]
    world.commit(due)
    world.check()
    assert not world.unpublished()


@pytest.mark.parametrize("lacks", ["a snapshot", "its start", "the reason"])
def test_rows_that_no_history_shows_are_overwritten(lacks: str) -> None:
    world = lane(TWO_HOURS)
    world.land(RAW, "append", late(3, 10))
    world.through[RAW] = START + 10
    run(world)
    world.clock += timedelta(hours=1)
    if lacks == "a snapshot":
        world.oldest = 2
    elif lacks == "its start":  # state of an older version
        waiting = {hour: replace(waits, after=None) for hour, waits in world.committed.waiting.items()}
        world.committed = replace(world.committed, waiting=waiting)
    else:
        world.committed = world.committed.with_changed(dict.fromkeys(late(4), "changed"))
    due = plan(world.inputs())
    assert isinstance(due, SessionPlan)
    assert (due.load, due.late_rows) == ("overwrite", ())
    world.commit(due)
    world.check()


def test_an_hour_that_a_reset_left_pending_does_not_wait_for_its_newest_rows_alone() -> None:
    world = lane(TWO_HOURS)
    world.land(RAW, "append", late(3, 4))
    reset(world, late(3), "reset")
    world.land(RAW, "append", late(4))
    assert all_due(world) == {"overwrite"}
    assert not world.unpublished()


def test_a_reset_passes_deletions_so_that_rows_that_wait_are_not_appended() -> None:
    world = lane(TWO_HOURS)
    world.land(RAW, "append", late(3, 10))
    world.through[RAW] = START + 10
    run(world)
    world.land(RAW, "rewrite", late(3))
    reset(world, late(5), "reset")
    assert not world.committed.deferred
    assert all_due(world) == {"overwrite"}
    assert not world.unpublished()


def all_due(world: LaneWorld) -> set[str]:
    """Run all that is due now, and all that will be; how hours were written."""
    loads: set[str] = set()
    for _ in range(4):
        decision = plan(world.inputs())
        if isinstance(decision, NoSession):
            world.clock += timedelta(hours=1)
            continue
        loads.add(decision.load)
        world.commit(decision)
        world.check()
    return loads - {"none"}


def test_too_many_ranges_are_not_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MOST_READS", 2)
    world = lane(TWO_HOURS)
    for number in range(3):
        world.land(RAW, "append", late(number, 10 + number))
        world.through[RAW] = START + 10 + number
        run(world)
    world.clock += timedelta(hours=1)
    assert plan(world.inputs()).load == "overwrite"  # type: ignore[union-attr]


def late_hours(*numbers: int) -> tuple[int, ...]:
    return tuple(sorted(late(*numbers)))


def test_corrections_and_what_no_history_shows_never_wait() -> None:
    world = lane(TWO_HOURS)
    world.land(RAW, "append", late(3))
    world.land(RAW, "rewrite", late(4))
    found = plan(world.inputs())
    assert isinstance(found, SessionPlan)
    assert (numbers(found.hour_numbers), numbers(found.pending)) == ([4], [3])
    world.land(RAW, "rewrite", late(3))
    assert not deferred_hours(world.inputs())
    cut = replace(world.changes(RAW), how="expired")
    assert not deferred_hours(replace(world.inputs(), changes=(cut,)))


@pytest.mark.parametrize(("ahead", "waits"), [(-600, True), (30, True), (90, False)], ids=["past", "skewed", "future"])
def test_a_commit_of_the_future_does_not_wait_for_that_future(ahead: int, waits: bool) -> None:
    world = lane(TWO_HOURS)
    world.clock += timedelta(seconds=ahead)
    world.land(RAW, "append", late(3))
    world.clock -= timedelta(seconds=ahead)
    found = deferred_hours(world.inputs()).values()
    assert bool(found) is waits
    assert all(each.since_ms <= world.clock.timestamp() * 1000 for each in found)


def test_rows_are_counted_by_hour_if_known_and_else_at_most() -> None:
    world = lane(replace(TWO_HOURS, or_rows=40))
    world.land(RAW, "append", late(2, 3, 9))
    opened = FileChange("x", 60, 1, {}, (START + 2, START + 9), rows_by_hour=((START + 2, 5), (START + 9, 55)))
    bounds_only = FileChange("y", 30, 1, {}, (START + 2, START + 9))
    for files, expected in [((opened,), {2: 5, 3: 0}), ((opened, bounds_only), {2: 35, 3: 0})]:
        newest = replace(world.history[RAW][-1], added=files)
        world.history[RAW][-1] = newest
        assert {hour - START: waits.rows for hour, waits in deferred_hours(world.inputs()).items()} == expected
    world.history[RAW][-1] = replace(newest, added=(opened, replace(bounds_only, rows=35)))
    assert not deferred_hours(world.inputs()), "40 rows wait"


def test_a_deferred_hour_keeps_its_first_time_through_sessions_of_others_and_loses_it_when_it_is_built() -> None:
    world = lane(TWO_HOURS)
    world.land(RAW, "append", late(3, 4))
    world.through[RAW] = START + 10
    run(world)
    first = world.committed.deferred
    assert [(each.hour - START, each.since) for each in first] == [(3, MORNING), (4, MORNING)]
    world.clock += timedelta(minutes=10)
    act(world, ("rebuild", 0, late(4), 0))
    assert world.committed.deferred == first[:1]
    acknowledged = plan(world.inputs(), acknowledge=True)
    assert isinstance(acknowledged, NoSession)
    world.land(RAW, "append", late(3, 5))
    acknowledged = plan(world.inputs(), acknowledge=True)
    assert isinstance(acknowledged, SessionPlan)
    assert (acknowledged.load, acknowledged.hour_numbers) == ("append", ())
    after = committed_after(world.mode, world.committed, acknowledged, ())
    assert [(each.hour - START, each.since, each.rows) for each in after.deferred] == [
        (3, MORNING, 2),
        (5, MORNING + timedelta(minutes=10), 1),
    ]


def test_a_target_without_the_policy_any_more_builds_what_waits() -> None:
    world = lane(TWO_HOURS)
    world.land(RAW, "append", late(3, 10))
    world.through[RAW] = START + 10
    run(world)
    world.policy = None
    assert numbers(plan(world.inputs()).hour_numbers) == [3]  # type: ignore[union-attr]


def test_without_a_policy_the_words_name_no_end() -> None:
    assert wait_in_words([DeferredHour(START, 0, 7)], None) == (
        "hour 2026-01-01-00:00: up to 7 late rows are deferred since 1970-01-01 00:00 UTC"
    )
