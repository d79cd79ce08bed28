"""How far each stream of a lake is: its last batch, and which of its processes are done. The `checkpoint` table.

A Delta table with one row for each stream and process. It is written and read without Spark, for a batch moves it once
for its intent and once for each process. All rows of a stream are replaced in one commit: a compare-and-set, for it is
made on the version in which the former rows were read, and refused if the table moved (commit retries are off).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from lake_assets.engagement.model.offsets import OffsetRange, Offsets
from lake_assets.errors import StateMoved, UsageError
from lake_assets.incremental.metadata.tables import retrying

SCHEMA = pa.schema(
    [
        ("app_name", pa.string()),
        ("process", pa.string()),
        ("batch_id", pa.int64()),
        ("start_offsets", pa.string()),
        ("end_offsets", pa.string()),
        ("kafka", pa.string()),
        ("reads", pa.string()),
        ("since", pa.string()),
        ("state", pa.string()),
        ("version", pa.int64()),
    ]
)
INTENDED, DONE = "intended", "done"


@dataclass(frozen=True)
class Batch:
    """The intent of a batch: all that it writes follows from this alone.

    batch_id: 1 for a stream's first. reads: table → its version before the batch, for what is read beside the messages.
    since: table → the version that the stream's last batch left; empty for the first.
    """

    batch_id: int
    messages: OffsetRange
    reads: Mapping[str, int]
    since: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """A stream's last batch. processes: in their order. done: process → the version that it committed, None if none."""

    batch: Batch
    processes: tuple[str, ...]
    done: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def unfinished(self) -> tuple[str, ...]:
        return tuple(process for process in self.processes if process not in self.done)

    @property
    def finished(self) -> bool:
        return not self.unfinished

    def with_done(self, process: str, version: int | None) -> Checkpoint:
        return replace(self, done={**self.done, process: version})


class CheckpointStore:
    """Reads and moves the checkpoints of a lake. It keeps nothing between calls.

    location: of the table. Whoever can read the lake's tables in Spark can read this one there, too.
    """

    def __init__(self, location: str) -> None:
        self.location = location

    def exists(self) -> bool:
        """Whether the table was created."""
        return DeltaTable.is_deltatable(self.location)

    def create(self) -> bool:
        """Create the table unless it is there; whether it was created."""
        if self.exists():
            return False
        DeltaTable.create(self.location, SCHEMA, mode="ignore", partition_by="app_name")
        return True

    def read(self, app_name: str) -> Checkpoint | None:
        """The checkpoint of a stream; None if it never ran."""
        return _read(opened(self.location), app_name)

    def move(self, app_name: str, before: Checkpoint | None, after: Checkpoint) -> Checkpoint:
        """Replace a stream's checkpoint, which must be `before`, else `StateMoved`. Returns `after`."""
        for attempt in retrying(CommitFailedError):
            with attempt:
                table = opened(self.location)
                if (found := _read(table, app_name)) != before:
                    raise StateMoved(app_name, expected=before, found=found)
                write_deltalake(
                    table,
                    _rows(app_name, after),
                    mode="overwrite",
                    predicate=f"app_name = '{app_name}'",
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
        return after


def opened(location: str, version: int | None = None) -> DeltaTable:
    """A Delta table as it stands, or stood at a version; `UsageError` if it is not there."""
    try:
        return DeltaTable(location, version)
    except TableNotFoundError:
        raise UsageError(
            f"There is no Delta table at {location}.", remedy="Create the lake's tables: `lake engagement init LAKE`."
        ) from None


def _rows(app_name: str, checkpoint: Checkpoint) -> pa.Table:
    batch, messages = checkpoint.batch, checkpoint.batch.messages
    common = {
        "app_name": app_name,
        "batch_id": batch.batch_id,
        "start_offsets": _json(messages.start),
        "end_offsets": _json(messages.end),
        "kafka": _json({"topic": messages.topic, "topic_id": messages.topic_id}),
        "reads": _json(batch.reads),
        "since": _json(batch.since),
    }
    own = [
        {"process": p, "state": DONE if p in checkpoint.done else INTENDED, "version": checkpoint.done.get(p)}
        for p in checkpoint.processes
    ]
    return pa.Table.from_pylist([{**common, **row} for row in own], schema=SCHEMA)


def _read(table: DeltaTable, app_name: str) -> Checkpoint | None:
    rows = table.to_pyarrow_table(filters=[("app_name", "=", app_name)]).to_pylist()
    if not rows:
        return None
    first = rows[0]
    kafka = json.loads(first["kafka"])
    messages = OffsetRange(
        kafka["topic"], kafka["topic_id"], _offsets(first["start_offsets"]), _offsets(first["end_offsets"])
    )
    return Checkpoint(
        Batch(first["batch_id"], messages, json.loads(first["reads"]), json.loads(first["since"])),
        tuple(row["process"] for row in rows),
        {row["process"]: row["version"] for row in rows if row["state"] == DONE},
    )


def _json(value: Mapping[Any, Any]) -> str:
    return json.dumps({str(k): v for k, v in value.items()})


def _offsets(text: str) -> Offsets:
    return {int(partition): at for partition, at in json.loads(text).items()}
