"""Plans against an oracle that says the design once more, slowly; and rounds of them, against a full rebuild."""

from __future__ import annotations

import os
import random
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lake_assets.base.grain import DAY, HOUR, Grain
from lake_assets.base.hours import HOUR_FORMAT, hour_key, parse_hour, ranges
from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration import Mode, Sequential, Stateful, Stateless
from lake_assets.incremental.planning.changes import SnapshotChange, SourceChanges, Watermark
from lake_assets.incremental.planning.changes.data_files import FileChange
from lake_assets.incremental.planning.plan import Committed, PlanningInput, committed_after, plan, plan_rebuild
from lake_assets.incremental.planning.session import AuditResult, HeldHour, NoSession, SessionPlan
from lake_assets.incremental.planning.verdicts import held_by, hours_to_hold

START = parse_hour("2026-01-01-00:00")
SPAN = 14
SHIFT = Grain("shift", 4, HOUR_FORMAT)
"""As a day, but short enough for many of them."""

PROCESS = "core.target"
HISTORIES = int(os.environ.get("LAKE_TEST_PLANNER_HISTORIES", "1200"))
"""Random histories of plans, and twice as many single plans; a longer run sets more."""
EVERY_MODE: list[Mode] = [
    Stateless(),
    Stateful(),
    Stateful("changed"),
    Stateful("range", 4),
    Sequential(),
    Sequential(5),
    Sequential(chunk_hours=3),
]

hours = st.integers(START, START + SPAN - 1)
some_hours = st.frozensets(hours, max_size=4)
maybe_hour = st.none() | hours
thresholds = st.none() | st.integers(1, 6)
modes = st.one_of(
    st.just(Stateless()),
    st.builds(
        Stateful, load=st.sampled_from(["range", "changed"]), catchup_threshold=thresholds, chunk_hours=thresholds
    ),
    st.builds(Sequential, catchup_threshold=thresholds, chunk_hours=thresholds),
)
snapshots = st.tuples(st.sampled_from(["append", "append", "rewrite", "none"]), some_hours, st.integers(0, 2))


