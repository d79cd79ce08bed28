"""The `checkpoint` table: the last batch of each stream, which of its commits are done, and what the next one reads.

Offsets are per partition, and an end is exclusive. Offsets have gaps (transactions, compaction), so a range holds at
most as many messages as offsets.

The checkpoints are a Delta table with one row for each stream and commit. It is read and written without Spark,
because a batch moves it once for its intent and once for each commit. A move replaces all rows of a stream in one
Delta commit. It is a compare-and-set: it is made on the version from which the former rows were read, and fails if the
table has changed (commit retries are off).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from lake_assets.engagement.delta_log import open_table, read_rows
from lake_assets.errors import (
    MessagesLost,
    StoredByNewerVersion,
    offsets_missing,
    state_moved,
    topic_replaced,
)
from lake_assets.incremental.engine.iceberg import retrying

Offsets = Mapping[int, int]
"""Kafka partition → offset."""


@dataclass(frozen=True)
class TopicState:
    """The present offsets of a topic.

    Attributes:
        topic_id: Kafka's own id; a topic that is deleted and created again gets another one.
        earliest: First available offset of every partition.
        end: Offset after the last message that a reader of committed messages can read, of every partition.
    """

    topic: str
    topic_id: str
    earliest: Offsets
    end: Offsets


@dataclass(frozen=True)
class OffsetRange:
    """The offsets that a batch reads: from `start`, inclusive, to `end`, exclusive, of the same partitions."""

    topic: str
    topic_id: str
    start: Offsets
    end: Offsets

    @property
    def count(self) -> int:
        """Number of offsets, an upper bound of the number of messages."""
        return sum(self.end[partition] - self.start[partition] for partition in self.end)


def next_range(
    state: TopicState, last: OffsetRange | None, *, max_records: int, until: Offsets | None = None
) -> OffsetRange:
    """Return the range after the last one, divided among the partitions in proportion to their lag.

    Args:
        last: Range of the last batch; None for the first batch. A new partition starts at its earliest offset.
        max_records: Maximum number of offsets in the range.
        until: Ends beyond which the range does not reach, exclusive; other partitions have no messages. None: no ends.

    Raises:
        MessagesLost: The topic was deleted and created again, or Kafka has removed offsets after the last range.
    """
    already_read: Offsets = {}
    if last is not None:
        _check_continues(state, last)
        already_read = last.end
    start = {partition: already_read.get(partition, earliest) for partition, earliest in sorted(state.earliest.items())}
    ends = state.end if until is None else {name: min(end, until.get(name, 0)) for name, end in state.end.items()}
    lags = {partition: max(0, ends[partition] - offset) for partition, offset in start.items()}
    taken = share(lags, max_records)
    end = {partition: offset + taken[partition] for partition, offset in start.items()}
    return OffsetRange(state.topic, state.topic_id, start, end)


def share(lags: Offsets, most: int) -> dict[int, int]:
    """Return how many offsets to take of each partition, in proportion to the lags.

    Args:
        most: Total to take; everything is taken if the total lag is less.
    """
    total = sum(lags.values())
    if total <= most:
        return dict(lags)
    taken = {partition: lag * most // total for partition, lag in lags.items()}
    left = most - sum(taken.values())
    for partition, lag in sorted(lags.items()):
        if left and taken[partition] < lag:
            taken[partition] += 1
            left -= 1
    return taken


def first_half(whole: OffsetRange) -> OffsetRange:
    """Return the first half of a range of at least two offsets, divided among the partitions like the range."""
    counts = {partition: end - whole.start[partition] for partition, end in whole.end.items()}
    taken = share(counts, whole.count // 2)
    end = {partition: offset + taken[partition] for partition, offset in whole.start.items()}
    return replace(whole, end=end)


def limited(whole: OffsetRange, ends: Offsets) -> OffsetRange:
    """Return the part of a range before some ends, exclusive. Of a partition without an end, nothing is left."""
    end = {}
    for partition, start in whole.start.items():
        end[partition] = max(start, min(whole.end[partition], ends.get(partition, start)))
    return replace(whole, end=end)


def problem_of(state: TopicState, last: OffsetRange, *, is_read: bool) -> MessagesLost | None:
    """Return why a stream cannot go on with its topic; None if it can.

    Args:
        last: Range of the last batch.
        is_read: Whether that batch is finished.
    """
    try:
        if is_read:
            _check_continues(state, last)
        else:
            check_readable(state, last)
    except MessagesLost as error:
        return error
    return None


@dataclass(frozen=True)
class Lost:
    """Offsets that a stream will never read, from `first`, inclusive, to `end`, exclusive; None if nobody knows it."""

    topic: str
    partition: int
    first: int
    end: int | None


def go_on(state: TopicState, last: OffsetRange) -> tuple[OffsetRange, list[Lost]]:
    """Return where a stream goes on after messages were lost, as an empty range, and what it does not read.

    A partition without its next message goes on with the earliest that Kafka has, and so does another topic. Messages
    that it has read before are repeated then, which changes nothing.

    Args:
        last: Range of the last batch.
    """
    is_same = (state.topic, state.topic_id) == (last.topic, last.topic_id)
    position: dict[int, int] = {}
    lost = [] if is_same else [Lost(last.topic, partition, end, None) for partition, end in sorted(last.end.items())]
    for partition, earliest in sorted(state.earliest.items()):
        read = last.end.get(partition, earliest) if is_same else earliest
        position[partition] = read if earliest <= read <= state.end[partition] else earliest
        if read < earliest:
            lost.append(Lost(state.topic, partition, read, earliest))
    return OffsetRange(state.topic, state.topic_id, position, position), lost


def check_readable(state: TopicState, wanted: OffsetRange) -> None:
    """Check that an earlier range can still be read in full.

    Raises:
        MessagesLost: The topic was deleted and created again, or Kafka has removed offsets of the range.
    """
    _check_same_topic(state, wanted)
    for partition, start in wanted.start.items():
        end = wanted.end[partition]
        if end > start:
            _check_has_offsets(state, partition, start, end)


def _check_continues(state: TopicState, last: OffsetRange) -> None:
    _check_same_topic(state, last)
    for partition, offset in last.end.items():
        _check_has_offsets(state, partition, offset, offset)


def _check_same_topic(state: TopicState, known: OffsetRange) -> None:
    if (state.topic, state.topic_id) != (known.topic, known.topic_id):
        expected = f"{known.topic_id} of {known.topic}"
        raise topic_replaced(state.topic, expected=expected, found=state.topic_id)


def _check_has_offsets(state: TopicState, partition: int, start: int, end: int) -> None:
    earliest = state.earliest.get(partition, 0)
    last = state.end.get(partition, 0)
    if start < earliest or end > last:
        raise offsets_missing(state.topic, partition, expected=start, earliest=earliest, end=last)


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
        ("rejected", pa.string()),
        ("trouble", pa.string()),
        ("rules", pa.int64()),
    ]
)
"""process: Name of the commit. state: `INTENDED` or `DONE`. Offsets, kafka, reads, since and trouble are JSON objects.

