"""The next session of a target, by example: its hours, their reasons, and what waits."""

from __future__ import annotations

from dataclasses import replace

from lake_assets.base.hours import DAY
from lake_assets.incremental.declaration import Sequential, Stateful, Stateless
from lake_assets.incremental.engine.model import NoSession, SessionPlan
from lake_assets.incremental.engine.planning import plan, plan_rebuild
from lake_assets_tests.incremental.planning.plan.random_inputs import START, mark
from lake_assets_tests.incremental.planning.plan.world import World, late, loaded, numbers, played, rebuild, run


def test_the_worked_example() -> None:
    fact = loaded(["raw.signups"], Stateless(), 5)
    fact.land("raw.signups", "append", late(2, 3, 6))
    fact.through["raw.signups"] = START + 6
    decision = plan(fact.inputs())
    assert isinstance(decision, SessionPlan)
    assert (decision.load, numbers(decision.hour_numbers)) == ("append", [2, 3, 6])

    cancels = loaded(["raw.cancels", "core.cancel_request_fact"], Stateful(), 5)
    cancels.land("raw.cancels", "append", late(5, 6, 7))
    cancels.through = dict.fromkeys(cancels.names, START + 7)
    decision = plan(cancels.inputs())
    assert isinstance(decision, SessionPlan)
    assert (decision.load, numbers(decision.hour_numbers)) == ("overwrite", [5, 6, 7])

    facts: dict[str, int] = {"core.signup_fact": 6, "core.plan_fact": 6, "core.cancel_fact": 7}
    dimension = loaded([*facts], Sequential(), 5)
    for name, touched in zip(facts, [late(2, 3, 6), late(2, 3, 6), late(5, 6, 7)], strict=True):
        dimension.land(name, "append" if name != "core.cancel_fact" else "rewrite", touched)
        dimension.through[name] = START + facts[name]
    decision = plan(dimension.inputs())
    assert isinstance(decision, SessionPlan)
    assert (decision.load, numbers(decision.hour_numbers)) == ("overwrite", [2, 3, 4, 5, 6])
    assert (numbers(decision.pending), decision.complete_through) == ([7], START + 6)

    dimension.commit(decision)
    for name in facts:
        dimension.through[name] = START + 7
    decision = plan(dimension.inputs())
    assert isinstance(decision, SessionPlan)
    assert (decision.load, numbers(decision.hour_numbers), decision.pending) == ("overwrite", [7], ())


def test_what_waits_says_for_what() -> None:
    world = loaded(["raw.a", "raw.b"], Stateful(), 3)
    assert plan(world.inputs()) == NoSession("idle", "no new snapshot of raw.a, raw.b")
    world.land("raw.a", "append", late(5, 6))
    assert plan(world.inputs()) == NoSession(
        "wait",
        "hours 2026-01-01-05:00..2026-01-01-06:00 wait for"
        " raw.a, complete through 2026-01-01-03:00, raw.b, complete through 2026-01-01-03:00",
    )
    world.through["raw.b"] = None
    assert plan(world.inputs()) == NoSession(
        "wait",
        "hours 2026-01-01-05:00..2026-01-01-06:00 wait for"
        " raw.a, complete through 2026-01-01-03:00, raw.b, complete through nothing yet",
    )
    world.land("raw.b", "rewrite", late(2))
    decision = plan(world.inputs())
    assert isinstance(decision, SessionPlan), "what was complete once is rebuilt"
    assert numbers(decision.hour_numbers) == [2, 3]
    assert (numbers(decision.pending), decision.complete_through) == ([5, 6], None)

    world = World(Stateful(), ["raw.a", "raw.b"])
    world.through["raw.a"] = START + 3
    assert plan(world.inputs()) == NoSession(
        "wait", "raw.b: complete-through is not set yet, so no hour is known to be complete"
    )


def test_reasons_name_snapshot_column_and_hours() -> None:
    world = loaded(["raw.a"], Sequential(), 3)
    world.land("raw.a", "append", late(2))
    world.through["raw.a"] = START + 4
    decision = plan(world.inputs())
    assert isinstance(decision, SessionPlan)
    assert [p.reason for p in decision.hours] == [
        "append 2 of raw.a: event_ts 2026-01-01-02:00",
        "follows from hour 2026-01-01-02:00, which changed",
        "follows from hour 2026-01-01-02:00, which changed",
    ]


