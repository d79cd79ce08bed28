"""Whose rows a session recomputes: what stands against leaving entities out, and when it is cheaper. No Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_assets.base.hours import parse_hour
from lake_assets.incremental.declaration import Sequential
from lake_assets.incremental.engine.model import Committed, PlannedHour, PlanningInput, SessionPlan, Waiting
from lake_assets.incremental.engine.planning import (
    MIN_ENTITIES_PER_CHANGED,
    committed_after,
    is_cheaper,
    narrowed,
    plan,
    rebuilt,
)
from lake_assets.incremental.engine.source_changes import FileChange, SnapshotChange, SourceChanges, Watermark

START = parse_hour("2026-01-01-00:00")
LAST = START + 9
BY_ACCOUNT = Sequential(entity="account_id", few_rows=1_000)
BUILT = Committed(last_built=LAST, complete_through=LAST, code_version="new", span=(START, LAST))
NOT_AVAILABLE = "the rows of core.fact that were read before are not available for comparison"
OVERDUE = "an earlier session has read the changes of hours that are pending or were skipped"
OTHER_CODE = "some of the hours were built by other code"

counts = st.integers(0, 10_000)


def source(rows: int, hour: int = LAST - 1, *, gone: int = 0) -> SourceChanges:
    """Rows that came to an hour, and went from it, since the watermark."""
    file = FileChange("file", rows, 10, {}, (hour, hour))
    effect, operation = ("rewrite", "overwrite") if gone else ("append", "append")
    change = SnapshotChange(2, operation, 0, effect, (file,), ((hour, hour),), gone)  # type: ignore[arg-type]
    since, head = (Watermark("core.fact", "uuid", number, number, 0, LAST) for number in (1, 2))
    return SourceChanges("core.fact", "at", since, head, "history", (change,))


def question(changes: SourceChanges, mode: Sequential = BY_ACCOUNT, committed: Committed = BUILT) -> PlanningInput:
    # As the planner asks first: of a session for the changed entities, a chunk has its full length.
    return PlanningInput("core.dim", mode, (changes,), committed, "new", whole_chunks=True)


def planned(asked: PlanningInput, *, rows: int = 20_000, intact: bool = True) -> SessionPlan:
    decision = plan(asked)
    assert isinstance(decision, SessionPlan)
    found = narrowed(asked, decision, rows=rows, intact=intact)
    assert replace(found, notes=decision.notes, changed_through=None) == decision, "nothing else is decided here"
    return found


def test_the_plan_says_that_it_recomputes_what_changed_and_why() -> None:
    found = planned(question(source(10)))
    assert found.changed_through == LAST
    assert found.notes == (
        "in hours that were built before, recomputes each account_id that changed, which is cheaper:"
        " about 10 source rows changed, and 20,000 rows are published",
    )


def test_new_hours_are_built_for_all() -> None:
    changes = source(10)
    later = replace(changes, head=replace(changes.head, complete_through=LAST + 2))
    found = planned(question(later))
    assert (found.envelope, found.changed_through) == ((LAST - 1, LAST + 2), LAST)
    only_new = question(replace(later, snapshots=()))
    assert rebuilt(only_new, planned(only_new)) == ()
    assert planned(only_new).notes == ()


def test_without_an_entity_there_is_nothing_to_say() -> None:
    assert planned(question(source(10), Sequential())).notes == ()


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (question(source(6_000)), "which is cheaper: about 6,000 source rows changed, and 20,000 rows are published"),
        (question(source(0, gone=6_000)), "which is cheaper: about 6,000 source rows changed"),
        (question(source(10), replace(BY_ACCOUNT, few_rows=20_000)), "which is cheaper: about 10 source rows changed"),
        (question(replace(source(10), since=None)), NOT_AVAILABLE),
        (question(replace(source(10), how="expired", since_expired=True)), NOT_AVAILABLE),
        (question(replace(source(0, gone=10), since_expired=True)), NOT_AVAILABLE),
        (question(source(10), committed=replace(BUILT, waiting={LAST: Waiting("changed")})), OVERDUE),
        (question(source(10), committed=replace(BUILT, waiting={START: Waiting("skipped")})), OVERDUE),
        (question(source(10), committed=replace(BUILT, code_version="old")), OTHER_CODE),
        (question(source(10), committed=replace(BUILT, older=((START, LAST - 1, "old"),))), OTHER_CODE),
        (question(source(10), committed=replace(BUILT, older=((0, LAST, ""),))), OTHER_CODE),
    ],
)
def test_every_entity_is_recomputed_and_the_plan_says_why(asked: PlanningInput, why: str) -> None:
    found = planned(asked)
    assert found.changed_through is None
    assert found.notes[-1].startswith("recomputes every account_id")
    assert why in found.notes[-1]


def test_a_target_that_somebody_else_has_written_to_is_recomputed() -> None:
    found = planned(question(source(10)), intact=False)
    assert (found.changed_through, found.notes[-1]) == (
        None,
        "recomputes every account_id: somebody else has written to the target",
    )


@given(counts, counts, st.integers(1, 12), counts, counts)
def test_the_rule_has_one_turning_point(changed: int, rows: int, hours: int, few: int, more: int) -> None:
    """Fewer changes, more rows that stay, or a lower limit never turn it round; and it is never chosen for the most."""
    if is_cheaper(changed, rows, hours=hours, few=few):
        assert is_cheaper(max(changed - more, 0), rows, hours=hours, few=few)
        assert is_cheaper(changed, rows + more, hours=hours, few=few)
        assert is_cheaper(changed, rows, hours=hours, few=max(few - more, 0))
        assert rows > few
        assert changed * hours <= rows / MIN_ENTITIES_PER_CHANGED


sessions = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4), st.sampled_from(["old", "new"])), max_size=12)


@given(sessions)
def test_which_code_has_built_which_hours_is_known(steps: list[tuple[int, int, str]]) -> None:
    """Sessions reach some hours back, and some ahead or less far than before, as those that are cut do."""
    committed, code_of = Committed(), dict[int, str]()
    for back, length, code in steps:
        last = START - 1 if committed.last_built is None else committed.last_built
        first = max(START, last + 1 - back)
        hours = range(first, first + length + 1)
        session = SessionPlan("p", "s", "session", "overwrite", (), tuple(PlannedHour(h, "") for h in hours))
        committed = committed_after(BY_ACCOUNT, committed, replace(session, code_version=code), hours)
        code_of |= dict.fromkeys(hours, code)
        assert committed.last_built == max(code_of)
        assert committed.span == (min(code_of), max(code_of))
        older = {hour: version for first, last, version in committed.older for hour in range(first, last + 1)}
        assert {hour: older.get(hour, committed.code_version) for hour in code_of} == code_of
        assert older.keys() <= code_of.keys()
        assert len(older) == sum(last - first + 1 for first, last, _ in committed.older), "ranges overlap"
