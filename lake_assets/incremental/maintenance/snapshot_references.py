"""Which snapshots of a table are still needed, according to `etl.high_watermark`.

Every process in this table counts, also one that no pipeline declares any more: it may belong to another program. A row
may be older than the state of its target, if a process died before it wrote the next one: a snapshot that expires
meanwhile costs a rebuild, and no row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lake_assets.base.hours import parse_hour
from lake_assets.incremental.execution.log import FORGETS
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.damaged_files import naming_damaged_file
from lake_assets.incremental.metadata.state_tables import HIGH_WATERMARK

Row = Mapping[str, Any]

_COLUMNS = (
    "process_name",
    "source",
    "revision",
    "table_uuid",
    "latest_snapshot_id",
    "previous_snapshot_id",
    "complete_through",
    "session_id",
    "metadata",
    "target_snapshot_id",
)


@dataclass(frozen=True)
class SnapshotReferences:
    """What all processes refer to.

    Attributes:
        watermarks: Newest rows of `etl.high_watermark`: one for each process and source.
    """

    watermarks: tuple[Row, ...]

    def complete_through(self, name: str) -> int | None:
        """Return the last hour through which a table was complete, as its sessions or its readers recorded it."""
        keys = []
        for watermark in self.watermarks:
            if watermark["source"] == name:
                keys.append(watermark["complete_through"])
            if watermark["process_name"] == name:
                keys.append(json.loads(watermark["metadata"]).get("complete_through"))
        hours = [parse_hour(key) for key in keys if key is not None]
        return max(hours, default=None)

    def pinned(self, table: Table, name: str) -> frozenset[int]:
        """Return the ids of the snapshots of a table that must not expire.

        These are the snapshots that
        - a watermark names, at present or before its last move, or as the one after which rows wait,
        - a process published last,
        - a branch or tag names: also the tag that every session of a target moves.
        """
        ids = {ref.snapshot_id for ref in table.metadata.refs.values()}
        ids.update(self._at_watermarks(name))
        ids.update(self._published(name))
        return frozenset(ids)

    def next_reads(self, name: str) -> dict[int, str]:
        """Return the snapshots of a table that are the start of the next read: id → the process at whose watermark."""
        processes = {}
        for watermark in self.watermarks:
            if watermark["source"] == name and watermark["latest_snapshot_id"] is not None:
                processes[watermark["latest_snapshot_id"]] = watermark["process_name"]
        return processes

    def _at_watermarks(self, name: str) -> Iterator[int]:
        for watermark in self.watermarks:
            if watermark["source"] == name:
                yield from _known(watermark["latest_snapshot_id"], watermark["previous_snapshot_id"])
                for deferred in json.loads(watermark["metadata"]).get("deferred", ()):
                    yield from _known(deferred.get("after"))

    def _published(self, name: str) -> Iterator[int]:
        for watermark in self.watermarks:
            if watermark["process_name"] == name:
                published = json.loads(watermark["metadata"]).get("published_snapshot_id")
                yield from _known(published, watermark.get("target_snapshot_id"))


def read_references(catalog: Catalog) -> SnapshotReferences:
    """Return the present references of all processes.

    Read a table's metadata before calling this: then they include every session that was committed on that metadata.
    """
    return SnapshotReferences(_newest(catalog, HIGH_WATERMARK, _COLUMNS))


def _newest(catalog: Catalog, name: str, columns: Sequence[str]) -> tuple[Row, ...]:
    """Return the rows of each process's newest revision. A table of an older version lacks some columns."""
    with naming_damaged_file(catalog, name, repair=FORGETS):
        table = tables.load(catalog, name)
        present = [column for column in columns if column in table.schema().column_names]
        scan = table.scan(selected_fields=tuple(present))
        rows: list[Row] = scan.to_arrow().to_pylist()
    newest: dict[str, int] = {}
    for row in rows:
        process = row["process_name"]
        newest[process] = max(row["revision"], newest.get(process, 0))
    return tuple(row for row in rows if row["revision"] == newest[row["process_name"]])


def _known(*snapshot_ids: int | None) -> Iterator[int]:
    for snapshot_id in snapshot_ids:
        if snapshot_id is not None:
            yield snapshot_id
