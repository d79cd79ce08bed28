"""Sources that change, and a target that only its plans build, for whole histories of plans."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lake_assets.base.hours import HOUR, Grain, hour_key
from lake_assets.incremental.declaration import Mode, Sequential, Stateful, Stateless
from lake_assets.incremental.engine.model import (
    MAX_HOURS,
    AuditResult,
    Committed,
    HeldHour,
    NoSession,
    PlanningInput,
    SessionPlan,
    held_by,
    hours_to_hold,
)
from lake_assets.incremental.engine.planning import committed_after, plan, plan_rebuild
from lake_assets.incremental.engine.source_changes import SnapshotChange, SourceChanges, Watermark
from lake_assets_tests.incremental.planning.plan.random_inputs import (
    PROCESS,
    SPAN,
    START,
    mark,
    snapshot,
    source_changes,
    together,
    touched_hours,
)

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
    max_hours: int = MAX_HOURS

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
            new = [snapshot(new[-1].snapshot_id, "append", touched_hours(new))]
        return source_changes(name, since, head, new)

    def inputs(self, *, to_watermark: bool = False) -> PlanningInput:
        found = tuple(self.changes(name, to_watermark=to_watermark) for name in self.names)
        return PlanningInput(
            process=PROCESS,
            mode=self.mode,
            changes=found,
            committed=self.committed,
            code_version=self.code_version,
            revision=self.revision,
            grain=self.grain,
            start=START,
            max_hours=self.max_hours,
        )

    def tokens(self, after: dict[str, int], up_to: dict[str, int], effects: set[str]) -> set[Token]:
        """Those of the snapshots after some and up to others, with one of the effects."""
        found: set[Token] = set()
        for name in self.names:
            for s in self.history.get(name, []):
                if after[name] < s.snapshot_id <= up_to[name] and s.effect in effects:
                    found.update((name, s.snapshot_id, h) for h in touched_hours([s]))
        return found

    def commit(self, planned: SessionPlan) -> bool:
        """Build what is planned, from nothing but what the mode may read; then move the watermarks.

        Bad hours are held back; whether the others, if there are any, were published.
        """
        held = self.held_back(planned)
        if held is None:
            return False
        assert planned.session_id not in self.sessions
        self.sessions.add(planned.session_id)
        left = planned.without([h.hour for h in held])
        unchanged: set[int] = set()
        if planned.load == "append":
            self.append(left)
        if planned.load == "overwrite":
            unchanged = self.overwrite(left)
        self.acknowledge(planned, left, unchanged, held)
        return True

    def append(self, left: SessionPlan) -> None:
        before = {s.source: s.from_snapshot_id or 0 for s in left.sources}
        end = {s.source: s.to_snapshot_id or 0 for s in left.sources}
        effects = {"append"} if any(before.values()) else {"append", "rewrite"}
        self.add(left, sorted(self.tokens(before, end, effects)))
        for waited in left.late_rows:
            after, up_to = {self.names[0]: waited.from_snapshot_id}, {self.names[0]: waited.to_snapshot_id}
            found = self.tokens(after, up_to, {"append"})
            self.add(left, [token for token in found if token[2] in waited.hours])

    def add(self, left: SessionPlan, tokens: list[Token]) -> None:
        """Append rows: one that the target has already would be there twice."""
        for token in tokens:
            _, _, hour = token
            if hour not in left.left_out:
                assert hour in left.hour_numbers
                assert token not in self.target.get(hour, frozenset()), "a row is doubled"
                self.target[hour] = self.target.get(hour, frozenset()) | {token}

    def overwrite(self, left: SessionPlan) -> set[int]:
        """Build the hours; those of whole partitions that came out as they were."""
        end = {s.source: s.to_snapshot_id or 0 for s in left.sources}
        rows = self.tokens(dict.fromkeys(self.names, 0), end, {"append", "rewrite"})
        unchanged = set()
        for hour in left.hour_numbers:
            now = self.built(hour, rows)
            if hour <= self.last_built and self.target.get(hour) == now:
                unchanged.add(hour)
            self.target[hour] = now
        return {h for h in unchanged if together({h}, self.grain) <= unchanged}

    def acknowledge(
        self, planned: SessionPlan, left: SessionPlan, unchanged: set[int], held: tuple[HeldHour, ...]
    ) -> None:
        before = self.committed.complete_through
        self.committed = committed_after(self.mode, self.committed, planned, left.hour_numbers, unchanged, held)
        after = self.committed.complete_through
        newly_complete = range(START if before is None else before + 1, START if after is None else after + 1)
        assert not self.committed.held_hours.intersection(newly_complete), "what is held back is not called complete"
        self.marks = {s.source: mark(s.source, s.to_snapshot_id, s.complete_through) for s in planned.sources}
        self.revision += 1

    @property
    def last_built(self) -> int:
        return self.committed.last_built or START - 1

    def held_back(self, planned: SessionPlan) -> tuple[HeldHour, ...] | None:
        """The hours that a session holds back; None if it is stopped as a whole."""
        failed = {hour_key(h): 1 for h in together(self.bad & {*planned.hour_numbers}, self.grain)}
        if not failed:
            return ()
        verdicts = [AuditResult("x", False, counts={"bad": len(failed)}, hours=failed)]
        if not hours_to_hold(self.mode, verdicts, planned.hour_numbers, self.committed.held_hours):
            return None
        return held_by(planned, verdicts)

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
        """Every hour is in the target as the truth has it, or it waits; new ones of a sequence may not be built."""
        if not self.marks:
            return
        waiting = self.committed.pending
        sequence = isinstance(self.mode, Sequential) or (isinstance(self.mode, Stateful) and self.mode.load == "range")
        for hour in range(START, START + SPAN):
            stale = hour in waiting | self.committed.skipped | self.committed.held_hours
            stale |= sequence and hour > self.last_built
            if not stale:
                assert self.aside(self.target.get(hour, frozenset())) == self.aside(self.truth(hour)), hour - START

    def aside(self, tokens: frozenset[Token]) -> frozenset[Token]:
        return frozenset(t for t in tokens if t[2] not in self.committed.skipped)


def run(world: World, *, rounds: int = 1) -> None:
    for _ in range(rounds):
        decision = plan(world.inputs())
        if isinstance(decision, NoSession):
            return
        assert not set(decision.skipped) & world.committed.pending
        assert all(h <= world.last_built for h in decision.skipped), "an hour never built is never skipped"
        if not world.commit(decision):
            return
        world.check()


def rebuild(world: World, chosen: frozenset[int], token: str) -> None:
    decision = plan_rebuild(world.inputs(to_watermark=True), chosen, present=(), token=token)
    if isinstance(decision, SessionPlan) and world.commit(decision):
        world.check()


def reset(world: World, chosen: frozenset[int], token: str) -> None:
    """Rebuild hours as `lake rebuild --reset` does: from the sources' heads, where the watermarks then are."""
    marks, world.marks = world.marks, {}
    inputs = world.inputs()
    world.marks = marks
    decision = plan_rebuild(inputs, chosen, present=set(world.target), token=token)
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
    elif kind == "reset":
        reset(world, touched, str(world.revision))
    elif kind == "break":
        world.bad |= touched
    elif kind == "mend":
        world.bad -= {hour}
        world.land(name, "rewrite", frozenset({hour}))
    elif kind == "new code":
        world.code_version += "'"
    else:
        run(world)


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


def played(world: World) -> list[tuple[list[int], list[int], list[int]]]:
    """All sessions that are due: hours, pending, and those that follow."""
    found = []
    while isinstance(decision := plan(world.inputs()), SessionPlan):
        found.append((numbers(decision.hour_numbers), numbers(decision.pending), numbers(decision.follows)))
        world.commit(decision)
        world.check()
    return found