def test_hours_beyond_the_threshold_are_skipped_aloud_and_open_to_a_backfill() -> None:
    world = loaded(["raw.a"], Sequential(catchup_threshold=4), 9)
    world.land("raw.a", "append", late(3, 7))
    decision = plan(world.inputs())
    assert isinstance(decision, SessionPlan)
    assert (numbers(decision.skipped), numbers(decision.hour_numbers)) == ([3], [7])
    assert decision.notes[1:] == ("skipped, beyond the catch-up threshold, open to a backfill: 2026-01-01-03:00",)
    world.commit(decision)
    rebuild(world, late(3), "backfill")
    assert world.committed.skipped == frozenset()


def test_an_outage_longer_than_the_threshold_is_caught_up_in_full() -> None:
    world = loaded(["raw.a"], Sequential(catchup_threshold=2), 1)
    world.land("raw.a", "append", late(2, 9))
    world.through["raw.a"] = START + 12
    decision = plan(world.inputs())
    assert isinstance(decision, SessionPlan)
    assert (numbers(decision.hour_numbers), decision.skipped) == (list(range(2, 13)), ())


def test_a_late_hour_far_back_waits_behind_the_newest() -> None:
    world = loaded(["raw.a"], Stateful(chunk_hours=3), 5)
    world.land("raw.a", "append", late(1, 6))
    world.through["raw.a"] = START + 6
    assert played(world) == [([6], [1, 2, 3, 4, 5], []), ([1, 2, 3], [4, 5, 6], []), ([4, 5, 6], [], [])]
    assert world.committed.complete_through == START + 6


def test_a_sequential_target_stops_where_its_state_is_as_it_was() -> None:
    world = loaded(["raw.a", "raw.b"], Sequential(chunk_hours=3), 9)
    world.land("raw.a", "append", late(2, 8, 10))
    world.through = dict.fromkeys(world.names, START + 10)
    # From the earliest on, never on a state that is known to be wrong. Hour 3 has rows of its own: nothing follows.
    assert played(world) == [
        ([2], [8, 9, 10], [3, 4, 5, 6, 7, 9]),
        ([3, 4], [8, 9, 10], [5, 6, 7, 9]),  # of hour 2, the rows of raw.b are in the state of no later hour
        ([8, 9, 10], [], []),
    ]
    assert world.committed.complete_through == START + 10


def forgetful() -> World:
    """Hours 0 to 19 built of raw.a and raw.b; no hour is like another, because raw.b has no rows of late hours."""
    world = World(Sequential(chunk_hours=6), ["raw.a", "raw.b"])
    world.land("raw.a", "append", late(*range(20)))
    world.land("raw.b", "append", late(0))
    world.through = dict.fromkeys(world.names, START + 19)
    run(world, rounds=2)
    return world


def test_a_late_row_whose_effect_ends_at_once_recomputes_few_hours() -> None:
    world = loaded(["raw.a"], Sequential(), 19)
    world.land("raw.a", "append", frozenset())
    world.land("raw.a", "append", late(3))
    world.through["raw.a"] = START + 20
    first, *others = played(world)
    assert first == ([3], [], [*range(4, 20)])
    assert others == [([4, 5], [], [*range(6, 20)]), ([20], [], [])], "hour 3 did change; its state ends with hour 4"


def test_chunks_of_a_late_row_that_changes_every_later_hour_double() -> None:
    world = forgetful()
    world.land("raw.b", "append", late(3))
    assert [hours for hours, _, _ in played(world)] == [
        [3],
        [4, 5],
        [6, 7, 8, 9],
        [10, 11, 12, 13, 14, 15],
        [16, 17, 18, 19],
    ]
    world.through = dict.fromkeys(world.names, START + 40)
    assert [hours for hours, _, _ in played(world)] == [[*range(20, 41)]], "new hours are not cut"


def test_a_row_that_comes_later_still_begins_small_and_loses_no_hour_that_follows() -> None:
    world = forgetful()
    world.land("raw.b", "append", late(8))
    for length in (1, 2):
        decision = plan(world.inputs())
        assert isinstance(decision, SessionPlan)
        assert len(decision.hours) == length
        world.commit(decision)
    world.land("raw.a", "rewrite", frozenset())
    world.land("raw.a", "append", late(2))
    found = [hours for hours, _, _ in played(world)]
    assert (found[0], found[1]) == ([2], [3, 4])
    assert {hour for hours in found for hour in hours} >= set(range(11, 20))


