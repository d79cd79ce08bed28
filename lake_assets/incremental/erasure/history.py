"""Removal of old snapshots and their files after rows were erased, so that no file contains the id any more."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from time import monotonic, sleep

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from lake_assets.base.failpoints import reach
from lake_assets.base.id_matcher import IdMatcher
from lake_assets.errors import ErasureStopped
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.iceberg import QUARANTINE, session_table
from lake_assets.incremental.engine.retention import (
    SnapshotReferences,
    drop_deleted_entries,
    expire,
    former_tables,
    read_references,
    remove_file,
    remove_unreferenced_files,
    unreferenced_files,
)
from lake_assets.incremental.erasure.file_search import search_file

WRITER_SECONDS = 60
"""How long an erasure waits for a writer to commit a file with the id, or to remove it."""


def _log_tables(catalog: Catalog) -> tuple[str, str]:
    """Return the tables of the engine that may contain an id."""
    return session_table(catalog), QUARANTINE


@dataclass(frozen=True)
class Removed:
    """How many snapshots were expired, and how many files were removed."""

    snapshots: int
    files: int


def remove_history(catalog: Catalog, names: Sequence[str], *, orphaned_before: datetime) -> Removed:
    """Expire the old snapshots of tables and of the log tables, and remove their files.

    Args:
        catalog: The catalog of the tables.
        names: The tables; the log tables are added.
        orphaned_before: Orphans that were last written before this moment are removed, too.

    Raises:
        ErasureStopped: A watermark or an open session still needs an old snapshot; then nothing was expired.
    """
    references = read_references(catalog)
    all_names = [*names, *_log_tables(catalog)]
    for name in all_names:
        _check_no_old_snapshot_is_needed(catalog, name, references)
    snapshots = 0
    for name in all_names:
        if name in _log_tables(catalog):
            drop_deleted_entries(catalog, name)
        snapshots += expire(catalog, name, partial(_all_but, references.next_reads(name)))[1]
    reach("erasure-expired")
    files = 0
    for name in all_names:
        files += remove_unreferenced_files(catalog, name, orphaned_before=orphaned_before)
    reach("erasure-files-removed")
    return Removed(snapshots, files)


def _all_but(kept: Collection[int], table: Table) -> list[int]:
    return [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id not in kept]


def _check_no_old_snapshot_is_needed(catalog: Catalog, name: str, references: SnapshotReferences) -> None:
    table = iceberg.load(catalog, name)
    behind = set()
    for snapshot_id, process in references.next_reads(name).items():
        if not _has_only_gained_rows(table, snapshot_id):
            behind.add(process)
    if behind:
        raise ErasureStopped(
            f"An old snapshot of {name} is still needed by {', '.join(sorted(behind))}.",
            remedy="Run these processes until they have nothing to do, then erase again.",
        )


def _has_only_gained_rows(table: Table, snapshot_id: int) -> bool:
    """Return whether main has all rows of a snapshot: others have appended to it since, as a loader does."""
    for snapshot in publish.ancestors(table):
        if snapshot.snapshot_id == snapshot_id:
            return True
        if snapshot.summary is None or snapshot.summary.operation is not Operation.APPEND:
            return False
    return False


def _check_no_former_table(catalog: Catalog, name: str, strays: Sequence[str], subject: str) -> None:
    """Check that no other table has metadata in a table's folder: the files may be rows that it still needs."""
    former = former_tables(iceberg.load(catalog, name))
    if former:
        raise ErasureStopped(
            f"The folder of {name} holds {len(strays)} files with the {subject} that may belong to a former table.",
            remedy=f"If that table is not needed, delete its metadata files ({', '.join(sorted(former.values()))}) and "
            "erase again: then its files are removed. Otherwise register it in the catalog first.",
        )


def remove_strays(catalog: Catalog, names: Sequence[str], subject: str, matcher: IdMatcher) -> tuple[int, bool]:
    """Remove files with the id that no version of a table refers to and that are too young to be orphans.

    `etl.session` leaves such files when it expires its own snapshots. They are removed, because its present version is
    later than they are. Such a file of another table may belong to a writer that has not committed yet: it is waited
    for until it is committed or gone. What is written meanwhile is not waited for, because its rows came later.

    Args:
        catalog: The catalog of the tables.
        names: The tables; the log tables are added.
        subject: What the id identifies, for the error.
        matcher: The ids.

    Returns:
        How many files were removed, and whether a writer may have committed rows with the id meanwhile.

    Raises:
        ErasureStopped: Another table than `etl.session` still has such files after `WRITER_SECONDS`, or they may belong
            to a former table.
    """
    removed = 0
    came = False
    for name in (*names, *_log_tables(catalog)):
        io = iceberg.load(catalog, name).io
        strays = []
        for file in unreferenced_files(catalog, name):
            if search_file(io, file.location, matcher).occurrences:
                strays.append(file.location)
        if strays:
            _check_no_former_table(catalog, name, strays, subject)
        if strays and name != session_table(catalog):
            left = _wait_for_writers(catalog, name, strays)
            if left:
                raise ErasureStopped(
                    f"{name} does not refer to {len(left)} files that hold the {subject}: "
                    "a writer has not committed them yet, or died before it did.",
                    remedy="Erase again when no writer is active and the files are a day old: then they are removed.",
                )
            strays, came = [], True
        for path in strays:
            remove_file(io, path)
        removed += len(strays)
    return removed, came


def _wait_for_writers(catalog: Catalog, name: str, files: Collection[str]) -> set[str]:
    """Wait until a table refers to files, or they are gone; return those that are left after `WRITER_SECONDS`."""
    until = monotonic() + WRITER_SECONDS
    left = set(files)
    while left and monotonic() < until:
        sleep(1)
        left &= {file.location for file in unreferenced_files(catalog, name)}
    return left
