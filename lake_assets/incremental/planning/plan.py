"""Which hours to rebuild, and why. Pure: data in, data out; no I/O, no clock, no table.

(changes per source, what the process has committed, mode) → a session plan, or why there is none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lake_assets.base.grain import HOUR, Grain
from lake_assets.base.hours import format_hours, hour_key
from lake_assets.incremental.declaration import Mode, Sequential, Stateful, Stateless
from lake_assets.incremental.planning.changes import SourceChanges, describe
from lake_assets.incremental.planning.session import (
    Cost,
    Decision,
    HeldHour,
    NoSession,
    PlannedHour,
    SessionPlan,
    SourceRange,
)
from lake_assets.incremental.planning.verdicts import capped, check_none_held, in_words, still_held


@dataclass(frozen=True)
class Committed:
    """What a process has committed, its watermarks aside.

    pending: hours seen to have changed and not yet rebuilt. skipped: late hours beyond the catch-up threshold.
    last_built: the last hour built, of a sequential or stateful target. complete_through: the target's.
    held: hours that an audit holds back, ascending; one that is pending, too, has changed since.
    code_version: of the last session that built hours. uniform_from: of a sequential target: from this hour to the last
        one built, all rows are of that code; None: that is not known of any.
    """

    pending: frozenset[int] = frozenset()
    skipped: frozenset[int] = frozenset()
    last_built: int | None = None
    complete_through: int | None = None
    held: tuple[HeldHour, ...] = ()
    code_version: str = ""
    uniform_from: int | None = None

    @property
    def held_hours(self) -> frozenset[int]:
        return frozenset(h.hour for h in self.held)


@dataclass(frozen=True)
class PlanningInput:
    """All that planning one process needs to know.

    revision: of the watermarks. Snapshots and hours may recur, after a rollback and its undoing: in another session.
    grain: of the target. All hours that are planned, pending or skipped are those of whole partitions.
    start: the pipeline's first hour; before it nothing counts as complete.
    """

    process: str
    mode: Mode
    changes: tuple[SourceChanges, ...]
    committed: Committed
    code_version: str = ""
    revision: int = 0
    grain: Grain = HOUR
    start: int = 0


def plan(question: PlanningInput) -> Decision:
    """The next session of a process, or why there is none. Held hours come last, each as a session of its own.

    Raises `ConfigurationError` for a sequential target with held hours.
    """
    mode = question.mode
    check_none_held(question.process, mode, question.committed.held)
    decision = _plan_stateless(question) if isinstance(mode, Stateless) else _plan_stateful(question, mode)
    if isinstance(decision, SessionPlan) and decision.load != "none":
        return decision
    return _plan_held(question, decision) or _told(decision, question.committed.held)


def plan_acknowledged(question: PlanningInput) -> Decision:
    """As `plan`, but where that waits, the watermark moves to the sources' heads: what changed is pending then.

    For those who must let go of the snapshots behind the heads.
    """
    decision = plan(question)
    if isinstance(decision, SessionPlan) or not any(c.moved for c in question.changes):
        return decision
    if not isinstance(question.mode, Stateless) and _reach(question) is None:
        return decision
    changed = _reasons(question).keys() | question.committed.pending
    return _session(question, "none", {}, pending=changed, through=_promise(question))


def plan_rebuild(question: PlanningInput, hours: Collection[int], *, present: Collection[int], token: str) -> Decision:
    """A backfill of `hours` from the sources as the changes' heads say, leaving the watermark where it is.

    A sequential target is rebuilt from the first hour to the last one built. Hours above complete-through are left out.
    So is one whose hours depend on their sequence, where an hour that is pending or was skipped is built at last.
    present: all event hours known of the sources; before the first session, those left out become pending.
    token: tells one backfill from the next, so that the same hours can be rebuilt again.
    Raises `ConfigurationError` for a sequential target with held hours that it would not build.
    """
    committed, upper, grain = question.committed, _reach(question), question.grain
    first_session = any(c.since is None for c in question.changes)
    unread = grain.whole(present) if first_session else frozenset()
    wanted = _widened(question, set(grain.whole(hours)), unread)
    if not wanted:
        return NoSession("idle", "no hour was chosen")
    allowed = (
        {h for h in wanted if upper is not None and h <= upper} if not isinstance(question.mode, Stateless) else wanted
    )
    left_out = sorted(wanted - allowed)
    if not allowed:
        return NoSession(
            "wait", f"{grain.format_hours(left_out)} cannot be rebuilt yet: {_waits_for(question, min(left_out))}"
        )
    check_none_held(question.process, question.mode, committed.held, first=min(allowed))
    pending = (committed.pending | unread) - allowed
    notes = [f"left out, not complete yet: {grain.format_hours(left_out)}"] if left_out else []
    planned = tuple(PlannedHour(h, "rebuild, asked for") for h in sorted(allowed))
    draft = SessionPlan(
        process=question.process,
        session_id="",
        kind="rebuild",
        load="overwrite",
        sources=_ranges_of(question),
        hours=planned,
        pending=tuple(sorted(pending)),
        complete_through=_built_through(question, allowed) if first_session else None,
        cost=Cost(),
        notes=tuple(notes),
        code_version=question.code_version,
    )
    return _identified(draft, question.revision, token)


def another(planned: SessionPlan, number: int) -> SessionPlan:
    """The same plan as a session of its own: the number-th after the one whose id it would have."""
    return replace(planned, session_id=_session_id(planned.process, [planned.session_id, str(number)]))


def committed_after(
    mode: Mode,
    before: Committed,
    planned: SessionPlan,
    built: Collection[int],
    unchanged: Collection[int] = (),
    held: Collection[HeldHour] = (),
) -> Committed:
    """What is committed once a session is that has built these hours; of these, some came out as they were.

    held: hours that it has held back instead.
    """
    converged = bool(planned.hours) and planned.hours[-1].hour in unchanged
    promised = capped(planned.complete_through, [h.hour for h in held], before.complete_through)
    through = max((h for h in (before.complete_through, promised) if h is not None), default=None)
    last = max((h for h in (before.last_built, *built) if h is not None), default=None)
    if isinstance(mode, Stateful):
        # Its hours need no row: what is complete and has none is built, too.
        last = max((h for h in (last, through) if h is not None), default=None)
    return Committed(
        pending=frozenset(planned.pending if converged else (*planned.pending, *planned.follows)),
        skipped=(before.skipped | frozenset(planned.skipped)) - frozenset(built),
        last_built=None if isinstance(mode, Stateless) else last,
        complete_through=through,
        held=still_held(before.held, built, held),
        code_version=planned.code_version if planned.hours else before.code_version,
        uniform_from=_uniform_from(before, planned) if isinstance(mode, Sequential) else None,
    )


def _uniform_from(before: Committed, planned: SessionPlan) -> int | None:
    """From which hour on the target is of one code, once the planned hours, which have no gap, are built."""
    if planned.envelope is None:
        return before.uniform_from
    first, last = planned.envelope
    known = before.uniform_from if before.code_version == planned.code_version else None
    if known is not None and last >= known - 1:
        return min(first, known)
    return first if before.last_built is None or last >= before.last_built else known


def _widened(question: PlanningInput, hours: set[int], unread: Collection[int]) -> set[int]:
    """The hours with all that hang on them. unread: hours of sources without a watermark."""
    mode, built = question.mode, question.committed.last_built
    if not hours or isinstance(mode, Stateless) or (isinstance(mode, Stateful) and mode.load == "changed"):
        return hours
    last = max(hours) if built is None else max(*hours, built)
    if isinstance(mode, Stateful):
        overdue = hours & {*question.committed.pending, *question.committed.skipped, *unread}
        overdue -= question.committed.held_hours  # what follows from these was built from the sources
        return hours | set(range(min(overdue), last + 1)) if overdue else hours
    # The state at the end of the hour before has to be there: no hour before the first may be missing or overdue.
    first = min([*hours, *unread, *(h for h in question.committed.pending if h < last)])
    return set(range(first if built is None else min(first, built + 1), last + 1))


def _built_through(question: PlanningInput, built: Collection[int]) -> int | None:
    # Hours that a first backfill leaves out are not built, so nothing may be called complete by it.
    return max(built) if isinstance(question.mode, Sequential) else None


def _plan_stateless(question: PlanningInput) -> Decision:
    through, held = _promise(question), question.committed.held_hours
    changed = _reasons(question)
    pending, touched = question.committed.pending - held, held & (changed.keys() | question.committed.pending)
    reasons = {h: why for h, why in changed.items() if h not in held}
    if reasons or pending:
        append = not pending and all(c.appends_only for c in question.changes)
        reasons |= dict.fromkeys(pending - reasons.keys(), "pending since an earlier session")
        return _session(question, "append" if append else "overwrite", reasons, pending=touched, through=through)
    if not changed and _rows_added(question.changes) and all(c.appends_only for c in question.changes):
        # Rows that lie in no hour that counts: they go to quarantine, which is a session's business.
        return _session(question, "append", {}, pending=touched, through=through)
    if changed or _compacted(question) or _advanced(question, through):
        return _session(question, "none", {}, pending=touched, through=through)
    return NoSession("idle", f"no new snapshot of {_names(question.changes)}")


def _plan_stateful(question: PlanningInput, mode: Stateful | Sequential) -> Decision:
    through, reach = _promise(question), _reach(question)
    if through is None or reach is None:
        return NoSession("wait", _why_none_is_complete(question))
    pending, held = question.committed.pending, question.committed.held_hours
    changed = _reasons(question)
    # What follows from a held hour that changed was built when it did: only that hour itself is left.
    changed |= dict.fromkeys(pending - held - changed.keys(), "pending since an earlier session")
    later = {h for h in changed if h > reach}
    beyond = _beyond_threshold(changed, question, mode)
    every = _filled({h: why for h, why in changed.items() if h not in beyond | later}, question, mode, reach)
    due = {h: changed.get(h, why) for h, why in every.items() if h not in held}
    skipped, touched = beyond - every.keys(), held & (every.keys() | pending)
    if due:
        # The first one is as good as changed: what has may be held.
        now, behind, follows = _cut(due, changed.keys() | {min(due)}, question, mode)
        upto = through if max(now) == max(due) or not isinstance(mode, Sequential) else None
        return _session(
            question, "overwrite", now, pending=later | behind | touched, skipped=skipped, through=upto, follows=follows
        )
    if skipped or every or _advanced(question, through) or (_compacted(question) and not later):
        return _session(question, "none", {}, pending=later | touched, skipped=skipped, through=through)
    if later:
        return NoSession(
            "wait",
            f"{question.grain.name}s {question.grain.format_hours(later)} wait for {_waits_for(question, min(later))}",
        )
    return NoSession("idle", f"no new snapshot of {_names(question.changes)}")


def _plan_held(question: PlanningInput, others: Decision) -> SessionPlan | None:
    """The earliest held partition for which something has changed, alone; None if there is none.

    others: what would be done without it, which is no more than to move the watermark.
    """
    changed, reach, grain = _reasons(question), _reach(question), question.grain
    plain = others if isinstance(others, SessionPlan) else None
    pending = {*plain.pending} if plain else changed.keys() | question.committed.pending
    due = [h for h in question.committed.held if h.hour in pending or h.code_version != question.code_version]
    if not isinstance(question.mode, Stateless):
        due = [h for h in due if reach is not None and h.hour <= reach]
    if not due:
        return None
    hours = sorted(grain.whole([due[0].hour]))
    was = f"was held back by {due[0].why}"
    return _session(
        question,
        "overwrite",
        {hour: f"{changed.get(hour, 'a source or the code has changed')}; {was}" for hour in hours},
        pending=pending - {*hours},
        skipped=plain.skipped if plain else (),
        through=_promise(question, built=hours),
    )


def _told(decision: Decision, held: Sequence[HeldHour]) -> Decision:
    """A wait names the held hours, too; a plan does in its notes."""
    if isinstance(decision, SessionPlan) or not held:
        return decision
    return replace(
        decision, reason=f"{decision.reason}; {in_words(held)}; it waits for a change of a source or the code"
    )


def _beyond_threshold(changed: Collection[int], question: PlanningInput, mode: Stateful | Sequential) -> set[int]:
    """Late hours that a session does not reach back to; never one that was not built yet, is pending or held."""
    committed, threshold = question.committed, question.grain.rounded_up(mode.catchup_threshold)
    if threshold is None or committed.last_built is None:
        return set()
    floor = committed.last_built - threshold + 1
    return {h for h in changed if h < floor and h not in committed.pending | committed.held_hours}


def _filled(due: dict[int, str], question: PlanningInput, mode: Stateful | Sequential, upper: int) -> dict[int, str]:
    """The hours to recompute for the hours that are due."""
    committed, lower = question.committed, min(due, default=None)
    if isinstance(mode, Stateful) and mode.load == "changed":
        return due
    if isinstance(mode, Sequential) and committed.last_built is not None and committed.last_built < upper:
        lower = committed.last_built + 1 if lower is None else min(lower, committed.last_built + 1)
    if lower is None:
        return {}
    late = min(due, default=upper + 1)
    return {h: due.get(h) or _why_filled(h, late, question) for h in range(lower, upper + 1)}


def _cut(
    due: dict[int, str], changed: Collection[int], question: PlanningInput, mode: Stateful | Sequential
) -> tuple[dict[int, str], set[int], set[int]]:
    """Hours for this session; those that wait behind it; and those that do if this session's last hour changes.

    A range that is too long is cut only where it was built before. New hours come first, and all of them; but those of
    a sequential target last, for an hour must not stand on a state that is known to be wrong.
    """
    built = question.committed.last_built
    old = sorted(h for h in due if built is not None and h <= built)
    new, most = due.keys() - set(old), question.grain.rounded_up(mode.chunk_hours)
    if not old or most is None or (len(old) if isinstance(mode, Sequential) else len(due)) <= most:
        return due, set(), set()
    if isinstance(mode, Sequential):
        rest = set(old[most:])
        return {h: due[h] for h in old[:most]}, (rest | new) & set(changed), rest - set(changed)
    if mode.load == "changed":
        behind = set(old if new else old[:-most])
        return {h: due[h] for h in due if h not in behind}, behind, set()
    if new:
        return {h: due[h] for h in due if h in new}, {h for h in old if h in changed}, set()
    return {h: due[h] for h in old[:most]}, set(old[most:]), set()


def _why_filled(hour: int, late: int, question: PlanningInput) -> str:
    if hour > late:
        return f"follows from {question.grain.name} {question.grain.key(late)}, which changed"
    return f"complete, and not built yet (last built: {_key(question.committed.last_built)})"


def _why_none_is_complete(question: PlanningInput) -> str:
    if missing := [c.source for c in question.changes if c.head.complete_through is None]:
        return f"{', '.join(missing)}: complete-through is not set yet, so no hour is known to be complete"
    first = question.grain.key(question.start)
    return f"no {question.grain.name} is complete yet: {first} waits for {_waits_for(question, question.start)}"


def _reasons(question: PlanningInput) -> dict[int, str]:
    """Changed hour → the first snapshot that touched its partition, in words."""
    found: dict[int, str] = {}
    for c in question.changes:
        for snapshot in c.effective:
            for lower, upper in snapshot.hours:
                why = describe(c, replace(snapshot, hours=((lower, upper),)))
                for hour in range(question.grain.first(lower), question.grain.last(upper) + 1):
                    found.setdefault(hour, why)
    return found


def _upper(question: PlanningInput) -> int | None:
    """The last hour that the target may be complete through: if its rows hang on others, that of a whole partition."""
    through = [c.head.complete_through for c in question.changes]
    known = [t for t in through if t is not None]
    if len(known) < len(through):
        return None
    if isinstance(question.mode, Stateless):
        return min(known)
    upper = question.grain.complete(min(known))
    return upper if upper >= question.start else None


def _promise(question: PlanningInput, *, built: Collection[int] = ()) -> int | None:
    """How far the target is complete after a session, which may build held hours; None if sources do not say."""
    committed = question.committed
    return capped(_upper(question), committed.held_hours - {*built}, committed.complete_through)


def _reach(question: PlanningInput) -> int | None:
    """The last hour that may be built. If a source's complete-through went back, hours built already stay right."""
    upper, built = _upper(question), question.committed.last_built
    return upper if upper is None or built is None else max(upper, built)


