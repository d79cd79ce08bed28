"""Which hours of the target have changed, by the changes of its sources."""

from __future__ import annotations

from collections.abc import Collection

from lake_assets.incremental.planning.changes.source_changes import describe, describe_earlier
from lake_assets.incremental.planning.plan.planning_input import PlanningInput


def changed_hours(inputs: PlanningInput) -> dict[int, str]:
    """Return changed hour → reason: the first snapshot that touched its partition; else an earlier version of a key."""
    reasons: dict[int, str] = {}
    for source in inputs.changes:
        for snapshot in source.effective:
            for hours in snapshot.hours:
                reason = describe(source, snapshot, hours)
                for hour in _of_whole_partitions(inputs, *hours):
                    reasons.setdefault(hour, reason)
    for source in inputs.changes:
        for hours in source.earlier.hours:
            reason = describe_earlier(source, hours)
            for hour in _of_whole_partitions(inputs, *hours):
                reasons.setdefault(hour, reason)
    return reasons


def with_pending(inputs: PlanningInput, reasons: dict[int, str], pending: Collection[int]) -> dict[int, str]:
    """Return the reasons, with the one that was found first for each pending hour."""
    return {**reasons, **{hour: inputs.committed.why(hour) for hour in pending}}


def only_appends(inputs: PlanningInput) -> bool:
    """Whether appending the new rows of every source brings the target up to date: they replace no earlier version."""
    return all(c.appends_only and not c.earlier.exist for c in inputs.changes)


def has_new_rows(inputs: PlanningInput) -> bool:
    """Whether any source has new data files with rows, in hours that count or not."""
    return any(source.rows_added for source in inputs.changes)


def has_new_snapshots(inputs: PlanningInput) -> bool:
    """Whether any source has snapshots after its watermark, compactions included."""
    return any(c.since is not None and c.snapshots for c in inputs.changes)


def _of_whole_partitions(inputs: PlanningInput, first: int, last: int) -> range:
    first_of_partition = inputs.grain.first(first)
    last_of_partition = inputs.grain.last(last)
    return range(first_of_partition, last_of_partition + 1)
