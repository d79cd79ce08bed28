"""The erasure guard: rows that were sent before their subject was erased, and landed later, are deleted.

Every plan passes the guard. It reads the ids in those files that the plan would read for the first time. If an id was
erased, its rows are deleted from the raw table, and the plan is made again. So no session, no target and no quarantine
ever has them. As long as nobody was erased, this costs one look at the catalog.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import And, BooleanExpression, In, IsNull, LessThanOrEqual
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry
from pyiceberg.table import ALWAYS_TRUE, FileScanTask, Table
from pyiceberg.types import TimestamptzType

from lake_assets.base.conditions import any_of_filters
from lake_assets.incremental.declaration import Pipeline, RawTable, Subject
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.metadata.arrow_scan import ArrowScan
from lake_assets.incremental.metadata.erasure_registry import Erasure, Erasures
from lake_assets.incremental.metadata.manifests import entries
from lake_assets.incremental.metadata.present_columns import at_present
from lake_assets.incremental.metadata.source_tables import subject_columns
from lake_assets.incremental.planning.session import Decision, SessionPlan, SourceRange

if TYPE_CHECKING:
    import pyarrow as pa

DROPPED = "lake.erased"
"""Snapshot property: how many rows this snapshot deleted because their subject had been erased."""


class ErasureGuard:
    """Deletes rows of erased subjects from the raw tables of a pipeline."""

    def __init__(self, catalog: Catalog, pipeline: Pipeline, erasures: Erasures) -> None:
        self.catalog = catalog
        self.pipeline = pipeline
        self.erasures = erasures

    def delete_erased_rows(self, decision: Decision) -> bool:
        """Delete the rows of erased subjects that a plan would read.

        Returns:
            Whether any were deleted. If so, the plan must not run: it names snapshots that have them.
        """
        if not isinstance(decision, SessionPlan) or not self.pipeline.subjects:
            return False
        erased = self.erasures.rows()
        if not erased:
            return False
        raw_tables = {raw.table: raw for raw in self.pipeline.raw}
        deleted = 0
        for source in decision.sources:
            if source.source in raw_tables:
                deleted += self._delete_from_range(raw_tables[source.source], source, erased)
        return deleted > 0

    def sweep(self) -> dict[str, int]:
        """Delete the rows of erased subjects from all raw tables, whether a session has read them or not.

        Returns:
            Table → rows deleted, for the tables that had any.
        """
        erased = self.erasures.rows()
        if not erased:
            return {}
        deleted: dict[str, int] = {}
        for raw in self.pipeline.raw:
            table = tables.load(self.catalog, raw.table)
            condition = self._erased_rows(
                table,
                raw,
                erased,
                snapshot_id=publish.main_id(table),
                after=0,
            )
            if condition is None:
                continue
            rows = delete_rows(self.catalog, raw.table, condition)
            if rows:
                deleted[raw.table] = rows
        return deleted

    def _delete_from_range(self, raw: RawTable, source: SourceRange, erased: Sequence[Erasure]) -> int:
        if source.to_snapshot_id is None or source.from_snapshot_id == source.to_snapshot_id:
            return 0
        table = tables.load(self.catalog, raw.table)
        condition = self._erased_rows(
            table,
            raw,
            erased,
            snapshot_id=source.to_snapshot_id,
            after=_sequence_number_read(table, source),
        )
        if condition is None:
            return 0
        rows = _count_rows(table, condition, source.to_snapshot_id)
        if rows:
            delete_rows(self.catalog, raw.table, condition)
        return rows

    def _erased_rows(
        self,
        table: Table,
        raw: RawTable,
        erased: Sequence[Erasure],
        *,
        snapshot_id: int | None,
        after: int,
    ) -> BooleanExpression | None:
        """Return the condition on rows of erased subjects in the files of a snapshot; None if no id was erased.

        after: only files with a higher sequence number are read.
        """
        if snapshot_id is None:
            return None
        conditions: list[BooleanExpression] = []
        for subject in self.pipeline.subjects:
            columns = subject_columns(self.catalog, raw, subject)
            if columns:
                files = _files_added(table, snapshot_id, after)
                ids = _ids_in(table, columns, files)
                erased_ids = self.erasures.known(subject.name, ids, erased)
                conditions += _rows_sent_before(table, raw, columns, erased_ids)
        return any_of_filters(conditions) if conditions else None


def holds(columns: Iterable[str], *values: str) -> BooleanExpression:
    """Return the condition on rows that have any of the ids in one of the columns."""
    return any_of_filters(In(column, set(values)) for column in columns)  # type: ignore[call-arg, arg-type]


def delete_rows(catalog: Catalog, name: str, which: BooleanExpression) -> int:
    """Delete rows by rewriting the files that have them, also if others write to the table meanwhile.

    Returns:
        How many rows were deleted.
    """
    for attempt in tables.retrying(ValidationException):
        with attempt:
            table = tables.load(catalog, name)
            rows = _count_rows(table, which, publish.main_id(table))
            if rows:
                table.delete(which, snapshot_properties={DROPPED: str(rows)})
            return rows
    raise AssertionError("unreachable: the last attempt returns or raises")


def holders(catalog: Catalog, pipeline: Pipeline, subject: Subject) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the tables that have ids of a subject, with those columns: raw tables first, then targets in order."""
    found = {raw.table: subject_columns(catalog, raw, subject) for raw in pipeline.raw}
    found |= {target.table: subject.columns_of(target.columns) for target in pipeline.in_order()}
    for table, columns in found.items():
        if columns:
            yield table, columns