def _rows_added(changes: Iterable[SourceChanges]) -> int:
    return sum(f.rows for c in changes for f in c.added)


def _compacted(question: PlanningInput) -> bool:
    return any(c.since is not None and c.snapshots for c in question.changes)


def _advanced(question: PlanningInput, through: int | None) -> bool:
    before = question.committed.complete_through
    return through is not None and (before is None or through > before)


def _session(
    question: PlanningInput,
    load: Literal["append", "overwrite", "none"],
    hours: dict[int, str],
    *,
    through: int | None,
    pending: Collection[int] = (),
    skipped: Collection[int] = (),
    follows: Collection[int] = (),
) -> SessionPlan:
    held = [h for h in question.committed.held if h.hour not in hours]
    draft = SessionPlan(
        process=question.process,
        session_id="",
        kind="session",
        load=load,
        sources=_ranges_of(question),
        hours=tuple(PlannedHour(h, hours[h]) for h in sorted(hours)),
        pending=tuple(sorted(pending)),
        skipped=tuple(sorted(skipped)),
        follows=tuple(sorted(follows)),
        held=tuple(h.hour for h in held),
        complete_through=through if _advanced(question, through) else None,
        processing_uris=_processing_uris(question.changes),
        cost=_cost(question.changes),
        notes=(*_notes(question, skipped, follows), *([in_words(held)] if held else [])),
        code_version=question.code_version,
    )
    return _identified(draft, question.revision)