The columns `rejected`, `trouble` and `rules` are added to an older table by its first move.
"""

INTENDED = "intended"
DONE = "done"

COPIES_ARE_REPEATED = 1
"""Rules of intents since which a later copy of an engagement makes no row."""

VALUES_ARE_THE_HOUSES = 2
"""Rules of intents since which dates and times have all forms of ISO 8601, and numbers and booleans no others."""

DATES_BIND = 3
"""Rules of intents since which a request with an engagement_date acts on rows of that day alone, and names a column."""

LATEST_COUNTS = 4
"""Rules of intents since which the message about an engagement counts that was sent last."""

ERASURES_SPREAD = 5
"""Rules of intents since which a person is the ids that requests until the erasure connect, also later ones, and rows
are erased by the id that they were sent with."""

REMOVED_COUNT = 6
"""Rules of intents since which removed engagements count among the messages about one, and deleted rows come back."""

RULES = REMOVED_COUNT
"""Rules of new intents. A batch that an earlier version has begun is completed by the rules of its intent."""


@dataclass(frozen=True)
class Batch:
    """The intent of a batch. All that the batch writes is a function of it.

    Attributes:
        batch_id: 1 for the first batch of a stream.
        messages: Offsets that the batch reads.
        reads: Table → its version before the batch.
        since: Table → the version that the stream's previous batch left; empty for the first batch.
        rejected: The error for which all its messages become dead letters; None if they are processed.
        rules: Number of the rules that its messages are processed by; 0 if the version that stored it had none.
    """

    batch_id: int
    messages: OffsetRange
    reads: Mapping[str, int]
    since: Mapping[str, int] = field(default_factory=dict)
    rejected: str | None = None
    rules: int = RULES


@dataclass(frozen=True)
class Trouble:
    """The failed attempts at a batch, and the search for the messages that cause them.

    Attributes:
        attempts: Number of failed attempts since the batch that failed first, its parts included. Attempts that a
            fault of the infrastructure ended do not count.
        commit: Name of the commit that failed last.
        error: Name of its error.
        suspects: End offsets, exclusive, of the batch that failed first; None until it is cut.
        narrowed: End offsets, exclusive, of the smallest part that failed; None if no failed part is open.
        withdrawing: Whether the batch is being withdrawn, to be replaced with a part of it.
        exhausted: Whether the batch failed without any message too, so that no message is the cause.
    """

    attempts: int = 0
    commit: str = ""
    error: str = ""
    suspects: Offsets | None = None
    narrowed: Offsets | None = None
    withdrawing: bool = False
    exhausted: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """The last batch of a stream and its progress.

    Attributes:
        commits: Names of the batch's commits, in order.
        done: Name of a finished commit → the table version that it made; None if it committed nothing.
        trouble: None if no attempt has failed.
    """

    batch: Batch
    commits: tuple[str, ...]
    done: Mapping[str, int | None] = field(default_factory=dict)
    trouble: Trouble | None = None

    @property
    def unfinished(self) -> tuple[str, ...]:
        return tuple(name for name in self.commits if name not in self.done)

    @property
    def finished(self) -> bool:
        return not self.unfinished

    @property
    def withdrawing(self) -> bool:
        """Whether the batch is being withdrawn. None of its commits may be completed then."""
        return self.trouble is not None and self.trouble.withdrawing

    def with_done(self, commit: str, version: int | None) -> Checkpoint:
        """Return the checkpoint with one more finished commit."""
        return replace(self, done={**self.done, commit: version})


class CheckpointStore:
    """Reads and moves the checkpoints of a lake. It keeps nothing between calls.

    Args:
        location: Address of the table. Spark can read the table there, too.
    """

    def __init__(self, location: str) -> None:
        self.location = location

    def exists(self) -> bool:
        """Return whether the table was created."""
        return DeltaTable.is_deltatable(self.location)

    def create(self) -> bool:
        """Create the table unless it exists, and return whether it was created."""
        if self.exists():
            return False
        DeltaTable.create(self.location, SCHEMA, mode="ignore", partition_by="app_name")
        return True

    def read(self, app_name: str) -> Checkpoint | None:
        """Return the checkpoint of a stream; None if the stream never ran.

        Raises:
            StoredByNewerVersion: Its batch is to be completed by rules of a later version.
        """
        return _read(open_table(self.location), app_name)

    def move(self, app_name: str, before: Checkpoint | None, after: Checkpoint) -> Checkpoint:
        """Replace the checkpoint of a stream.

        Args:
            before: The checkpoint that must be there; None if the stream never ran.

        Returns:
            `after`.

        Raises:
            PublishConflict: Another checkpoint is there.
        """
        for attempt in retrying(CommitFailedError):
            with attempt:
                self._try_move(app_name, before, after)
        return after

    def _try_move(self, app_name: str, before: Checkpoint | None, after: Checkpoint) -> None:
        table = open_table(self.location)
        found = _read(table, app_name)
        if found != before:
            raise state_moved(app_name, expected=before, found=found)
        write_deltalake(
            table,
            _rows(app_name, after),
            mode="overwrite",
            schema_mode="merge",
            predicate=f"app_name = '{app_name}'",
            commit_properties=CommitProperties(max_commit_retries=0),
        )


def _rows(app_name: str, checkpoint: Checkpoint) -> pa.Table:
    batch = checkpoint.batch
    messages = batch.messages
    common = {
        "app_name": app_name,
        "batch_id": batch.batch_id,
        "start_offsets": _to_json(messages.start),
        "end_offsets": _to_json(messages.end),
        "kafka": _to_json({"topic": messages.topic, "topic_id": messages.topic_id}),
        "reads": _to_json(batch.reads),
        "since": _to_json(batch.since),
        "rejected": batch.rejected,
        "rules": batch.rules,
        "trouble": None if checkpoint.trouble is None else _to_json(asdict(checkpoint.trouble)),
    }
    rows: list[dict[str, Any]] = []
    for name in checkpoint.commits:
        state = DONE if name in checkpoint.done else INTENDED
        version = checkpoint.done.get(name)
        rows.append({**common, "process": name, "state": state, "version": version})
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _read(table: DeltaTable, app_name: str) -> Checkpoint | None:
    rows = read_rows(table, filters=[("app_name", "=", app_name)]).to_pylist()
    if not rows:
        return None
    return Checkpoint(
        batch=_batch(rows[0]),
        commits=tuple(row["process"] for row in rows),
        done={row["process"]: row["version"] for row in rows if row["state"] == DONE},
        trouble=_trouble(rows[0].get("trouble")),
    )


def _batch(row: Mapping[str, Any]) -> Batch:
    rules = row.get("rules") or 0
    if rules > RULES:
        what = f"The checkpoint of {row['app_name']}, with the rules of batch {row['batch_id']},"
        raise StoredByNewerVersion(what, found=rules, readable=RULES)
    kafka = json.loads(row["kafka"])
    messages = OffsetRange(
        topic=kafka["topic"],
        topic_id=kafka["topic_id"],
        start=_offsets(row["start_offsets"]),
        end=_offsets(row["end_offsets"]),
    )
    return Batch(
        batch_id=row["batch_id"],
        messages=messages,
        reads=json.loads(row["reads"]),
        since=json.loads(row["since"]),
        rejected=row.get("rejected"),
        rules=rules,
    )


def _trouble(text: str | None) -> Trouble | None:
    if text is None:
        return None
    values = json.loads(text)
    for name in ("suspects", "narrowed"):
        values[name] = None if values[name] is None else _by_partition(values[name])
    return Trouble(**values)


def _to_json(value: Mapping[Any, Any]) -> str:
    return json.dumps({str(key): item for key, item in value.items()})


def _offsets(text: str) -> Offsets:
    return _by_partition(json.loads(text))


def _by_partition(values: Mapping[str, int]) -> Offsets:
    return {int(partition): offset for partition, offset in values.items()}