def _rows_sent_before(
    table: Table, raw: RawTable, columns: Sequence[str], erased_ids: Mapping[str, datetime]
) -> list[BooleanExpression]:
    """Return, for the ids of each time of erasure, the condition on their rows that happened or landed by then."""
    types = {field.name: field.field_type for field in table.schema().fields}
    time_columns = [column for column in (raw.time_column, raw.landed_column) if column in types]
    ids_by_time: defaultdict[datetime, list[str]] = defaultdict(list)
    for value, erased_at in erased_ids.items():
        ids_by_time[erased_at].append(value)
    conditions: list[BooleanExpression] = []
    for erased_at, ids in sorted(ids_by_time.items()):
        # A row without a time may have happened by then.
        by_then: list[BooleanExpression] = [IsNull(raw.time_column)]  # type: ignore[call-arg, arg-type]
        for column in time_columns:
            has_zone = isinstance(types[column], TimestamptzType)
            by_then.append(_at_or_before(column, erased_at, has_zone=has_zone))
        conditions.append(And(holds(columns, *ids), any_of_filters(by_then)))
    return conditions


def _at_or_before(column: str, moment: datetime, *, has_zone: bool) -> BooleanExpression:
    in_utc = moment.astimezone(UTC)
    text = in_utc.isoformat() if has_zone else in_utc.replace(tzinfo=None).isoformat()
    return LessThanOrEqual(column, text)  # type: ignore[call-arg, arg-type]


def _sequence_number_read(table: Table, source: SourceRange) -> int:
    """Return the sequence number up to which the files of a range were read before; 0 if history does not show it.

    After a rollback, the watermark's snapshot may be newer than the head, and rows that it had deleted are back.
    """
    for snapshot in publish.ancestors(table, source.to_snapshot_id):
        if snapshot.snapshot_id == source.from_snapshot_id:
            return snapshot.sequence_number or 0
    return 0


def _files_added(table: Table, snapshot_id: int, after: int) -> list[DataFile]:
    """Return the live data files of a snapshot that were added, or compacted, after a sequence number."""
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        return []
    found = []
    for manifest in snapshot.manifests(table.io):
        if manifest.content is not ManifestContent.DATA or manifest.sequence_number <= after:
            continue
        for entry in entries(manifest, table.io, discard_deleted=True):
            if _number_added(entry) > after:
                found.append(entry.data_file)
    return found


def _number_added(entry: ManifestEntry) -> int:
    """Return the sequence number at which a file was added, or compacted."""
    # A compacted file has a new file sequence number, and the data sequence number of its old rows.
    return max(entry.file_sequence_number or 0, entry.sequence_number or 0)


def _ids_in(table: Table, columns: tuple[str, ...], files: list[DataFile]) -> set[str]:
    if not files:
        return set()
    schema = table.schema().select(*columns)
    scan = ArrowScan(table.metadata, table.io, schema, ALWAYS_TRUE)
    rows: pa.Table = scan.to_table([FileScanTask(file) for file in files])
    found: set[Any] = set()
    for column in columns:
        found.update(rows.column(column).unique().to_pylist())
    return found - {None}


def _count_rows(table: Table, which: BooleanExpression, snapshot_id: int | None) -> int:
    if snapshot_id is None:
        return 0
    return int(at_present(table, snapshot_id).scan(which, snapshot_id=snapshot_id).count())
