"""The micro-batch: an intent that is durable before the first write, then each process as an idempotent commit.

The checkpoint of a stream holds its last batch. While a process of it is not done, no other batch begins: that process
alone is done again, with the same messages and the same versions of what it read beside them. So what is written
follows from the intent, whoever writes it and how often, and Delta keeps the first of equal (transaction id, batch id).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from lake_assets.base.failpoints import reach_in_batch
from lake_assets.engagement.erasure.registry import dropped
from lake_assets.engagement.model.checkpoint import Batch, Checkpoint
from lake_assets.engagement.model.lake import StreamName
from lake_assets.engagement.model.offsets import TopicState, next_range
from lake_assets.engagement.model.tables import Commit, LakeTables
from lake_assets.errors import CheckpointLost


class Process(Protocol):
    """One of the commits of a batch. name: also in its transaction id. table: the one that it writes."""

    @property
    def name(self) -> str: ...

    @property
    def table(self) -> str: ...

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        """Write, under the id and the batch's number. done: the versions that earlier processes committed."""


class Guard(Protocol):
    """What keeps others away meanwhile, as the job coordinator does. Both raise when it cannot any more."""

    def claim(self) -> int:
        """Called before the first read that a batch depends on; without a batch it is not called."""

    def confirm(self) -> None:
        """Called before each commit."""


@dataclass(frozen=True)
class Stream:
    """A stream of a lake. reads: the tables whose versions belong to the intent, beside those that are written.

    waiting: whether a batch is due although no message came, by the versions that the last batch left.
    """

    name: StreamName
    tables: LakeTables
    topic: Callable[[], TopicState]
    processes: tuple[Process, ...]
    reads: tuple[str, ...]
    waiting: Callable[[Mapping[str, int]], bool] = lambda since: False

    @property
    def app_name(self) -> str:
        return self.tables.lake.app_name(self.name)

    @property
    def process_names(self) -> tuple[str, ...]:
        return tuple(process.name for process in self.processes)


@dataclass(frozen=True)
class BatchReport:
    """What a turn did. resumed: it went on with a batch that an earlier turn had begun. commits: process → commit.

    dropped: messages of the whole batch that name somebody who was erased, so that they made no row.
    """

    batch: Batch
    resumed: bool
    commits: Mapping[str, Commit | None]
    dropped: int = 0


def run_batch(stream: Stream, guard: Guard) -> BatchReport | None:
    """Finish the batch that is open, or do the next one; None if none is due. Only one may run at a time.

    Raises `TopicReplaced`, `OffsetsMissing`, `CheckpointLost`, `StateMoved` if another one ran at the same time, and
    what the guard raises. Called again, it goes on where it stopped.
    """
    last = stream.tables.checkpoints.read(stream.app_name)
    if last is not None and not last.finished:
        guard.claim()
        return _finish(stream, guard, last, resumed=True)
    opened = _begin(stream, guard, last)
    return None if opened is None else _finish(stream, guard, opened, resumed=False)


def _begin(stream: Stream, guard: Guard, last: Checkpoint | None) -> Checkpoint | None:
    """The intent of the next batch, durable; None if there is nothing to do."""
    tables, read = stream.tables, last.batch.messages if last else None
    messages = next_range(stream.topic(), read, max_records=tables.lake.max_records)
    since = _left(stream, last) if last else {}
    if not messages.count and not stream.waiting(since):
        return None
    guard.claim()
    batch_id = last.batch.batch_id + 1 if last else 1
    for process in stream.processes:
        _check_unseen(stream, process, batch_id)
    concerned = sorted({*stream.reads, *(process.table for process in stream.processes)})
    reads = {table: tables.version(table) for table in concerned}
    intent = Checkpoint(Batch(batch_id, messages, reads, since), stream.process_names)
    guard.confirm()
    reach_in_batch("before-intent", stream.process_names)
    opened = tables.checkpoints.move(stream.app_name, last, intent)
    reach_in_batch("after-intent", stream.process_names)
    return opened


def _left(stream: Stream, last: Checkpoint) -> dict[str, int]:
    """The version that the last batch left of each table: its own commits are part of it."""
    versions = dict(last.batch.reads)
    for process in stream.processes:
        version = last.done.get(process.name)
        if version is not None:
            versions[process.table] = version
    return versions


def _finish(stream: Stream, guard: Guard, opened: Checkpoint, *, resumed: bool) -> BatchReport:
    commits = {}
    for process in stream.processes:
        if process.name not in opened.done:
            guard.confirm()
            reach_in_batch(f"before-{process.name}", stream.process_names)
            commit = commits[process.name] = _commit(stream, process, opened)
            reach_in_batch(f"written-{process.name}", stream.process_names)
            done = opened.with_done(process.name, commit.version if commit else None)
            opened = stream.tables.checkpoints.move(stream.app_name, opened, done)
            reach_in_batch(f"recorded-{process.name}", stream.process_names)
    return BatchReport(opened.batch, resumed, commits, dropped(stream.tables, opened.batch))


def _commit(stream: Stream, process: Process, opened: Checkpoint) -> Commit | None:
    """The process's commit, made now unless it was made before."""
    batch, app_id = opened.batch, stream.tables.lake.app_id(stream.name, process.name)
    if stream.tables.last_batch(process.table, app_id) < batch.batch_id:
        process.write(batch, opened.done, app_id)
    return stream.tables.commit_of(
        process.table, app_id=app_id, batch_id=batch.batch_id, since=batch.reads[process.table]
    )


def _check_unseen(stream: Stream, process: Process, batch_id: int) -> None:
    app_id = stream.tables.lake.app_id(stream.name, process.name)
    seen = stream.tables.last_batch(process.table, app_id)
    if seen >= batch_id:
        raise CheckpointLost(app_id, batch_id=batch_id, seen=seen)
