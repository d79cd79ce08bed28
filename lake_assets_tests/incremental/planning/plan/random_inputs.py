"""Planning inputs at random: changes of sources, and what a target may have committed, in every mode."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from lake_assets.base.hours import HOUR, HOUR_FORMAT, Grain, parse_hour, ranges
from lake_assets.incremental.declaration import Sequential, Stateful, Stateless
from lake_assets.incremental.engine.model import HELD, Committed, HeldHour, Kind, PlanningInput, Waiting
from lake_assets.incremental.engine.source_changes import FileChange, SnapshotChange, SourceChanges, Watermark

START = parse_hour("2026-01-01-00:00")
SPAN = 14
SHIFT = Grain("shift", 4, HOUR_FORMAT)
"""As a day, but short enough for many of them."""

PROCESS = "core.target"
HISTORIES = int(os.environ.get("LAKE_TEST_PLANNER_HISTORIES", "300"))
"""Random histories of plans, and twice as many single plans; a longer run sets more."""

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
    st.builds(partial(Sequential, load="all"), catchup_threshold=st.integers(1, 6), chunk_hours=thresholds),
)
snapshots = st.tuples(st.sampled_from(["append", "append", "rewrite", "none"]), some_hours, st.integers(0, 2))


def holding(found: frozenset[int], grain: Grain = HOUR) -> tuple[HeldHour, ...]:
    """Held hours; each third partition by other code than now."""
    return tuple(HeldHour(h, "audit x: 1 bad", "s", "" if h // grain.hours % 3 else "old") for h in sorted(found))


def waiting(
    *,
    pending: Collection[int] = (),
    skipped: Collection[int] = (),
    held: Iterable[HeldHour] = (),
    following: Collection[int] = (),
) -> dict[int, Waiting]:
    """Hour → why it waits. Hours that follow are pending, too."""
    found = {hour: Waiting("skipped") for hour in skipped}
    for hour in pending:
        found[hour] = Waiting("follows" if hour in following else "changed")
    for each in held:
        kind: Kind = "retry" if each.hour in pending else "held"
        found[each.hour] = Waiting(kind, each.why, 0, each.session_id, each.code_version)
    return dict(sorted(found.items()))


committeds = st.builds(
    Committed,
    waiting=st.builds(
        waiting, pending=some_hours, skipped=some_hours, held=some_hours.map(holding), following=some_hours
    ),
    last_built=maybe_hour,
    complete_through=maybe_hour,
    chunk_hours=st.integers(0, 4),
)
grains = st.sampled_from([HOUR, SHIFT])
thorough = settings(deadline=None, suppress_health_check=list(HealthCheck))


def mark(source: str, snapshot_id: int | None, through: int | None) -> Watermark:
    return Watermark(source, f"uuid-{source}", snapshot_id, snapshot_id or 0, 0, through)


def snapshot(number: int, effect: Any, touched: frozenset[int], rows_of_no_hour: int = 0) -> SnapshotChange:
    if effect == "none":
        return SnapshotChange(number, "replace", 0, "none")
    files = [FileChange(f"{number}-{h}", 1, 10, {}, (h, h)) for h in sorted(touched)]
    if rows_of_no_hour:
        files.append(FileChange(f"{number}-bad", rows_of_no_hour, 10, {}, None))
    operation = {"append": "append", "rewrite": "overwrite"}[effect]
    return SnapshotChange(number, operation, 0, effect, tuple(files), tuple(ranges(touched)))


def touched_hours(found: Iterable[SnapshotChange]) -> frozenset[int]:
    """The hours that any of the snapshots touched."""
    hours: set[int] = set()
    for change in found:
        for first, last in change.hours:
            hours.update(range(first, last + 1))
    return frozenset(hours)


def source_changes(name: str, since: Watermark | None, head: Watermark, found: list[SnapshotChange]) -> SourceChanges:
    how: Literal["initial", "history"] = "initial" if since is None else "history"
    return SourceChanges(name, "event_ts", since, head, how, tuple(found))


@st.composite
def planning_inputs(draw: st.DrawFn) -> PlanningInput:
    mode, grain = draw(modes), draw(grains)
    count = 1 if isinstance(mode, Stateless) else draw(st.integers(1, 3))
    found = []
    for name in [f"raw.source_{i}" for i in range(count)]:
        drawn = draw(st.lists(snapshots, max_size=3))
        since = draw(st.sampled_from([None, mark(name, 100, None)]))
        new = [snapshot(101 + i, *values) for i, values in enumerate(drawn)]
        if since is None:  # everything counts as one append
            new = [replace(s, effect="append", operation="append") for s in new if s.effect != "none"][:1]
        head = since.snapshot_id if since else None
        if new:
            head = new[-1].snapshot_id
        found.append(source_changes(name, since, mark(name, head, draw(maybe_hour)), new))
    committed = whole(draw(committeds), grain)
    if isinstance(mode, Sequential):
        left = {hour: waits for hour, waits in committed.waiting.items() if waits.kind not in HELD}
        committed = replace(committed, waiting=left)
    whole_chunks = draw(st.booleans())
    return PlanningInput(PROCESS, mode, tuple(found), committed, grain=grain, start=START, whole_chunks=whole_chunks)


def whole(committed: Committed, grain: Grain) -> Committed:
    """As a process leaves it, which only ever builds whole partitions."""
    last, through = committed.last_built, committed.complete_through
    pending = frozenset(together(committed.pending, grain))
    return Committed(
        waiting=waiting(
            pending=pending,
            skipped=together(committed.skipped, grain),
            held=holding(frozenset(together(committed.held_hours, grain)), grain),
            following=pending.intersection(together(committed.following, grain)),
        ),
        last_built=None if last is None else max(together({last}, grain)),
        complete_through=None if through is None else max(together({through}, grain)),
        chunk_hours=committed.chunk_hours * grain.hours,
    )


def together(found: set[int] | frozenset[int], grain: Grain) -> set[int]:
    """The hours, and all those that share a partition with one of them."""
    numbers = {(h - START) // grain.hours for h in found}
    return {h for h in range(START, START + SPAN + grain.hours) if (h - START) // grain.hours in numbers}