def _identified(draft: SessionPlan, revision: int, token: str = "") -> SessionPlan:
    """The plan with its id: a function of what is planned, so that planning again gives the same id."""
    parts = [draft.process, draft.kind, draft.load, str(draft.complete_through), str(revision), token]
    parts += [f"{s.source}:{s.table_uuid}:{s.from_snapshot_id}:{s.to_snapshot_id}" for s in draft.sources]
    parts += [format_hours(hours) for hours in (draft.hour_numbers, draft.pending, draft.skipped, draft.follows)]
    return replace(draft, session_id=_session_id(draft.process, parts))


def _session_id(process: str, parts: Iterable[str]) -> str:
    digest = hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]
    return f"{process.split('.')[-1]}-{digest}"


def _ranges_of(question: PlanningInput) -> tuple[SourceRange, ...]:
    return tuple(
        SourceRange(
            source=c.source,
            table_uuid=c.head.table_uuid,
            from_snapshot_id=c.since.snapshot_id if c.since else None,
            to_snapshot_id=c.head.snapshot_id,
            to_sequence_number=c.head.sequence_number,
            to_timestamp_ms=c.head.timestamp_ms,
            complete_through=c.head.complete_through,
            totals=c.head.totals,
            last_hour=c.head.last_hour,
            appends_only=c.appends_only,
        )
        for c in question.changes
    )


