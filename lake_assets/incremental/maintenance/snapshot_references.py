"""Which snapshots of a table are still needed, according to `etl.high_watermark` and `etl.session`.

Every process in these tables counts, also one that no pipeline declares any more: it may belong to another program.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lake_assets.base.hours import parse_hour
from lake_assets.incremental.execution.session_log import OPEN
from lake_assets.incremental.execution.session_log.store import FORGETS
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.metadata.damaged_files import naming_damaged_file
from lake_assets.incremental.metadata.state_tables import HIGH_WATERMARK, SESSION

Row = Mapping[str, Any]

_WATERMARK_COLUMNS = (
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
_SESSION_COLUMNS = (
    "process_name",
    "session_id",
    "revision",
    "state",
    "sources",
    "staged_snapshot_id",
    "run_id",
    "started_at",
)


@dataclass(frozen=True)
class SnapshotReferences:
    """What all processes refer to.

    Attributes:
        watermarks: Newest rows of `etl.high_watermark`: one for each process and source.
        sessions: Newest rows of `etl.session`: one for each process.
    """

    watermarks: tuple[Row, ...]
    sessions: tuple[Row, ...]

    def open_session(self, process: str) -> str | None:
        """Return the id of a process's open session; None if there is none."""
        for session in self.sessions:
            if session["process_name"] == process and _is_open(session):
                session_id: str = session["session_id"]
                return session_id
        return None

    def open_sessions(self) -> list[Row]:
        """Return the open sessions of all processes."""
        return [session for session in self.sessions if _is_open(session)]

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
        - an open session reads,
        - an open session staged, or a blocked one, which people may inspect,
        - a process published last, or up to which the engine answers for the rows of a target,
        - a branch or tag names.
        """
        ids = {ref.snapshot_id for ref in table.metadata.refs.values()}
        ids.update(self._at_watermarks(name))
        ids.update(self._published(name))
        ids.update(self._read(name))
        ids.update(self._staged(table, name))
        return frozenset(ids)

    def next_reads(self, name: str) -> dict[int, str]:
        """Return the snapshots of a table that are the start of the next read of a process.

        Returns:
            Snapshot id → a process whose watermark, or the end of whose open session, is at this snapshot.
        """
        processes = {}
        for watermark in self.watermarks:
            if watermark["source"] == name and watermark["latest_snapshot_id"] is not None:
                processes[watermark["latest_snapshot_id"]] = watermark["process_name"]
        for process, source in self._open_reads(name):
            if source["to_snapshot_id"] is not None:
                processes[source["to_snapshot_id"]] = process
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

    def _read(self, name: str) -> Iterator[int]:
        for _, source in self._open_reads(name):
            yield from _known(source["from_snapshot_id"], source["to_snapshot_id"])

    def _open_reads(self, name: str) -> Iterator[tuple[str, Row]]:
        """Yield the process of each open session that reads a table, and the range that it reads."""
        for session in filter(_is_open, self.sessions):
            for source in json.loads(session["sources"]):
                if source["source"] == name:
                    yield session["process_name"], source

    def _staged(self, table: Table, name: str) -> Iterator[int]:
        for session in self.sessions:
            if session["process_name"] == name and (_is_open(session) or session["state"] == "blocked"):
                yield from _known(session["staged_snapshot_id"])
                # A run that died may have staged more than it recorded, and an active run has recorded nothing yet.
                yield from publish.snapshots_of_session(table, session["session_id"])


def read_references(catalog: Catalog) -> SnapshotReferences:
    """Return the present references of all processes.

    Read a table's metadata before calling this: then the references include every session planned on that metadata.
    """
    return SnapshotReferences(
        watermarks=_newest(catalog, HIGH_WATERMARK, _WATERMARK_COLUMNS),
        sessions=_newest(catalog, SESSION, _SESSION_COLUMNS),
    )


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


def _is_open(session: Row) -> bool:
    return session["state"] in OPEN
