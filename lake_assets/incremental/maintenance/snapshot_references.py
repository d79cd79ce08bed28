"""Which snapshots of a table processes still need, told by `etl.high_watermark` and `etl.session`.

Every process that these tables name counts, also one that no pipeline declares any more: it may be somebody else's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lake_assets.incremental.execution.session_log import OPEN
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.metadata.state_tables import HIGH_WATERMARK, SESSION

Row = Mapping[str, Any]

_MARKS = ("process_name", "source", "revision", "latest_snapshot_id", "previous_snapshot_id", "metadata")
_SESSIONS = ("process_name", "session_id", "revision", "state", "sources", "staged_snapshot_id")


@dataclass(frozen=True)
class SnapshotReferences:
    """The newest rows of every process: of its watermarks, one for each source; and of its sessions, one."""

    marks: tuple[Row, ...]
    sessions: tuple[Row, ...]

    def open_session(self, process: str) -> str | None:
        """The id of a process's open session; None if there is none."""
        return next((s["session_id"] for s in self.sessions if s["process_name"] == process and _is_open(s)), None)

    def held(self, table: Table, name: str) -> frozenset[int]:
        """The snapshots of a table that must stay.

        Those that a watermark names, now or before its last move; that an open session reads; that it has staged, or
        that a blocked one has, for people to look at; that a process published last; and heads of branches and tags.
        """
        found = {ref.snapshot_id for ref in table.metadata.refs.values()}
        return frozenset(found | set(self._marked(name)) | set(self._read(name)) | set(self._staged(table, name)))

    def _marked(self, name: str) -> Iterator[int]:
        for mark in self.marks:
            published = json.loads(mark["metadata"]).get("published_snapshot_id")
            named = (mark["latest_snapshot_id"], mark["previous_snapshot_id"]) if mark["source"] == name else ()
            yield from (i for i in (*named, published if mark["process_name"] == name else None) if i is not None)

    def standing(self, name: str) -> dict[int, str]:
        """Snapshot of a table → a process whose watermark stands there, or whose open session reads up to it."""
        ends = [(m["latest_snapshot_id"], m["process_name"]) for m in self.marks if m["source"] == name]
        ends += [(source["to_snapshot_id"], process) for process, source in self._sources(name)]
        return {snapshot_id: process for snapshot_id, process in ends if snapshot_id is not None}

    def _read(self, name: str) -> Iterator[int]:
        for _, source in self._sources(name):
            yield from (i for i in (source["from_snapshot_id"], source["to_snapshot_id"]) if i is not None)

    def _sources(self, name: str) -> Iterator[tuple[str, Row]]:
        """Each open session that reads a table: its process, and the range that it reads."""
        for session in filter(_is_open, self.sessions):
            yield from ((session["process_name"], s) for s in json.loads(session["sources"]) if s["source"] == name)

    def _staged(self, table: Table, name: str) -> Iterator[int]:
        for session in self.sessions:
            if session["process_name"] == name and (_is_open(session) or session["state"] == "blocked"):
                if session["staged_snapshot_id"] is not None:
                    yield session["staged_snapshot_id"]
                # A run that died may have staged more than it recorded; one at work has not recorded anything yet.
                yield from publish.snapshots_of_session(table, session["session_id"])


def read_references(catalog: Catalog) -> SnapshotReferences:
    """What all processes need as of now. Read a table's metadata first, then this, and what was planned is in it."""
    return SnapshotReferences(_newest(catalog, HIGH_WATERMARK, _MARKS), _newest(catalog, SESSION, _SESSIONS))


def _newest(catalog: Catalog, name: str, columns: Sequence[str]) -> tuple[Row, ...]:
    """The rows of each process's newest revision."""
    rows: list[Row] = tables.load(catalog, name).scan(selected_fields=tuple(columns)).to_arrow().to_pylist()
    newest: dict[str, int] = {}
    for row in rows:
        newest[row["process_name"]] = max(row["revision"], newest.get(row["process_name"], 0))
    return tuple(row for row in rows if row["revision"] == newest[row["process_name"]])


def _is_open(session: Row) -> bool:
    return session["state"] in OPEN
