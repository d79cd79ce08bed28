"""A log table: each move of a process appends rows with the next revision, and the newest revision counts.

A move names the revision that it starts from. The append is a compare-and-set: it is made on the state of the table in
which that revision was read, and Iceberg refuses it if the table moved (commit retries are off); then the revision is
read again. Each move is a file, so the files of a process are merged from time to time; that changes no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update.snapshot import ExpireSnapshots

from lake_assets.base.recent import Recent
from lake_assets.errors import StateMoved
from lake_assets.incremental.execution.session_log.log_files import files_by_process
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.transactions import OneCopyTransaction

KEEP_SNAPSHOTS = 5
"""Snapshots of a log table that are kept for readers at work. Its rows are the history; each snapshot costs a move."""

MERGE_FILES = 25
"""Number of small files of a process at which they are merged, so that a lookup or a move stays cheap."""

MERGE_ROWS = 1000
"""Rows from which on a file is not small any more."""

COMMIT_SECONDS = 30
"""How long a commit is tried again while others commit first."""


REMEMBERED_ROWS = 4096
"""Rows of newest revisions that are kept, some 10 MB: a process has one for each of its sources, and one session."""

Row = dict[str, Any]

_remembered: Recent[tuple[str, int, str, int], tuple[Row, ...]] = Recent(REMEMBERED_ROWS)


class ProcessLog:
    """The rows of one process in one state of a log table. File bounds locate them: a lookup opens at most one file."""

    def __init__(self, table: Table, process: str) -> None:
        self.table = table
        self.process = process
        self._process_filter = equal_to("process_name", process)
        files = files_by_process(table)
        self._files = files.get(process, ()) if files else ()
        self._last_revisions = [file.last for file in self._files]
        self._has_bounds = files is not None and None not in self._last_revisions

    @property
    def revision(self) -> int:
        """The newest revision; 0 without rows."""
        revisions = []
        if self._has_bounds:
            revisions += [revision for revision in self._last_revisions if revision is not None]
        else:
            revisions += [row["revision"] for row in self._scan(self._process_filter)]
        return max(revisions, default=0)

    def newest_rows(self) -> list[Row]:
        """Return the rows of the newest revision."""
        revision = self.revision
        if revision == 0:
            return []
        if not self._has_bounds:
            return [row for row in self._scan(self._process_filter) if row["revision"] == revision]
        file = self._files[self._last_revisions.index(revision)]
        return [dict(row) for row in self._rows_in(file.path, revision)]

    def _rows_in(self, path: str, revision: int) -> tuple[Row, ...]:
        """Return the rows of a revision in a data file. The file never changes, so they are read once."""
        file = self.table.io.new_input(path)
        # Its size shows whether a file that was read before is gone, or damaged since.
        key = (path, len(file), self.process, revision)
        known = _remembered.find(key)
        if known is not None:
            return known
        of_process = pc.field("process_name") == self.process
        of_revision = pc.field("revision") == revision
        with file.open() as opened:
            rows = pq.read_table(opened, filters=of_process & of_revision)
        found = tuple(rows.to_pylist())
        _remembered.keep(key, found, weight=1 + len(found))
        return found

    def merge_small_files(self) -> None:
        """Rewrite the newest files as one if they are many. No row changes; a large file is not rewritten again."""
        small = [file for file in self._files if file.rows < MERGE_ROWS]
        if len(small) < MERGE_FILES:
            return
        first_revision = min(file.first or 0 for file in small)
        newer = GreaterThanOrEqual("revision", first_revision)  # type: ignore[call-arg, arg-type]
        rows = And(self._process_filter, newer)
        merged = self.table.scan(rows).to_arrow()
        self.table.overwrite(merged, overwrite_filter=rows)

    def _scan(self, rows: BooleanExpression) -> list[Row]:
        found = self.table.scan(rows).to_arrow()
        return cast("list[Row]", found.to_pylist())


def append_revision(
    catalog: Catalog,
    name: str,
    process: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    expected: int,
) -> None:
    """Append the next revision of a process to a log table.

    Args:
        name: The log table.
        rows: Rows of revision `expected + 1`.
        expected: The newest revision that the table must have for the process.

    Raises:
        StateMoved: The newest revision is another one.
    """
    for attempt in tables.retrying(seconds=COMMIT_SECONDS):
        with attempt:
            table = tables.load(catalog, name)
            log = ProcessLog(table, process)
            found = log.revision
            if found != expected:
                raise StateMoved(
                    process,
                    expected=f"revision {expected} of {name}",
                    found=f"revision {found}",
                )
            with OneCopyTransaction(table) as transaction:
                transaction.append(arrow_rows(table, rows))
                _expire_old_snapshots(transaction, table)
    # The move is made. If another commit comes first now, a later move merges the files.
    with suppress(CommitFailedException):
        log.merge_small_files()


def equal_to(column: str, value: str) -> BooleanExpression:
    """Return the expression `column = value`."""
    # The expression is typed as its JSON form, not as its constructor.
    return EqualTo(column, value)  # type: ignore[call-arg, arg-type]


def arrow_rows(table: Table, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return rows with the columns and types of a table."""
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return pa.Table.from_pylist(list(rows), schema=schema)


def _expire_old_snapshots(transaction: Transaction, table: Table) -> None:
    """Expire all but the newest snapshots, except those that a branch or a tag refers to."""
    snapshots = list(table.metadata.snapshots)
    snapshots.sort(key=lambda snapshot: snapshot.sequence_number or 0)
    if len(snapshots) <= 2 * KEEP_SNAPSHOTS:
        return
    referred = {ref.snapshot_id for ref in table.metadata.refs.values()}
    expired = []
    for snapshot in snapshots[:-KEEP_SNAPSHOTS]:
        if snapshot.snapshot_id not in referred:
            expired.append(snapshot.snapshot_id)
    ExpireSnapshots(transaction).by_ids(expired).commit()