def test_whole_chunks_begin_with_their_full_length() -> None:
    world = forgetful()
    world.land("raw.b", "append", late(3))
    decision = plan(replace(world.inputs(), whole_chunks=True))
    assert isinstance(decision, SessionPlan)
    assert numbers(decision.hour_numbers) == [3, 4, 5, 6, 7, 8]


def test_a_sequential_target_may_reload_its_whole_threshold_range() -> None:
    world = loaded(["raw.a"], Sequential(load="all", catchup_threshold=5, chunk_hours=2), 19)
    assert isinstance(plan(world.inputs()), NoSession), "nothing is due, so nothing is reloaded"
    world.land("raw.a", "append", late(3, 17))
    world.through["raw.a"] = START + 20
    decision = plan(world.inputs())
    assert isinstance(decision, SessionPlan)
    assert (numbers(decision.hour_numbers), numbers(decision.skipped)) == ([15, 16, 17, 18, 19, 20], [3])
    assert [p.reason for p in decision.hours][1:4] == [
        "reloaded with the whole catch-up threshold range, as declared",
        "append 2 of raw.a: event_ts 2026-01-01-17:00",
        "follows from hour 2026-01-01-17:00, which changed",
    ]
    world.commit(decision)
    world.through["raw.a"] = START + 21
    assert played(world) == [([16, 17, 18, 19, 20, 21], [], [])]


def test_a_rollback_that_is_undone_is_a_session_of_its_own() -> None:
    world = loaded(["raw.a"], Stateless(), 3)
    world.land("raw.a", "append", late(2))
    first = plan(world.inputs())
    assert isinstance(first, SessionPlan)
    world.commit(first)
    world.marks = {"raw.a": mark("raw.a", 1, START + 3)}  # rolled back, and the rows taken out again
    again = plan(world.inputs())
    assert isinstance(again, SessionPlan)
    assert again.session_id != first.session_id


def test_what_a_source_calls_incomplete_again_is_kept_right_where_it_was_built() -> None:
    world = loaded(["raw.a", "raw.b"], Sequential(), 6)
    world.through["raw.b"] = START + 2
    world.land("raw.a", "append", late(1, 3, 5))
    decision = plan(world.inputs())
    assert isinstance(decision, SessionPlan)
    assert numbers(decision.hour_numbers) == list(range(1, 6))
    assert decision.complete_through is None


def test_a_day_is_rebuilt_as_a_whole_once_it_is_complete() -> None:
    world = World(Stateful("changed"), ["core.hourly"], DAY)
    world.land("core.hourly", "append", late(3, 30))
    world.through["core.hourly"] = START + 22
    assert plan(world.inputs()) == NoSession(
        "wait", "no day is complete yet: 2026-01-01 waits for core.hourly, complete through 2026-01-01-22:00"
    )
    world.through["core.hourly"] = START + 30
    decision = plan(world.inputs())
    assert isinstance(decision, SessionPlan)
    assert numbers(decision.hour_numbers) == list(range(24))
    assert {p.reason for p in decision.hours} == {"append 1 of core.hourly: event_ts 2026-01-01-03:00"}
    assert (numbers(decision.pending), decision.complete_through) == (list(range(24, 48)), START + 23)

    world.commit(decision)
    assert plan(world.inputs()) == NoSession(
        "wait", "days 2026-01-02 wait for core.hourly, complete through 2026-01-02-06:00"
    )
    inputs = world.inputs(to_watermark=True)
    decision = plan_rebuild(inputs, late(5, 40), present=(), token="t")
    assert isinstance(decision, SessionPlan)
    assert numbers(decision.hour_numbers) == list(range(24))
    assert decision.notes == ("left out, not complete yet: 2026-01-02",)


def test_a_stateless_day_takes_rows_as_they_come() -> None:
    world = World(Stateless(), ["raw.a"], DAY)
    world.land("raw.a", "append", late(3))
    world.through["raw.a"] = START + 5
    decision = plan(world.inputs())
    assert isinstance(decision, SessionPlan)
    assert (decision.load, decision.envelope, decision.complete_through) == ("append", (START, START + 23), START + 5)
