"""The door: a record sent before its subject was erased, and landed afterwards, is dropped before any session reads it.

Every plan comes by here. Of the files that it would read anew, the ids alone are read; if one of them was erased, its
rows are deleted from the raw table, and planning starts again. So no session, no target, no quarantine ever has them.
As long as nobody was erased, this costs one look at the catalog.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import And, BooleanExpression, EqualTo, IsNull, LessThanOrEqual, Or
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import ALWAYS_TRUE, FileScanTask, Table

from lake_assets.incremental.declaration import LANDED, Pipeline, RawTable, Subject
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.metadata.erasure_registry import Erasure, Erasures
from lake_assets.incremental.planning.session import Decision, SessionPlan, SourceRange

if TYPE_CHECKING:
    import pyarrow as pa

DROPPED = "lake.erased"
"""Snapshot property: how many rows this snapshot dropped because their subject had been erased."""


class ErasureGuard:
    """Keeps the raw tables of a pipeline free of those who were erased."""

    def __init__(self, catalog: Catalog, pipeline: Pipeline, erasures: Erasures) -> None:
        self.catalog, self.pipeline, self.erasures = catalog, pipeline, erasures

    def delete_erased_rows(self, decision: Decision) -> bool:
        """Whether a plan would read rows of somebody erased. They are gone then, and the plan is not to be run."""
        if not isinstance(decision, SessionPlan) or not self.pipeline.subjects:
            return False
        among = self.erasures.rows()
        raw = {r.table: r for r in self.pipeline.raw}
        # All of them, not the first alone: one look each.
        found = [self._clears(raw[s.source], s, among) for s in decision.sources if among and s.source in raw]
        return any(found)

    def sweep(self) -> dict[str, int]:
        """Drop such rows wherever they are in a raw table, read or not: table → rows, of those that had any."""
        among = self.erasures.rows()
        dropped: dict[str, int] = {}
        for raw in self.pipeline.raw if among else ():
            table = tables.load(self.catalog, raw.table)
            erased = self._erased(table, raw, publish.main_id(table), 0, among)
            if erased is not None and (rows := delete_rows(self.catalog, raw.table, erased)):
                dropped[raw.table] = rows
        return dropped

    def _clears(self, raw: RawTable, span: SourceRange, among: list[Erasure]) -> bool:
        if span.to_snapshot_id is None or span.from_snapshot_id == span.to_snapshot_id:
            return False
        table = tables.load(self.catalog, raw.table)
        erased = self._erased(table, raw, span.to_snapshot_id, _read_up_to(table, span), among)
        if erased is None or not _count(table, erased, span.to_snapshot_id):
            return False
        delete_rows(self.catalog, raw.table, erased)
        return True

    def _erased(
        self, table: Table, raw: RawTable, snapshot_id: int | None, since: int, among: list[Erasure]
    ) -> BooleanExpression | None:
        """What tells the rows of those erased in the files of a snapshot added after a sequence number; None: none."""
        found: list[BooleanExpression] = []
        for subject in self.pipeline.subjects:
            columns = subject.columns_of(raw.columns)
            if columns and snapshot_id is not None:
                values = _ids(table, columns, _files(table, snapshot_id, since))
                known = self.erasures.known(subject.name, values, among)
                found += [_sent_before(raw, columns, value, at) for value, at in sorted(known.items())]
        return reduce(Or, found) if found else None


def holds(columns: Iterable[str], value: str) -> BooleanExpression:
    """Rows that have the id in one of the columns."""
    each: list[BooleanExpression] = [EqualTo(c, value) for c in columns]  # type: ignore[call-arg, arg-type]
    return reduce(Or, each)


def delete_rows(catalog: Catalog, name: str, which: BooleanExpression) -> int:
    """Delete rows by rewriting the files that have them, whoever else writes meanwhile; how many went."""
    for attempt in tables.retrying(ValidationException):
        with attempt:
            table = tables.load(catalog, name)
            rows = _count(table, which, publish.main_id(table))
            if rows:
                table.delete(which, snapshot_properties={DROPPED: str(rows)})
            return rows
    raise AssertionError("unreachable: the last attempt returns or raises")


def holders(pipeline: Pipeline, subject: Subject) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The tables that hold a subject, raw tables first, targets in order; and their columns that do."""
    declared = {t.table: t.columns for t in pipeline.raw} | {t.table: t.columns for t in pipeline.in_order()}
    for table, names in declared.items():
        if columns := subject.columns_of(names):
            yield table, columns


def _sent_before(raw: RawTable, columns: Iterable[str], value: str, erased_at: datetime) -> BooleanExpression:
    """Rows of an id that happened, or landed, by then. One without a time of its own may have."""
    untimed = IsNull(raw.time_column)  # type: ignore[call-arg, arg-type]
    by_then = Or(Or(_by(raw.time_column, erased_at), _by(LANDED, erased_at)), untimed)
    return And(holds(columns, value), by_then)


def _by(column: str, moment: datetime) -> BooleanExpression:
    return LessThanOrEqual(column, moment.isoformat())  # type: ignore[call-arg, arg-type]


def _read_up_to(table: Table, span: SourceRange) -> int:
    """The sequence number up to which a plan's files were read; 0, so all are looked at, where history does not tell.

    After a rollback the watermark's snapshot may be the younger one, and rows are back that it had dropped.
    """
    before = publish.ancestors(table, span.to_snapshot_id)
    since = next((s for s in before if s.snapshot_id == span.from_snapshot_id), None)
    return (since.sequence_number or 0) if since else 0


def _files(table: Table, snapshot_id: int, since: int) -> list[DataFile]:
    """Live data files of a snapshot that were added after a sequence number; also old rows that were compacted."""
    snapshot = table.snapshot_by_id(snapshot_id)
    manifests = snapshot.manifests(table.io) if snapshot else []
    return [
        entry.data_file
        for manifest in manifests
        if manifest.content is ManifestContent.DATA and manifest.sequence_number > since
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        if max(entry.file_sequence_number or 0, entry.sequence_number or 0) > since
    ]


def _ids(table: Table, columns: tuple[str, ...], files: list[DataFile]) -> set[str]:
    if not files:
        return set()
    scan = ArrowScan(table.metadata, table.io, table.schema().select(*columns), ALWAYS_TRUE)
    rows: pa.Table = scan.to_table([FileScanTask(file) for file in files])
    found: set[Any] = {value for column in columns for value in rows.column(column).unique().to_pylist()}
    return found - {None}


def _count(table: Table, which: BooleanExpression, snapshot_id: int | None) -> int:
    return 0 if snapshot_id is None else int(table.scan(which, snapshot_id=snapshot_id).count())
