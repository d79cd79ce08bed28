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
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update.snapshot import ExpireSnapshots
from pyiceberg.types import PrimitiveType

from lake_assets.errors import StateMoved
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.manifests import entries
from lake_assets.incremental.metadata.transactions import OneCopyTransaction

KEEP_SNAPSHOTS = 5
"""Snapshots of a log table that are kept for readers at work. Its rows are the history; each snapshot costs a move."""

MERGE_FILES = 25
"""Number of small files of a process at which they are merged, so that a lookup or a move stays cheap."""

MERGE_ROWS = 1000
"""Rows from which on a file is not small any more."""

COMMIT_SECONDS = 30
"""How long a commit is tried again while others commit first."""


Row = dict[str, Any]


class ProcessLog:
    """The rows of one process in one state of a log table. File bounds locate them: a lookup opens at most one file."""

    def __init__(self, table: Table, process: str) -> None:
        self.table = table
        self.process = process
        self._process_filter = equal_to("process_name", process)
        self._revision_field = table.schema().find_field("revision")
        files = _files_of(table, process)
        self._files = files or []
        self._last_revisions = [self._bound(file.upper_bounds) for file in self._files]
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
        of_process = pc.field("process_name") == self.process
        of_revision = pc.field("revision") == revision
        with self.table.io.new_input(file.file_path).open() as opened:
            rows = pq.read_table(opened, filters=of_process & of_revision)
        return cast("list[Row]", rows.to_pylist())

    def merge_small_files(self) -> None:
        """Rewrite the newest files as one if they are many. No row changes; a large file is not rewritten again."""
        small = [file for file in self._files if file.record_count < MERGE_ROWS]
        if len(small) < MERGE_FILES:
            return
        first_revision = min(self._bound(file.lower_bounds) or 0 for file in small)
        newer = GreaterThanOrEqual("revision", first_revision)  # type: ignore[call-arg, arg-type]
        rows = And(self._process_filter, newer)
        merged = self.table.scan(rows).to_arrow()
        self.table.overwrite(merged, overwrite_filter=rows)

    def _scan(self, rows: BooleanExpression) -> list[Row]:
        found = self.table.scan(rows).to_arrow()
        return cast("list[Row]", found.to_pylist())

    def _bound(self, bounds: Mapping[int, bytes] | None) -> int | None:
        encoded = (bounds or {}).get(self._revision_field.field_id)
        if encoded is None:
            return None
        column_type = cast("PrimitiveType", self._revision_field.field_type)
        return cast("int", from_bytes(column_type, encoded))


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


def _files_of(table: Table, process: str) -> list[DataFile] | None:
    """Return the data files of a process; None if another program has rewritten the table in a form of its own."""
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    for manifest in manifests:
        if manifest.content is not ManifestContent.DATA or manifest.partition_spec_id != 0:
            return None
    found = []
    # A scan would evaluate the filter file by file; the partition value alone is enough.
    for manifest in manifests:
        for entry in entries(manifest, table.io, discard_deleted=True):
            if entry.data_file.partition[0] == process:
                found.append(entry.data_file)
    return found


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
