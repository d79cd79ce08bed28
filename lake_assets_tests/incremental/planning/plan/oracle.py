"""What a plan must be: the design once more, slow and obvious."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lake_assets.base.hours import Grain
from lake_assets.incremental.declaration import Sequential, Stateful, Stateless
from lake_assets.incremental.engine.model import PlanningInput
from lake_assets_tests.incremental.planning.plan.random_inputs import SPAN, START, together, touched_hours


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
    touched: set[int] = set()
    for c in q.changes:
        touched |= touched_hours(s for s in c.snapshots if s.effect != "none")
    changed = together(touched, q.grain)
    throughs = [c.head.complete_through for c in q.changes]
    least = None if None in throughs else min(t for t in throughs if t is not None)
    held = {h.hour for h in q.committed.held}
    if not isinstance(q.mode, Stateless) and least is not None:  # up to the end of a partition, if there is one
        ends = [h for h in range(START, least + 1) if (h + 1 - START) % q.grain.hours == 0]
        least = max(ends, default=None)
    if isinstance(q.mode, Stateless):
        others, reach = stateless(q, changed, held, promised(q, least, held)), START + SPAN
    else:
        hours = [h for h in (least, q.committed.last_built) if h is not None]
        if not hours:
            return Expected("wait")
        reach = max(hours)
        others = stateful(q, changed, held, reach, promised(q, least, held))
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


def stateful(q: PlanningInput, changed: set[int], held: set[int], reach: int, advanced: int | None) -> Expected:
    assert not isinstance(q.mode, Stateless)
    built, limit = q.committed.last_built, rounded_up(q.mode.catchup_threshold, q.grain)
    own = together(changed | (q.committed.pending - held - q.committed.following), q.grain)
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
    if isinstance(q.mode, Sequential) and q.mode.load == "all" and first and built is not None and limit is not None:
        first.add(max(START, built - limit + 1))
    if isinstance(q.mode, Stateful) and q.mode.load == "changed":
        every = first
    else:
        every = {h for h in range(START, reach + 1) if any(f <= h for f in first)}
    skipped, due = frozenset(too_late - every), every - held
    pending = later | (held & (every | q.committed.pending))
    if due:
        own = own if isinstance(q.mode, Sequential) else changed
        now, behind, follows = cut(q, q.mode, due, own | {min(due)})
        if isinstance(q.mode, Sequential) and max(due) not in now:
            advanced = None  # not all of it is built
        return Expected("overwrite", frozenset(now), pending | behind, skipped, advanced, frozenset(follows))
    seen = any(c.snapshots for c in q.changes if c.since is not None)
    if skipped or every or advanced is not None or (seen and not later):
        return Expected("none", frozenset(), pending, skipped, advanced)
    return Expected("wait" if later else "idle")


def smallest(q: PlanningInput, first: int) -> int:
    """The hours of a first chunk: one partition; twice as many as in the chunk that it goes on from."""
    if q.whole_chunks:
        return SPAN + q.grain.hours
    return max(q.grain.hours, 2 * q.committed.chunk_hours * (first in q.committed.pending))


def rounded_up(number: int | None, grain: Grain) -> int | None:
    return number if number is None else next(n for n in range(number, number + grain.hours) if n % grain.hours == 0)


def cut(
    q: PlanningInput, mode: Stateful | Sequential, due: set[int], changed: set[int] | frozenset[int]
) -> tuple[set[int], set[int], set[int]]:
    """Hours now, hours behind them, hours that follow if the last one changes."""
    built, most = q.committed.last_built, rounded_up(mode.chunk_hours, q.grain)
    new = {h for h in due if built is None or h > built}
    old = sorted(due - new)
    if most is None or not old or (isinstance(mode, Sequential) and mode.load == "all"):
        return due, set(), set()
    if isinstance(mode, Sequential):  # from the earliest on, whatever is new
        if changed >= set(old):  # no smaller chunk would leave one of them out
            return due, set(), set()
        now = set(old[: min(most, smallest(q, min(due)))])
        gap = len(now)
        while behind := sorted((due - now) & (changed | new)):  # on to what must be built anyway
            further = {h for h in due if h <= behind[0]}
            if len(further) - len(now) - 1 > gap or len(further - new) > most:
                break
            now = further
        now -= new
        if now == set(old):
            return due, set(), set()
        own = (due - now) & changed
        after = {h for h in set(old) - now if any(each in own and each in old for each in range(h - SPAN, h))}
        return now, own | after, set(old) - now - changed
    if len(due) <= most:
        return due, set(), set()
    if new:
        return new, set(old), set()
    now = set(old[-most:] if mode.load == "changed" else old[:most])
    return now, due - now, set()
