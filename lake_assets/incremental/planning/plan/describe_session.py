"""Building a session plan: its id, its sources, its cost, and the notes for people."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from lake_assets.base.hours import format_hours
from lake_assets.incremental.planning.changes import SourceChanges
from lake_assets.incremental.planning.deferred import DeferredHour, LateRows
from lake_assets.incremental.planning.deferred import in_words as deferred_in_words
from lake_assets.incremental.planning.plan.changed_hours import changed_hours
from lake_assets.incremental.planning.plan.complete_hours import advances
from lake_assets.incremental.planning.plan.lanes import waiting_hours
from lake_assets.incremental.planning.plan.planning_input import PlanningInput, hours_are_independent, reloads_all
from lake_assets.incremental.planning.session import (
    Cost,
    HeldHour,
    PlannedHour,
    SessionPlan,
    SourceRange,
)
from lake_assets.incremental.planning.verdicts import capped, in_words

Load = Literal["append", "overwrite", "none"]
"""How a session writes its hours, as in `SessionPlan.load`."""

ID_DIGITS = 16
"""Hexadecimal digits of the hash in a session id."""


def new_session(
    inputs: PlanningInput,
    load: Load,
    hours: Mapping[int, str],
    *,
    complete_through: int | None,
    pending: Collection[int] = (),
    skipped: Collection[int] = (),
    follows: Collection[int] = (),
    late: tuple[LateRows, ...] = (),
) -> SessionPlan:
    """Return the plan of a session over all changes of the sources.

    Args:
        inputs: The planning input.
        load: How the hours are written.
        hours: Hour → reason, for the hours to build.
        complete_through: The target's complete-through after the session; ignored unless it advances.
        pending: Hours that will be pending.
        skipped: Hours that will be skipped.
        follows: Hours that will be pending unless the last hour comes out unchanged.
        late: What an append reads besides the new snapshots.
    """
    still_held = [held for held in inputs.committed.held if held.hour not in hours]
    deferred = tuple(waiting for waiting in waiting_hours(inputs) if waiting.hour in pending)
    notes = _notes(inputs, skipped, follows, still_held, deferred)
    draft = SessionPlan(
        process=inputs.process,
        session_id="",
        kind="session",
        load=load,
        sources=source_ranges(inputs),
        hours=tuple(PlannedHour(hour, hours[hour]) for hour in sorted(hours)),
        pending=tuple(sorted(pending)),
        skipped=tuple(sorted(skipped)),
        follows=tuple(sorted(follows)),
        held=tuple(held.hour for held in still_held),
        complete_through=complete_through if advances(inputs, complete_through) else None,
        processing_uris=_processing_uris(inputs.changes),
        cost=_cost(inputs.changes),
        notes=tuple(notes),
        code_version=inputs.code_version,
        deferred=deferred,
        late_rows=late,
        reasons=_reasons_to_wait(inputs, {*pending, *skipped, *follows}),
    )
    return identified(draft, inputs)


def _reasons_to_wait(inputs: PlanningInput, hours: Collection[int]) -> dict[int, str]:
    """Return hour → reason, for hours that wait after a session: the one that was found first."""
    changed = changed_hours(inputs) if hours else {}
    known = inputs.committed.waiting
    return {hour: known[hour].why if hour in known else changed.get(hour, "") for hour in sorted(hours)}


def identified(draft: SessionPlan, inputs: PlanningInput, token: str = "") -> SessionPlan:
    """Return the plan, of a bounded number of hours, with its session id: planning again gives the same id.

    Args:
        draft: A plan without an id, of any number of hours.
        token: Distinguishes sessions that plan the same.
    """
    draft = _bounded(draft, inputs)
    parts = [
        draft.process,
        draft.kind,
        draft.load,
        str(draft.complete_through),
        str(inputs.revision),
        token,
    ]
    for source in draft.sources:
        parts.append(f"{source.source}:{source.table_uuid}:{source.from_snapshot_id}:{source.to_snapshot_id}")
    for hours in (draft.hour_numbers, draft.pending, draft.skipped, draft.follows):
        parts.append(format_hours(hours))
    return replace(draft, session_id=_session_id(draft.process, parts))


def _bounded(draft: SessionPlan, inputs: PlanningInput) -> SessionPlan:
    """Return the plan of its first `max_hours`, in whole partitions; the others are pending.

    Hours that the target was not complete through come first, unless hours depend on those before them. An append
    becomes an overwrite: the new snapshots have the rows of the other hours, too.
    """
    committed = inputs.committed
    limit = inputs.max_hours
    if reloads_all(inputs.mode) and committed.last_built is not None:
        # Each session begins with the hours of the threshold again, so it has to go beyond them.
        limit += sum(hour <= committed.last_built for hour in draft.hour_numbers)
    if len(draft.hours) <= limit:
        return draft
    complete = committed.complete_through
    in_order = list(draft.hour_numbers)
    if hours_are_independent(inputs.mode) and complete is not None:
        in_order.sort(key=lambda hour: (hour <= complete, hour))
    now = inputs.grain.whole(in_order[:limit])
    rest = sorted(set(in_order) - now)
    through = capped(draft.complete_through, rest, complete)
    return replace(
        draft,
        load="overwrite",
        hours=tuple(planned for planned in draft.hours if planned.hour in now),
        pending=tuple(sorted({*draft.pending, *rest})),
        reasons={**draft.reasons, **{each.hour: each.reason for each in draft.hours if each.hour not in now}},
        complete_through=through if advances(inputs, through) else None,
        notes=(*draft.notes, f"{len(rest):,} more hours wait for the next sessions: each builds {limit:,} at most"),
        late_rows=(),
    )


def source_ranges(inputs: PlanningInput) -> tuple[SourceRange, ...]:
    """Return the snapshots of each source that a session covers."""
    return tuple(_source_range(source) for source in inputs.changes)


def _source_range(source: SourceChanges) -> SourceRange:
    head = source.head
    return SourceRange(
        source=source.source,
        table_uuid=head.table_uuid,
        from_snapshot_id=source.since.snapshot_id if source.since else None,
        to_snapshot_id=head.snapshot_id,
        to_sequence_number=head.sequence_number,
        to_timestamp_ms=head.timestamp_ms,
        complete_through=head.complete_through,
        totals=head.totals,
        last_hour=head.last_hour,
        appends_only=source.appends_only,
    )


LANDING_PARTITION = {"landing_date", "landing_hour", "batch_id"}
"""The fields of the partition of a landed file. Files of tables that others have created may have none of them."""


def _session_id(process: str, parts: Iterable[str]) -> str:
    digest = hashlib.sha256("|".join(parts).encode()).hexdigest()
    name = process.split(".")[-1]
    return f"{name}-{digest[:ID_DIGITS]}"


def _processing_uris(changes: Iterable[SourceChanges]) -> tuple[dict[str, object], ...]:
    """Return the landing partitions of the new files, each once, ordered by their values."""
    partitions: dict[tuple[str, ...], dict[str, object]] = {}
    for source in changes:
        for file in source.added:
            if file.partition.keys() >= LANDING_PARTITION:
                values = tuple(map(str, file.partition.values()))
                partitions.setdefault(values, dict(file.partition))
    return tuple(partitions[values] for values in sorted(partitions))


def _cost(changes: Iterable[SourceChanges]) -> Cost:
    files = rows = size = 0
    for source in changes:
        files += len(source.added)
        rows += source.rows_added
        size += sum(file.bytes for file in source.added)
    return Cost(files=files, rows=rows, bytes=size)


def _notes(
    inputs: PlanningInput,
    skipped: Collection[int],
    follows: Collection[int],
    still_held: Sequence[HeldHour],
    deferred: Sequence[DeferredHour],
) -> Iterator[str]:
    for source in inputs.changes:
        yield from _notes_on_source(source)
    grain = inputs.grain
    if follows:
        yield (
            f"{grain.format_hours(follows)}: recomputed next,"
            f" but only if the last {grain.name} of this session comes out changed"
        )
    if skipped:
        yield f"skipped, beyond the catch-up threshold, open to a backfill: {grain.format_hours(skipped)}"
    if still_held:
        yield in_words(still_held)
    if deferred:
        yield deferred_in_words(deferred, inputs.late, grain)


def _notes_on_source(source: SourceChanges) -> Iterator[str]:
    compactions = sum(snapshot.effect == "none" for snapshot in source.snapshots)
    if compactions:
        yield f"{source.source}: {compactions} compaction(s) skipped, no row changed"
    if source.how == "expired":
        yield f"{source.source}: the watermark's snapshot has expired; the hours of newer files are overwritten"
    if source.how == "rewound":
        yield (
            f"{source.source}: the head does not descend from the watermark;"
            " the hours of all files that differ are rebuilt"
        )
