"""Plans of targets by local day, against plans of days of 24 hours: the same days, whatever their number of hours."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.base.hours import DAY, Grain, days_in, parse_hour
from lake_assets.incremental.declaration import Sequential, Stateful, Stateless
from lake_assets.incremental.engine.model import (
    Committed,
    Decision,
    HeldHour,
    PlanningInput,
    SessionPlan,
    Waiting,
    in_whole_partitions,
)
from lake_assets.incremental.engine.planning import plan, plan_rebuild
from lake_assets_tests.incremental.planning.plan.random_inputs import (
    PROCESS,
    mark,
    snapshot,
    source_changes,
    thorough,
    waiting,
)

NEW_YORK = days_in("America/New_York")
SPRING = NEW_YORK.number(parse_hour("2026-03-04-12:00"))
AUTUMN = NEW_YORK.number(parse_hour("2026-10-28-12:00"))
"""Days before the fifth one from them, which has 23 or 25 hours."""
SPAN = 9

days = st.integers(0, SPAN - 1)
some_days = st.frozensets(days, max_size=3)
lengths = st.none() | st.integers(1, 5).map(lambda number: 24 * number - 7)
modes = st.one_of(
    st.just(Stateless()),
    st.builds(Stateful, load=st.sampled_from(["range", "changed"]), catchup_threshold=lengths, chunk_hours=lengths),
    st.builds(Sequential, catchup_threshold=lengths, chunk_hours=lengths),
)
drawn = st.fixed_dictionaries(
    {
        "mode": modes,
        "first": st.sampled_from([SPRING, AUTUMN]),
        "changed": some_days,
        "through": days,
        "pending": some_days,
        "skipped": some_days,
        "held": some_days,
        "built": days,
        "chunk": st.integers(0, 2),
        "whole_chunks": st.booleans(),
    }
)


def inputs(grain: Grain, found: dict[str, Any]) -> PlanningInput:
    """The drawn days as hours of a grain."""

    def hours(numbers: frozenset[int]) -> frozenset[int]:
        return grain.whole(grain.start(found["first"] + number) for number in numbers)

    def last(number: int) -> int:
        return grain.start(found["first"] + number + 1) - 1

    mode = found["mode"]
    pending = hours(found["pending"])
    held = frozenset() if isinstance(mode, Sequential) else hours(found["held"])
    built = range(grain.start(found["first"]), grain.start(found["first"] + found["chunk"]))
    # A late row touches one hour of its day.
    touched = frozenset(last(number) - 1 for number in found["changed"])
    head = mark("raw.s", 101, last(found["through"]) + 5)
    change = source_changes("raw.s", mark("raw.s", 100, None), head, [snapshot(101, "append", touched)])
    committed = Committed(
        waiting=waiting(
            pending=pending,
            skipped=hours(found["skipped"]),
            held=[HeldHour(hour, "audit x: 1 bad", "s", "old") for hour in sorted(held)],
        ),
        last_built=None if isinstance(mode, Stateless) else last(found["built"]),
        complete_through=last(found["built"]),
        chunk_hours=len(built),
    )
    start = grain.start(found["first"])
    whole_chunks = found["whole_chunks"]
    return PlanningInput(PROCESS, mode, (change,), committed, grain=grain, start=start, whole_chunks=whole_chunks)


def in_days(decision: Decision, grain: Grain) -> object:
    """What is decided, in days; each is built as a whole."""
    if not isinstance(decision, SessionPlan):
        return decision.kind
    assert grain.whole(decision.hour_numbers) == set(decision.hour_numbers)
    found = []
    for hours in (decision.hour_numbers, decision.pending, decision.skipped, decision.follows, decision.held):
        found.append({grain.number(hour) for hour in hours})
    through = decision.complete_through
    return decision.load, found, None if through is None else grain.number(through)


@settings(thorough, max_examples=150)
@given(drawn)
def test_a_plan_has_the_days_that_days_of_24_hours_would_have(found: dict[str, Any]) -> None:
    local = plan(inputs(NEW_YORK, found))
    assert in_days(local, NEW_YORK) == in_days(plan(inputs(DAY, found)), DAY)


@thorough
@given(drawn, some_days)
def test_so_has_a_rebuild(found: dict[str, Any], chosen: frozenset[int]) -> None:
    decided = []
    for grain in (NEW_YORK, DAY):
        known = inputs(grain, {**found, "held": frozenset()})
        hours = [grain.start(found["first"] + number) + 7 for number in chosen]
        decided.append(in_days(plan_rebuild(known, hours, present=(), token="t"), grain))
    assert decided[0] == decided[1]


def test_a_day_that_was_built_by_other_rules_counts_as_not_built() -> None:
    first = NEW_YORK.start(SPRING)
    by_old_rules = Committed({first + 50: Waiting("changed")}, last_built=first + 24)
    found = in_whole_partitions(by_old_rules, NEW_YORK)
    assert found.last_built == first + 23
    assert found.pending == set(range(first + 48, first + 72))
    assert in_whole_partitions(by_old_rules, DAY) is by_old_rules
