"""View of the maintenance of tables, and its progress bar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lake_assets.incremental.operations.maintain import MaintenanceReport
from lake_assets.pages.terminal.render import Column, Part, TableView, faint, megabytes, warning

_FIGURES: TableView[MaintenanceReport] = TableView(
    (
        Column("table", lambda done: done.table),
        Column("files", lambda done: _change(done.before.files, done.after.files), right=True),
        Column("stored files", lambda done: _change(done.before.stored_files, done.after.stored_files), right=True),
        Column("stored MB", lambda done: _mb_change(done.before.stored_bytes, done.after.stored_bytes), right=True),
        Column("snapshots", lambda done: _change(done.before.snapshots, done.after.snapshots), right=True),
        Column("manifests", lambda done: _change(done.before.manifests, done.after.manifests), right=True),
        Column("compacted", lambda done: done.partitions_compacted, right=True),
        Column("expired", lambda done: done.snapshots_expired, right=True),
        Column("orphans", lambda done: done.orphans_removed, right=True),
        Column("s", lambda done: f"{sum(done.seconds.values()):.1f}", right=True),
    )
)


def maintained(found: Sequence[MaintenanceReport]) -> Iterator[Part]:
    """Show the figures of each table, before and after. For a dry run, they are what maintenance would do."""
    yield from _FIGURES(found)
    for done in found:
        for note in done.notes:
            yield warning(f"{done.table}: {note}")
    if any(done.dry_run for done in found):
        yield faint("This was a dry run: nothing was changed.")


def _change(before: int, after: int) -> str:
    return f"{after:,}" if before == after else f"{before:,} → {after:,}"


def _mb_change(before: int, after: int) -> str:
    old = megabytes(before)
    new = megabytes(after)
    return new if old == new else f"{old} → {new}"