def _processing_uris(changes: Iterable[SourceChanges]) -> tuple[dict[str, object], ...]:
    seen: dict[tuple[object, ...], dict[str, object]] = {}
    for c in changes:
        for f in c.added:
            if "batch_id" in f.partition:
                seen.setdefault(tuple(map(str, f.partition.values())), dict(f.partition))
    return tuple(seen[k] for k in sorted(seen))


def _cost(changes: Sequence[SourceChanges]) -> Cost:
    files = [f for c in changes for f in c.added]
    return Cost(len(files), sum(f.rows for f in files), sum(f.bytes for f in files))


def _notes(question: PlanningInput, skipped: Collection[int], follows: Collection[int]) -> Iterable[str]:
    for c in question.changes:
        compactions = [s for s in c.snapshots if s.effect == "none"]
        if compactions:
            yield f"{c.source}: {len(compactions)} compaction(s) skipped, no row changed"
        if c.how == "expired":
            yield f"{c.source}: the watermark's snapshot has expired; files newer than it are rebuilt by overwrite"
        if c.how == "rewound":
            yield f"{c.source}: the head does not descend from the watermark; the differing files' hours are rebuilt"
    if follows:
        yield (
            f"{question.grain.format_hours(follows)}: recomputed next,"
            f" but only if the last {question.grain.name} of this session comes out changed"
        )
    if skipped:
        yield f"skipped, beyond the catch-up threshold, open to a backfill: {question.grain.format_hours(skipped)}"


def _waits_for(question: PlanningInput, hour: int) -> str:
    """The sources that are not complete through the partition of an hour, and how far they are."""
    last = question.grain.last(hour)
    late = [c for c in question.changes if c.head.complete_through is None or c.head.complete_through < last]
    return ", ".join(f"{c.source}, complete through {_key(c.head.complete_through)}" for c in late) or "nothing"


def _key(hour: int | None) -> str:
    return "nothing yet" if hour is None else hour_key(hour)


def _names(changes: Iterable[SourceChanges]) -> str:
    return ", ".join(c.source for c in changes)