def holding(found: frozenset[int], grain: Grain = HOUR) -> tuple[HeldHour, ...]:
    """Held hours; each third partition by other code than now."""
    return tuple(HeldHour(h, "audit x: 1 bad", "s", "" if h // grain.hours % 3 else "old") for h in sorted(found))


committeds = st.builds(
    Committed,
    pending=some_hours,
    skipped=some_hours,
    last_built=maybe_hour,
    complete_through=maybe_hour,
    held=some_hours.map(holding),
)
grains = st.sampled_from([HOUR, SHIFT])
thorough = settings(deadline=None, suppress_health_check=list(HealthCheck))


def mark(source: str, snapshot_id: int | None, through: int | None) -> Watermark:
    return Watermark(source, f"uuid-{source}", snapshot_id, snapshot_id or 0, 0, through)


def snapshot(number: int, effect: Any, touched: frozenset[int], rows_of_no_hour: int = 0) -> SnapshotChange:
    files = [FileChange(f"{number}-{h}", 1, 10, {}, (h, h)) for h in sorted(touched)] if effect != "none" else []
    files += (
        [FileChange(f"{number}-bad", rows_of_no_hour, 10, {}, None)] if rows_of_no_hour and effect != "none" else []
    )
    operation = {"append": "append", "rewrite": "overwrite", "none": "replace"}[effect]
    spans = tuple(ranges(touched)) if effect != "none" else ()
    return SnapshotChange(number, operation, 0, effect, tuple(files), spans)


def source_changes(name: str, since: Watermark | None, head: Watermark, found: list[SnapshotChange]) -> SourceChanges:
    how: Literal["initial", "history"] = "initial" if since is None else "history"
    return SourceChanges(name, "event_ts", since, head, how, tuple(found), tuple(f for s in found for f in s.added))


@st.composite
def questions(draw: st.DrawFn) -> PlanningInput:
    mode, grain = draw(modes), draw(grains)
    count = 1 if isinstance(mode, Stateless) else draw(st.integers(1, 3))
    found = []
    for name in [f"raw.source_{i}" for i in range(count)]:
        drawn = draw(st.lists(snapshots, max_size=3))
        since = draw(st.sampled_from([None, mark(name, 100, None)]))
        new = [snapshot(101 + i, *values) for i, values in enumerate(drawn)]
        if since is None:  # everything counts as one append
            new = [replace(s, effect="append", operation="append") for s in new if s.effect != "none"][:1]
        head = new[-1].snapshot_id if new else since.snapshot_id if since else None
        found.append(source_changes(name, since, mark(name, head, draw(maybe_hour)), new))
    committed = whole(draw(committeds), grain)
    if isinstance(mode, Sequential):
        committed = replace(committed, held=())
    return PlanningInput(PROCESS, mode, tuple(found), committed, grain=grain, start=START)


def whole(committed: Committed, grain: Grain) -> Committed:
    """As a process leaves it, which only ever builds whole partitions."""
    last, through = committed.last_built, committed.complete_through
    return Committed(
        pending=frozenset(together(committed.pending, grain)),
        skipped=frozenset(together(committed.skipped, grain)),
        last_built=None if last is None else max(together({last}, grain)),
        complete_through=None if through is None else max(together({through}, grain)),
        held=holding(frozenset(together(committed.held_hours, grain)), grain),
    )


def together(found: set[int] | frozenset[int], grain: Grain) -> set[int]:
    """The hours, and all those that share a partition with one of them."""
    numbers = {(h - START) // grain.hours for h in found}
    return {h for h in range(START, START + SPAN + grain.hours) if (h - START) // grain.hours in numbers}


@dataclass(frozen=True)
class Expected:
    """load, or `wait`, or `idle`; and what a session is to leave behind."""

    load: str
    hours: frozenset[int] = frozenset()
    pending: frozenset[int] = frozenset()
    skipped: frozenset[int] = frozenset()
    complete_through: int | None = None
    follows: frozenset[int] = frozenset()


def oracle(q: PlanningInput) -> Expected:
    touched = {
        h for c in q.changes for s in c.snapshots if s.effect != "none" for a, b in s.hours for h in range(a, b + 1)
    }
    changed = together(touched, q.grain)
    throughs = [c.head.complete_through for c in q.changes]
    least = None if None in throughs else min(t for t in throughs if t is not None)
    held = {h.hour for h in q.committed.held}
    if not isinstance(q.mode, Stateless) and least is not None:  # up to the end of a partition, if there is one
        ends = [h for h in range(START, least + 1) if (h + 1 - START) % q.grain.hours == 0]
        least = max(ends, default=None)
    if isinstance(q.mode, Stateless):
        others, reach = stateless(q, changed, held, promised(q, least, held)), START + SPAN
    elif least is None:
        return Expected("wait")
    else:
        others = stateful(q, changed, held, least, promised(q, least, held))
        reach = max(least, q.committed.last_built or least)
    if others.load in ("append", "overwrite"):
        return others
    pending = others.pending if others.load == "none" else frozenset(changed) | q.committed.pending
    due = [h.hour for h in q.committed.held if h.hour <= reach and (h.hour in pending or h.code_version)]
    if not due:
        return others
    alone = frozenset(together({due[0]}, q.grain))
    return Expected("overwrite", alone, pending - alone, others.skipped, promised(q, least, held - alone))


def promised(q: PlanningInput, least: int | None, held: Collection[int]) -> int | None:
    """The complete-through that a session brings; None if it stays. No hour that is held is called complete."""
    before = q.committed.complete_through
    while least is not None and (before is None or least > before):
        if not any(h <= least and (before is None or h > before) for h in held):
            return least
        least -= 1
    return None


def stateless(q: PlanningInput, changed: set[int], held: set[int], advanced: int | None) -> Expected:
    only_appends = all(s.effect != "rewrite" for c in q.changes for s in c.snapshots)
    pending = q.committed.pending - held
    wanted, kept = frozenset(changed | pending) - held, frozenset(held & (changed | q.committed.pending))
    if wanted:
        load = "append" if only_appends and not pending else "overwrite"
        return Expected(load, wanted, kept, complete_through=advanced)
    if only_appends and not changed and any(f.rows for c in q.changes for f in c.added):
        return Expected("append", pending=kept, complete_through=advanced)
    seen = changed or any(c.snapshots for c in q.changes if c.since is not None)
    if seen or advanced is not None:
        return Expected("none", pending=kept, complete_through=advanced)
    return Expected("idle")


def stateful(q: PlanningInput, changed: set[int], held: set[int], least: int, advanced: int | None) -> Expected:
    assert not isinstance(q.mode, Stateless)
    built, limit = q.committed.last_built, rounded_up(q.mode.catchup_threshold, q.grain)
    reach = least if built is None else max(least, built)
    changed = changed | (q.committed.pending - held)
    wanted = {h for h in changed if h <= reach}
    later = frozenset(changed) - wanted
    if built is not None and limit is not None:
        too_late = {h for h in wanted - q.committed.pending - held if h <= built - limit}
    else:
        too_late = set()
    first = set(wanted - too_late)
    if isinstance(q.mode, Sequential) and built is not None and built < reach:
        first.add(built + 1)
    if isinstance(q.mode, Stateful) and q.mode.load == "changed":
        every = first
    else:
        every = {h for h in range(START, reach + 1) if any(f <= h for f in first)}
    skipped, due = frozenset(too_late - every), every - held
    pending = later | (held & (every | q.committed.pending))
    if due:
        now, behind, follows = cut(q, q.mode, due, changed | {min(due)})
        if isinstance(q.mode, Sequential) and max(due) not in now:
            advanced = None  # not all of it is built
        return Expected("overwrite", frozenset(now), pending | behind, skipped, advanced, frozenset(follows))
    seen = any(c.snapshots for c in q.changes if c.since is not None)
    if skipped or every or advanced is not None or (seen and not later):
        return Expected("none", frozenset(), pending, skipped, advanced)
    return Expected("wait" if later else "idle")


def rounded_up(number: int | None, grain: Grain) -> int | None:
    return number if number is None else next(n for n in range(number, number + grain.hours) if n % grain.hours == 0)


def cut(
    q: PlanningInput, mode: Stateful | Sequential, due: set[int], changed: set[int] | frozenset[int]
) -> tuple[set[int], set[int], set[int]]:
    """Hours now, hours behind them, hours that follow if the last one changes."""
    built, most = q.committed.last_built, rounded_up(mode.chunk_hours, q.grain)
    new = {h for h in due if built is None or h > built}
    old = sorted(due - new)
    if most is None or not old:
        return due, set(), set()
    if isinstance(mode, Sequential):  # from the earliest on, whatever is new
        now = set(old[:most])
        return (now, (due - now) & changed, set(old) - now - changed) if now != set(old) else (due, set(), set())
    if len(due) <= most:
        return due, set(), set()
    if new:
        return new, set(old) if mode.load == "changed" else set(old) & changed, set()
    now = set(old[-most:] if mode.load == "changed" else old[:most])
    return now, due - now, set()


@given(questions())
@settings(thorough, max_examples=2 * HISTORIES)
def test_a_plan_is_what_the_design_says(question: PlanningInput) -> None:
    decision, expected = plan(question), oracle(question)
    if isinstance(decision, NoSession):
        assert decision.kind == expected.load
        return
    assert expected == Expected(
        decision.load,
        frozenset(decision.hour_numbers),
        frozenset(decision.pending),
        frozenset(decision.skipped),
        decision.complete_through,
        frozenset(decision.follows),
    )
    for found in (set(decision.hour_numbers), set(decision.pending), set(decision.skipped), set(decision.follows)):
        assert found == together(found, question.grain)
    assert all(planned.reason for planned in decision.hours)
    assert [(s.source, s.to_snapshot_id) for s in decision.sources] == [
        (c.source, c.head.snapshot_id) for c in question.changes
    ]
    assert plan(question) == decision


@given(questions(), questions())
@settings(thorough, max_examples=500)
def test_different_plans_have_different_ids(one: PlanningInput, other: PlanningInput) -> None:
    first, second = plan(one), plan(other)
    if isinstance(first, SessionPlan) and isinstance(second, SessionPlan):
        assert (first.session_id == second.session_id) == (substance(first) == substance(second))
        later = plan(replace(one, revision=one.revision + 1))
        assert isinstance(later, SessionPlan)
        assert later.session_id != first.session_id


def substance(p: SessionPlan) -> tuple[object, ...]:
    spans = tuple((s.source, s.from_snapshot_id, s.to_snapshot_id) for s in p.sources)
    return p.load, spans, p.hour_numbers, p.pending, p.skipped, p.complete_through


Token = tuple[str, int, int]
"""(source, snapshot, hour): what that snapshot did to that hour."""


@dataclass
class World:
    """Sources that change, and one target that nothing but its plans builds. A token stands for rows of an hour."""

    mode: Mode
    names: list[str]
    grain: Grain = HOUR
    history: dict[str, list[SnapshotChange]] = field(default_factory=dict)
    through: dict[str, int | None] = field(default_factory=dict)
    marks: dict[str, Watermark] = field(default_factory=dict)
    committed: Committed = field(default_factory=Committed)
    revision: int = 0
    target: dict[int, frozenset[Token]] = field(default_factory=dict)
    sessions: set[str] = field(default_factory=set)
    bad: set[int] = field(default_factory=set)
    code_version: str = ""

    def land(self, name: str, effect: Any, touched: frozenset[int]) -> None:
        past = self.history.setdefault(name, [])
        past.append(snapshot(len(past) + 1, effect if past else "append", touched))

    def changes(self, name: str, *, to_watermark: bool = False) -> SourceChanges:
        past, since = self.history.get(name, []), self.marks.get(name)
        if since and to_watermark:
            return source_changes(name, since, since, [])
        head = mark(name, past[-1].snapshot_id if past else None, self.through.get(name))
        new = past[(since.snapshot_id or 0) if since else 0 :]
        if new and (since is None or since.snapshot_id is None):
            touched = frozenset(h for s in new for a, b in s.hours for h in range(a, b + 1))
            new = [snapshot(new[-1].snapshot_id, "append", touched)]
        return source_changes(name, since, head, new)

    def question(self, *, to_watermark: bool = False) -> PlanningInput:
        found = tuple(self.changes(name, to_watermark=to_watermark) for name in self.names)
        return PlanningInput(
            PROCESS, self.mode, found, self.committed, self.code_version, self.revision, self.grain, START
        )

    def tokens(self, after: dict[str, int], up_to: dict[str, int], effects: set[str]) -> set[Token]:
        return {
            (name, s.snapshot_id, h)
            for name in self.names
            for s in self.history.get(name, [])
            if after[name] < s.snapshot_id <= up_to[name] and s.effect in effects
            for a, b in s.hours
            for h in range(a, b + 1)
        }

    def commit(self, planned: SessionPlan) -> bool:
        """Build what is planned, from nothing but what the mode may read; then move the watermarks.

        Bad hours are held back; whether the others, if there are any, were published.
        """
        held = self.judged(planned)
        if held is None:
            return False
        assert planned.session_id not in self.sessions
        self.sessions.add(planned.session_id)
        before = {s.source: s.from_snapshot_id or 0 for s in planned.sources}
        end = {s.source: s.to_snapshot_id or 0 for s in planned.sources}
        nothing = dict.fromkeys(self.names, 0)
        left = planned.without([h.hour for h in held])
        if planned.load == "append":
            for token in self.tokens(before, end, {"append"} if any(before.values()) else {"append", "rewrite"}):
                if token[2] not in left.held:
                    assert token[2] in left.hour_numbers
                    self.target[token[2]] = self.target.get(token[2], frozenset()) | {token}
        everything = self.tokens(nothing, end, {"append", "rewrite"})
        unchanged = set()
        for hour in left.hour_numbers if planned.load == "overwrite" else ():
            now = self.built(hour, everything)
            if hour <= (self.committed.last_built or START - 1) and self.target.get(hour) == now:
                unchanged.add(hour)
            self.target[hour] = now
        unchanged = {h for h in unchanged if together({h}, self.grain) <= unchanged}
        before = self.committed.complete_through
        self.committed = committed_after(self.mode, self.committed, planned, left.hour_numbers, unchanged, held)
        promised = range(START if before is None else before + 1, (self.committed.complete_through or START - 1) + 1)
        assert not self.committed.held_hours & set(promised), "what is held back is not called complete"
        self.marks = {s.source: mark(s.source, s.to_snapshot_id, s.complete_through) for s in planned.sources}
        self.revision += 1
        return True

    def judged(self, planned: SessionPlan) -> tuple[HeldHour, ...] | None:
        """The hours that a session holds back; None if it is stopped as a whole."""
        failed = {hour_key(h): 1 for h in together(self.bad & {*planned.hour_numbers}, self.grain)}
        verdicts = [AuditResult("x", not failed, counts={"bad": len(failed)}, hours=failed)]
        held = hours_to_hold(self.mode, verdicts, planned.hour_numbers, self.committed.held_hours)
        return held_by(planned, verdicts) if held else None if failed else ()

    def built(self, hour: int, rows: set[Token]) -> frozenset[Token]:
        if isinstance(self.mode, Sequential):
            return self.next(self.target.get(hour - 1, frozenset()), frozenset(t for t in rows if t[2] == hour))
        return self.rebuilt(hour, rows)

    def next(self, before: frozenset[Token], own: frozenset[Token]) -> frozenset[Token]:
        """A state is the last rows of each source, or, where hours may be skipped, all rows so far."""
        assert not isinstance(self.mode, Stateless)
        if self.mode.catchup_threshold is not None:
            return before | own
        return own | {t for t in before if t[0] not in {name for name, _, _ in own}}

    def rebuilt(self, hour: int, rows: set[Token]) -> frozenset[Token]:
        """An hour from nothing. Of a range, it has the rows of the first source, each with all that came before."""
        own = frozenset(t for t in rows if t[2] == hour)
        before = frozenset(t for t in rows if t[2] < hour)
        if isinstance(self.mode, Sequential):
            state: frozenset[Token] = frozenset()
            for h in range(START, hour + 1):
                state = self.next(state, frozenset(t for t in rows if t[2] == h))
            return state
        if isinstance(self.mode, Stateful) and self.mode.load == "range":
            return own | before if any(t[0] == self.names[0] for t in own) else frozenset()
        return own

    def truth(self, hour: int) -> frozenset[Token]:
        """What one full rebuild as of the watermarks would put into an hour."""
        end = {name: m.snapshot_id or 0 for name, m in self.marks.items()}
        return self.rebuilt(hour, self.tokens(dict.fromkeys(self.names, 0), end, {"append", "rewrite"}))

    def check(self) -> None:
        """Every changed hour is in the target as the truth has it, or pending, or skipped; so are those after it."""
        if not self.marks:
            return
        waiting = self.committed.pending
        sequence = isinstance(self.mode, Sequential) or (isinstance(self.mode, Stateful) and self.mode.load == "range")
        for hour in range(START, START + SPAN):
            stale = hour in waiting | self.committed.skipped | self.committed.held_hours
            stale |= sequence and any(h < hour for h in waiting - self.committed.held_hours)
            stale |= sequence and hour > (self.committed.last_built or START - 1)
            if not stale:
                assert self.aside(self.target.get(hour, frozenset())) == self.aside(self.truth(hour)), hour - START

    def aside(self, tokens: frozenset[Token]) -> frozenset[Token]:
        return frozenset(t for t in tokens if t[2] not in self.committed.skipped)


def run(world: World, *, rounds: int = 1) -> None:
    for _ in range(rounds):
        was = world.committed
        decision = plan(world.question())
        if isinstance(decision, NoSession):
            return
        assert not set(decision.skipped) & was.pending
        assert all(h <= (was.last_built or START - 1) for h in decision.skipped), "an hour never built is never skipped"
        if not world.commit(decision):
            return
        world.check()


def rebuild(world: World, chosen: frozenset[int], token: str) -> None:
    question = world.question(to_watermark=True)
    present = {h for c in question.changes for s in c.snapshots for a, b in s.hours for h in range(a, b + 1)}
    decision = plan_rebuild(question, chosen, present=present, token=token)
    if isinstance(decision, SessionPlan) and world.commit(decision):
        world.check()


def act(world: World, action: tuple[str, int, frozenset[int], int]) -> None:
    kind, which, touched, hour = action
    name = world.names[which % len(world.names)]
    if kind in ("append", "rewrite", "none"):
        world.land(name, kind, touched)
    elif kind == "complete":  # mostly forward, sometimes back
        world.through[name] = hour
    elif kind == "rebuild":
        rebuild(world, touched, str(world.revision))
    elif kind == "break":
        world.bad |= touched
    elif kind == "mend":
        world.bad -= {hour}
        world.land(name, "rewrite", frozenset({hour}))
    elif kind == "new code":
        world.code_version += "'"
    else:
        run(world)


KINDS = [
    *("append", "append", "rewrite", "none", "complete", "complete", "run", "run", "rebuild"),
    *("break", "mend", "new code"),
]

actions = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, 2),
        some_hours,
        hours,
    ),
    max_size=25,
)


@given(modes, grains, st.integers(1, 3), actions)
@settings(thorough, max_examples=HISTORIES)
def test_no_changed_hour_is_ever_lost(
    mode: Mode, grain: Grain, count: int, steps: list[tuple[str, int, frozenset[int], int]]
) -> None:
    world = World(mode, [f"raw.s{i}" for i in range(1 if isinstance(mode, Stateless) else count)], grain)
    for step in steps:
        act(world, step)
    end = max(together({START + SPAN - 1}, grain))
    world.through = dict.fromkeys(world.names, end)
    run(world, rounds=3 + 2 * SPAN)
    world.land(world.names[0], "rewrite", frozenset(world.bad))
    world.bad.clear()
    run(world, rounds=3 + 2 * SPAN)
    assert isinstance(plan(world.question()), NoSession), "it comes to rest"
    assert not world.committed.pending | world.committed.held_hours
    assert world.committed.complete_through == end
    world.check()


@pytest.mark.slow
def test_no_changed_hour_is_ever_lost_in_long_histories() -> None:
    for seed in range(1500):
        r = random.Random(seed)
        mode = r.choice(EVERY_MODE)
        names = [f"raw.s{i}" for i in range(1 if isinstance(mode, Stateless) else r.randint(1, 3))]
        world = World(mode, names, r.choice([HOUR, SHIFT]))
        for _ in range(60):
            kind = r.choice(KINDS)
            touched = frozenset(r.sample(range(START, START + SPAN), r.randint(0, 3)))
            act(world, (kind, r.randint(0, 2), touched, START + r.randrange(SPAN)))


def loaded(names: list[str], mode: Mode, through: int, grain: Grain = HOUR) -> World:
    """All hours up to `through` are loaded, and built."""
    world = World(mode, names, grain)
    for name in names:
        world.land(name, "append", frozenset(range(START, START + through + 1)))
        world.through[name] = START + through
    run(world, rounds=2)
    return world


def late(*numbers: int) -> frozenset[int]:
    return frozenset(START + n for n in numbers)


def numbers(found: object) -> list[int]:
    assert isinstance(found, (set, frozenset, tuple))
    return sorted(h - START for h in found)


def test_the_worked_example() -> None:
    fact = loaded(["raw.signups"], Stateless(), 5)
    fact.land("raw.signups", "append", late(2, 3, 6))
    fact.through["raw.signups"] = START + 6
    decision = plan(fact.question())
    assert isinstance(decision, SessionPlan)
    assert (decision.load, numbers(decision.hour_numbers)) == ("append", [2, 3, 6])

    cancels = loaded(["raw.cancels", "core.cancel_request_fact"], Stateful(), 5)
    cancels.land("raw.cancels", "append", late(5, 6, 7))
    cancels.through = dict.fromkeys(cancels.names, START + 7)
    decision = plan(cancels.question())
    assert isinstance(decision, SessionPlan)
    assert (decision.load, numbers(decision.hour_numbers)) == ("overwrite", [5, 6, 7])

    facts: dict[str, int] = {"core.signup_fact": 6, "core.plan_fact": 6, "core.cancel_fact": 7}
    dimension = loaded([*facts], Sequential(), 5)
    for name, touched in zip(facts, [late(2, 3, 6), late(2, 3, 6), late(5, 6, 7)], strict=True):
        dimension.land(name, "append" if name != "core.cancel_fact" else "rewrite", touched)
        dimension.through[name] = START + facts[name]
    decision = plan(dimension.question())
    assert isinstance(decision, SessionPlan)
    assert (decision.load, numbers(decision.hour_numbers)) == ("overwrite", [2, 3, 4, 5, 6])
    assert (numbers(decision.pending), decision.complete_through) == ([7], START + 6)

    dimension.commit(decision)
    for name in facts:
        dimension.through[name] = START + 7
    decision = plan(dimension.question())
    assert isinstance(decision, SessionPlan)
    assert (decision.load, numbers(decision.hour_numbers), decision.pending) == ("overwrite", [7], ())


def test_what_waits_says_for_what() -> None:
    world = loaded(["raw.a", "raw.b"], Stateful(), 3)
    assert plan(world.question()) == NoSession("idle", "no new snapshot of raw.a, raw.b")
    world.land("raw.a", "append", late(5, 6))
    assert plan(world.question()) == NoSession(
        "wait",
        "hours 2026-01-01-05:00..2026-01-01-06:00 wait for"
        " raw.a, complete through 2026-01-01-03:00, raw.b, complete through 2026-01-01-03:00",
    )
    world.through["raw.b"] = None
    assert plan(world.question()) == NoSession(
        "wait", "raw.b: complete-through is not set yet, so no hour is known to be complete"
    )


def test_reasons_name_snapshot_column_and_hours() -> None:
    world = loaded(["raw.a"], Sequential(), 3)
    world.land("raw.a", "append", late(2))
    world.through["raw.a"] = START + 4
    decision = plan(world.question())
    assert isinstance(decision, SessionPlan)
    assert [p.reason for p in decision.hours] == [
        "append 2 of raw.a: event_ts 2026-01-01-02:00",
        "follows from hour 2026-01-01-02:00, which changed",
        "follows from hour 2026-01-01-02:00, which changed",
    ]


def test_hours_beyond_the_threshold_are_skipped_aloud_and_open_to_a_backfill() -> None:
    world = loaded(["raw.a"], Sequential(catchup_threshold=4), 9)
    world.land("raw.a", "append", late(3, 7))
    decision = plan(world.question())
    assert isinstance(decision, SessionPlan)
    assert (numbers(decision.skipped), numbers(decision.hour_numbers)) == ([3], [7, 8, 9])
    assert decision.notes == ("skipped, beyond the catch-up threshold, open to a backfill: 2026-01-01-03:00",)
    world.commit(decision)
    rebuild(world, late(3), "backfill")
    assert world.committed.skipped == frozenset()


def test_an_outage_longer_than_the_threshold_is_caught_up_in_full() -> None:
    world = loaded(["raw.a"], Sequential(catchup_threshold=2), 1)
    world.land("raw.a", "append", late(2, 9))
    world.through["raw.a"] = START + 12
    decision = plan(world.question())
    assert isinstance(decision, SessionPlan)
    assert (numbers(decision.hour_numbers), decision.skipped) == (list(range(2, 13)), ())


def played(world: World) -> list[tuple[list[int], list[int], list[int]]]:
    """All sessions that are due: hours, pending, and those that follow."""
    found = []
    while isinstance(decision := plan(world.question()), SessionPlan):
        found.append((numbers(decision.hour_numbers), numbers(decision.pending), numbers(decision.follows)))
        world.commit(decision)
        world.check()
    return found


def test_a_late_hour_far_back_waits_behind_the_newest() -> None:
    world = loaded(["raw.a"], Stateful(chunk_hours=3), 5)
    world.land("raw.a", "append", late(1, 6))
    world.through["raw.a"] = START + 6
    assert played(world) == [([6], [1], []), ([1, 2, 3], [4, 5, 6], []), ([4, 5, 6], [], [])]
    assert world.committed.complete_through == START + 6


def test_a_held_hour_is_a_session_of_its_own_behind_all_others() -> None:
    world = loaded(["raw.a"], Stateful(chunk_hours=3), 5)
    world.bad = {START + 2}
    world.land("raw.a", "append", late(2))
    assert played(world) == [([2, 3, 4], [5], []), ([5], [], [])]
    assert numbers(world.committed.held_hours) == [2]
    # What follows from the held hour is built all the same, and it is tried again, once.
    world.land("raw.a", "append", late(2, 6))
    world.through["raw.a"] = START + 6
    assert played(world) == [([6], [2, 3], []), ([3, 4, 5], [2, 6], []), ([6], [2], []), ([2], [], [])]
    assert world.committed.complete_through == START + 6
    world.code_version = "mended"
    world.bad.clear()
    assert played(world) == [([2], [], [])]
    assert not world.committed.held


def test_a_target_with_held_hours_becomes_sequential_only_once_they_are_built() -> None:
    world = loaded(["raw.a"], Stateful(), 5)
    world.bad = {START + 2, START + 4}
    world.land("raw.a", "append", late(2, 4))
    played(world)
    world.mode = Sequential()
    words = r"hours 2026-01-01-02:00, 2026-01-01-04:00: .*\n.*rebuild \S+ 2026-01-01-02:00 2026-01-01-04:00`"
    with pytest.raises(ConfigurationError, match=words):
        plan(world.question())
    with pytest.raises(ConfigurationError, match="hold back its hour 2026-01-01-02:00: "):
        plan_rebuild(world.question(), late(3), present=(), token="from behind the first")
    decision = plan_rebuild(world.question(), late(2, 4), present=(), token="mended")
    assert isinstance(decision, SessionPlan)
    assert numbers(decision.hour_numbers) == [2, 3, 4, 5]
    world.committed = committed_after(world.mode, world.committed, decision, decision.hour_numbers)
    assert isinstance(plan(world.question()), NoSession)


def test_complete_through_stays_below_a_held_hour_until_it_is_built() -> None:
    world = loaded(["raw.a"], Stateless(), 3)
    world.bad = {START + 5}
    world.land("raw.a", "append", late(4, 5, 6))
    world.through["raw.a"] = START + 6
    assert played(world) == [([4, 5, 6], [], [])]
    assert world.committed.complete_through == START + 4
    waiting = plan(world.question())
    assert waiting == NoSession(
        "idle",
        "no new snapshot of raw.a; hour 2026-01-01-05:00 is held back by audit x: 1 bad;"
        " it waits for a change of a source or the code",
    )
    rebuild(world, late(5), "in vain")
    assert numbers(world.committed.held_hours) == [5]
    world.bad.clear()
    rebuild(world, late(5), "mended")
    assert played(world) == [([], [], [])]
    assert world.committed.complete_through == START + 6


def test_a_sequential_target_stops_where_its_state_is_as_it_was() -> None:
    world = loaded(["raw.a", "raw.b"], Sequential(chunk_hours=3), 9)
    world.land("raw.a", "append", late(2, 8, 10))
    world.through = dict.fromkeys(world.names, START + 10)
    # From the earliest on, never on a state that is known to be wrong. Hour 3 has rows of its own: nothing follows.
    assert played(world) == [([2, 3, 4], [8, 10], [5, 6, 7, 9]), ([8, 9, 10], [], [])]
    assert world.committed.complete_through == START + 10


def test_a_rollback_that_is_undone_is_a_session_of_its_own() -> None:
    world = loaded(["raw.a"], Stateless(), 3)
    world.land("raw.a", "append", late(2))
    first = plan(world.question())
    assert isinstance(first, SessionPlan)
    world.commit(first)
    world.marks = {"raw.a": mark("raw.a", 1, START + 3)}  # rolled back, and the rows taken out again
    again = plan(world.question())
    assert isinstance(again, SessionPlan)
    assert again.session_id != first.session_id


def test_a_first_backfill_leaves_all_other_hours_pending_however_old() -> None:
    world = World(Stateful(catchup_threshold=2), ["raw.a"])
    world.land("raw.a", "append", late(0, 1, 2, 9))
    world.through["raw.a"] = START + 9
    rebuild(world, late(9), "first")
    assert (numbers(world.committed.pending), world.committed.complete_through) == ([0, 1, 2], None)
    decision = plan(world.question())
    assert isinstance(decision, SessionPlan)
    assert (numbers(decision.hour_numbers), decision.skipped) == (list(range(10)), ())


def test_a_sequential_backfill_leaves_no_gap_before_it() -> None:
    world = World(Sequential(), ["raw.a"])
    world.land("raw.a", "append", late(1, 8))
    world.through["raw.a"] = START + 9
    rebuild(world, late(1), "first")
    question = world.question(to_watermark=True)
    decision = plan_rebuild(question, late(8), present=(), token="second")
    assert isinstance(decision, SessionPlan)
    assert numbers(decision.hour_numbers) == list(range(2, 9))


def test_a_backfill_leaves_out_what_is_not_complete() -> None:
    world = loaded(["raw.a"], Stateful(), 3)
    question = world.question(to_watermark=True)
    decision = plan_rebuild(question, late(2, 3, 7), present=(), token="t")
    assert isinstance(decision, SessionPlan)
    assert (decision.kind, decision.load, numbers(decision.hour_numbers)) == ("rebuild", "overwrite", [2, 3])
    assert decision.notes == ("left out, not complete yet: 2026-01-01-07:00",)
    assert plan_rebuild(question, late(7), present=(), token="t") == NoSession(
        "wait", "2026-01-01-07:00 cannot be rebuilt yet: raw.a, complete through 2026-01-01-03:00"
    )
    other = plan_rebuild(question, late(2, 3, 7), present=(), token="another")
    assert isinstance(other, SessionPlan)
    assert other.session_id != decision.session_id


def test_what_a_source_calls_incomplete_again_is_kept_right_where_it_was_built() -> None:
    world = loaded(["raw.a", "raw.b"], Sequential(), 6)
    world.through["raw.b"] = START + 2
    world.land("raw.a", "append", late(1))
    decision = plan(world.question())
    assert isinstance(decision, SessionPlan)
    assert numbers(decision.hour_numbers) == list(range(1, 7))
    assert decision.complete_through is None


def test_a_source_that_is_declared_later_loses_no_pending_hour() -> None:
    world = loaded(["raw.a"], Stateful(), 3)
    world.land("raw.a", "append", late(2, 6))
    run(world)
    assert numbers(world.committed.pending) == [6]
    world.names.append("raw.b")
    world.land("raw.b", "append", late(1, 3))
    world.through["raw.b"] = START + 3
    rebuild(world, late(3), "first of b")
    assert numbers(world.committed.pending) == [1, 6]


def test_a_day_is_rebuilt_as_a_whole_once_it_is_complete() -> None:
    world = World(Stateful("changed"), ["core.hourly"], DAY)
    world.land("core.hourly", "append", late(3, 30))
    world.through["core.hourly"] = START + 22
    assert plan(world.question()) == NoSession(
        "wait", "no day is complete yet: 2026-01-01 waits for core.hourly, complete through 2026-01-01-22:00"
    )
    world.through["core.hourly"] = START + 30
    decision = plan(world.question())
    assert isinstance(decision, SessionPlan)
    assert numbers(decision.hour_numbers) == list(range(24))
    assert {p.reason for p in decision.hours} == {"append 1 of core.hourly: event_ts 2026-01-01-03:00"}
    assert (numbers(decision.pending), decision.complete_through) == (list(range(24, 48)), START + 23)

    world.commit(decision)
    assert plan(world.question()) == NoSession(
        "wait", "days 2026-01-02 wait for core.hourly, complete through 2026-01-02-06:00"
    )
    question = world.question(to_watermark=True)
    decision = plan_rebuild(question, late(5, 40), present=(), token="t")
    assert isinstance(decision, SessionPlan)
    assert numbers(decision.hour_numbers) == list(range(24))
    assert decision.notes == ("left out, not complete yet: 2026-01-02",)


def test_a_stateless_day_takes_rows_as_they_come() -> None:
    world = World(Stateless(), ["raw.a"], DAY)
    world.land("raw.a", "append", late(3))
    world.through["raw.a"] = START + 5
    decision = plan(world.question())
    assert isinstance(decision, SessionPlan)
    assert (decision.load, decision.envelope, decision.complete_through) == ("append", (START, START + 23), START + 5)
