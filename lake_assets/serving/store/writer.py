"""The writer of served tables: push, revert, clean-up and delete.

`serving.lineage` decides on each change. Files are removed after the lineage that gives them up was written, and after
the leases of that time have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import pyarrow as pa
from kazoo.exceptions import KazooException

from lake_assets.base.failpoints import reach
from lake_assets.errors.described import describe
from lake_assets.serving.errors import UploadStopped
from lake_assets.serving.lineage.lineage import Change
from lake_assets.serving.lineage.registry import Registry
from lake_assets.serving.lineage.retention import Retention
from lake_assets.serving.store.clean_up import clean_up, delete_segments
from lake_assets.serving.store.drafts import FOLDER, Draft, write_drafts
from lake_assets.serving.store.files import SegmentFiles
from lake_assets.serving.store.leases import Leases
from lake_assets.serving.store.push import Policy, Push, PushReport
from lake_assets.serving.store.replace import end_entry, start_entry, upload_segment
from lake_assets.serving.store.revert import revert_entries
from lake_assets.serving.store.table_store import TableStore

Rows: TypeAlias = pa.Table | pa.RecordBatchReader


class Writer:
    """Changes served tables. Its methods raise errors of `lake_assets.serving.errors`."""

    def __init__(
        self,
        registry: Registry,
        files: SegmentFiles,
        leases: Leases,
        *,
        clock: Callable[[], datetime],
        policy: Policy | None = None,
    ) -> None:
        """Change nothing yet.

        Args:
            registry: The lineages.
            files: The segments.
            leases: Those of readers.
            clock: UTC, for the timestamps of lineage entries.
            policy: Limits of each table.
        """
        self._store = TableStore(registry, files, leases, clock)
        self._policy = policy or Policy()

    def push(
        self,
        tables: Mapping[str, Rows],
        *,
        push_id: str,
        as_of: datetime,
        force: bool = False,
        new_schema: bool = False,
        heads: Mapping[str, str | None] | None = None,
        quotas: Mapping[str, int | None] | None = None,
    ) -> list[PushReport]:
        """Replace tables by new snapshots, all of them in one switch: a push group. Any failure reverts the push.

        Args:
            tables: The rows of each table.
            push_id: Unique; it becomes a part of the segments' names.
            as_of: A time before the rows were read, UTC; it becomes a part of the segments' names.
            force: Whether to revert what is in progress in these tables, instead of being refused. It repairs a push
                that died.
            new_schema: Whether the columns may differ from those that readers see.
            heads: Table → head of its source, which is registered to detect later changes.
            quotas: Table → the most bytes that its segments may take; otherwise that of the policy.

        Returns:
            A report for each table, in the order of `tables`.
        """
        try:
            reports = self._push(tables, push_id, as_of, force, new_schema, heads or {}, quotas or {})
        except Exception as error:
            self.note_failure(tables, error)
            raise
        self.note_failure(tables, None)
        return reports

    def note_failure(self, tables: Iterable[str], error: Exception | None) -> None:
        """Note what a push failed on, for alerts; None: it went through. Nothing is raised."""
        with suppress(KazooException):
            for table in tables:
                self._store.registry.note_failure(table, None if error is None else describe(error))

    def _push(
        self,
        tables: Mapping[str, Rows],
        push_id: str,
        as_of: datetime,
        force: bool,
        new_schema: bool,
        heads: Mapping[str, str | None],
        quotas: Mapping[str, int | None],
    ) -> list[PushReport]:
        with TemporaryDirectory(prefix=FOLDER) as folder:
            drafts = {}
            for table, rows in tables.items():
                drafts[table] = self._draft(
                    table,
                    rows,
                    Path(folder),
                    push_id=push_id,
                    as_of=as_of,
                    head=heads.get(table),
                )
            reach("push-drafted")
            return Push(
                self._store, self._policy, drafts, as_of=as_of, force=force, new_schema=new_schema, quotas=quotas
            ).run()

    def _draft(
        self, table: str, rows: Rows, folder: Path, *, push_id: str, as_of: datetime, head: str | None
    ) -> list[Draft]:
        segment_rows = self._policy.segment_rows
        try:
            return write_drafts(table, rows, folder, push_id=push_id, as_of=as_of, segment_rows=segment_rows, head=head)
        except OSError as error:
            raise UploadStopped(table, error, folder=folder.parent, variable="TMPDIR") from error

    def revert(
        self,
        table: str,
        entry_id: str,
        *,
        force: bool = False,
        later: bool = False,
        erased_at: datetime | None = None,
    ) -> Change:
        """Return to the snapshot that an entry has replaced: `revert_all` for one table."""
        return self.revert_all({table: entry_id}, force=force, later=later, erased_at=erased_at)[table]

    def revert_all(
        self,
        entries: Mapping[str, str],
        *,
        force: bool = False,
        later: bool = False,
        erased_at: datetime | None = None,
    ) -> Mapping[str, Change]:
        """Return to the snapshots that entries have replaced, in all tables at once: see `revert.revert_entries`."""
        return revert_entries(self._store, entries, force=force, later=later, erased_at=erased_at)

    def start_replace(self, table: str, sources: Sequence[str], targets: Sequence[str], *, force: bool = False) -> str:
        """Start a replacement of segments, as a controller of Pinot does, and return the id of its entry."""
        self._store.leases.open(table)
        started = start_entry(self._store, table, sources, targets, force=force, snapshots=self._policy.snapshots)
        self._store.remove_unreferenced(table, wait=True)
        return started

    def upload(self, table: str, segment: str, file: Path, *, quota: int | None, new_schema: bool = False) -> None:
        """Store and register a segment that an entry in progress names: see `replace.upload_segment`."""
        upload_segment(
            self._store, table, segment, file, quota=quota or self._policy.quota_bytes, new_schema=new_schema
        )

    def end_replace(self, table: str, entry_id: str) -> None:
        """Complete a replacement."""
        end_entry(self._store, table, entry_id)

    def clean_up(self, table: str, *, retention: Retention, erased_at: datetime | None = None) -> Change:
        """Run one cycle of retention, and remove unreferenced files: see `clean_up.clean_up`."""
        return clean_up(self._store, table, retention=retention, erased_at=erased_at)

    def delete(self, table: str, segments: Sequence[str]) -> Change:
        """Delete segments that nothing needs: see `clean_up.delete_segments`."""
        return delete_segments(self._store, table, segments)
