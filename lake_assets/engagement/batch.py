"""The micro-batch: an intent that is durable before the first write, then a sequence of idempotent commits.

The checkpoint of a stream stores its last batch. While one of its commits is not done, no other batch begins. That
commit is repeated with the same messages and the same table versions. So everything written is a function of the
intent, and of writes with equal (app id, batch id) Delta keeps only the first.

A batch that fails again and again, though no service does, is withdrawn, and a part of it is tried: see `isolation`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from lake_assets.base.failpoints import BATCH_FAILED, BATCH_REPLACED, BATCH_WITHDRAWN, reach, reach_in_batch
from lake_assets.engagement.checkpoint import (
    DATES_BIND,
    LATEST_COUNTS,
    VALUES_ARE_THE_HOUSES,
    Batch,
    Checkpoint,
    OffsetRange,
    Offsets,
    TopicState,
    next_range,
)
from lake_assets.engagement.delta_log import Commit, open_table
from lake_assets.engagement.erasure import ErasureRegistry
from lake_assets.engagement.isolation import (
    after_failure,
    error_name,
    explain,
    has_changed_rows,
    is_infrastructure,
    next_part,
    replacement,
    withdraw,
)
from lake_assets.engagement.lake import StreamName
from lake_assets.engagement.messages import COLUMN, Format, reject_messages, validate_messages
from lake_assets.engagement.notifications import DATA_COMMIT
from lake_assets.engagement.requests import SENT_AT
from lake_assets.engagement.tables import DEAD_LETTER, DEAD_LETTER_COLUMNS, ERASED, ERASURE, ORG, REPEATED, LakeTables
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.errors import BatchFailed, MessagesLost, checkpoint_lost

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


class BatchCommit(Protocol):
    """One of the commits that a batch makes.

    Attributes:
        name: Also the last part of the transaction app id.
        table: The table that it writes.
    """

    @property
    def name(self) -> str: ...

    @property
    def table(self) -> str: ...

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        """Write to the table as (app id, batch id).

        Args:
            done: Name of each former commit of the batch → the version that it made; None if it committed nothing.
        """


class Guard(Protocol):
    """Excludes other writers, as the job coordinator does. Both methods raise if it no longer can."""

    def claim(self) -> int:
        """Claim the lake and return the token. Called before the first read that a batch depends on."""

    def confirm(self) -> None:
        """Called before each commit."""


@dataclass(frozen=True)
class Stream:
    """A stream of a lake.

    Attributes:
        topic: Function that returns the present offsets of the stream's topic.
        commits: The commits of each batch, in order.
        reads: Tables whose versions are part of the intent, beside the tables that the commits write.
        has_work: Whether a batch is due without a new message, given table → version that the last batch left.
        upgrade: Adds what tables of an earlier version lack. Called after each claim.
    """

    name: StreamName
    tables: LakeTables
    topic: Callable[[], TopicState]
    commits: tuple[BatchCommit, ...]
    reads: tuple[str, ...]
    has_work: Callable[[Mapping[str, int]], bool] = lambda since: False
    upgrade: Callable[[], None] = lambda: None

    @property
    def app_name(self) -> str:
        return self.tables.lake.app_name(self.name)

    @property
    def commit_names(self) -> tuple[str, ...]:
        return tuple(commit.name for commit in self.commits)

    def app_id(self, commit: BatchCommit) -> str:
        return self.tables.lake.app_id(self.name, commit.name)


@dataclass(frozen=True)
class BatchReport:
    """The result of a batch in one turn.

    Attributes:
        resumed: Whether an earlier turn had begun the batch.
        commits: Name of each commit of this turn → what it committed; None if nothing.
        dropped: Number of messages of the whole batch that make no row because they name an erased person.
        repeated: Number of messages of the whole batch that make no row because their engagement is stored already.
        seconds: Name of each commit of this turn → the time that it took.
    """

    batch: Batch
    resumed: bool
    commits: Mapping[str, Commit | None]
    dropped: int = 0
    repeated: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)


def run_batch(stream: Stream, guard: Guard, *, until: Offsets | None = None) -> BatchReport | None:
    """Finish the open batch, or run the next one. If it stops anywhere, the next call continues.

    Only one call may run at a time.

    A stream whose messages are lost reads none. It does what is to be done without one, and the error comes then.

    Args:
        until: As for `next_range`; an open batch is finished whatever it reads.

    Returns:
        None if no batch is due.

    Raises:
        MessagesLost: Kafka has another topic, or has removed messages that were not read. No batch is open, unless its
            rows were written already.
        LakeError: The checkpoint is older than the data.
        PublishConflict: Another call ran at the same time.
        BatchFailed: A commit failed, perhaps because of a message. Its cause is the error of the commit.
    """
    last = stream.tables.checkpoints.read(stream.app_name)
    if last is not None and not last.finished:
        guard.claim()
        stream.upgrade()
        return _complete(stream, guard, last, resumed=True)
    lost: MessagesLost | None = None
    last_messages = last.batch.messages if last else None
    try:
        most = stream.tables.lake.max_records
        available = next_range(stream.topic(), last_messages, max_records=most, until=until)
    except MessagesLost as error:
        assert last_messages is not None, "only what follows a batch can be lost"
        lost, available = error, replace(last_messages, start=last_messages.end)
    opened = _begin(stream, guard, last, available)
    report = None if opened is None else _complete(stream, guard, opened, resumed=False)
    if lost is not None:
        raise lost
    return report


def _begin(stream: Stream, guard: Guard, last: Checkpoint | None, available: OffsetRange) -> Checkpoint | None:
    """Store the intent of the next batch, and return its checkpoint; None if no batch is due.

    Args:
        available: The messages that the stream has to read next.
    """
    tables = stream.tables
    messages, trouble = next_part(available, last)
    since = versions_left_by(stream, last) if last else {}
    if not messages.count and not stream.has_work(since):
        return None
    guard.claim()
    stream.upgrade()
    batch_id = last.batch.batch_id + 1 if last else 1
    for commit in stream.commits:
        _check_unseen(stream, commit, batch_id)
    batch = Batch(batch_id, messages, _present_versions(stream), since)
    intent = Checkpoint(batch, stream.commit_names, trouble=trouble)
    guard.confirm()
    reach_in_batch("before-intent", stream.commit_names)
    opened = tables.checkpoints.move(stream.app_name, last, intent)
    reach_in_batch("after-intent", stream.commit_names)
    return opened


def _present_versions(stream: Stream) -> dict[str, int]:
    tables = {*stream.reads, *(commit.table for commit in stream.commits)}
    return {table: stream.tables.version(table) for table in sorted(tables)}


def versions_left_by(stream: Stream, last: Checkpoint) -> dict[str, int]:
    """Return the version of each table after the last batch, its own commits included."""
    versions = dict(last.batch.reads)
    for commit in stream.commits:
        version = last.done.get(commit.name)
        if version is not None:
            versions[commit.table] = version
    return versions


class _AttemptFailed(Exception):
    """A commit of a batch failed. checkpoint: the progress until then."""

    def __init__(self, checkpoint: Checkpoint, commit: BatchCommit, error: Exception) -> None:
        super().__init__(commit.name)
        self.checkpoint = checkpoint
        self.commit = commit
        self.error = error


def _complete(stream: Stream, guard: Guard, opened: Checkpoint, *, resumed: bool) -> BatchReport:
    """Finish the open batch, or the first part of it that succeeds if the batch has failed often enough."""
    while True:
        if opened.withdrawing:
            opened = _replace(stream, guard, opened)
        try:
            return _finish(stream, guard, opened, resumed=resumed)
        except MessagesLost:
            _set_aside(stream, guard, stream.tables.checkpoints.read(stream.app_name) or opened)
            raise
        except _AttemptFailed as failure:
            opened = _record_failure(stream, failure)
            if not opened.withdrawing:
                raise _error(stream, opened) from failure.error


def _record_failure(stream: Stream, failure: _AttemptFailed) -> Checkpoint:
    counted = after_failure(failure.checkpoint, failure.commit.name, error_name(failure.error))
    stream.tables.checkpoints.move(stream.app_name, failure.checkpoint, counted)
    reach(BATCH_FAILED)
    return counted


def _error(stream: Stream, opened: Checkpoint) -> BatchFailed:
    found = explain(stream.app_name, opened)
    assert found is not None
    return BatchFailed(found.problem, remedy=found.remedy)


def _replace(stream: Stream, guard: Guard, opened: Checkpoint) -> Checkpoint:
    """Withdraw the open batch, and store the intent of the part that is tried next."""
    checkpoints = stream.tables.checkpoints
    if not _withdraw(stream, guard, opened):
        return checkpoints.move(stream.app_name, opened, replace(opened, trouble=None))
    part = replacement(opened, _present_versions(stream))
    checkpoints.move(stream.app_name, opened, part)
    reach(BATCH_REPLACED)
    return part


def _withdraw(stream: Stream, guard: Guard, opened: Checkpoint) -> bool:
    """Withdraw the open batch, unless it has changed rows after all; return whether it is withdrawn."""
    guard.confirm()
    data = next(commit for commit in stream.commits if commit.name == DATA_COMMIT)
    if has_changed_rows(stream.tables, stream.app_id(data), data.table, opened):
        return False
    commits = {commit.name: (stream.app_id(commit), commit.table) for commit in stream.commits}
    withdraw(stream.tables, commits, opened)
    reach(BATCH_WITHDRAWN)
    guard.confirm()
    return True


def _set_aside(stream: Stream, guard: Guard, opened: Checkpoint) -> None:
    """Withdraw the open batch, whose messages Kafka has lost, so that it stops no other stream.

    A batch that has changed rows stays open: its other commits are to be made.
    """
    if not _withdraw(stream, guard, opened):
        return
    batch = opened.batch
    nothing = replace(batch.messages, end=batch.messages.start)
    stream.tables.checkpoints.move(stream.app_name, opened, ended(stream, batch, nothing, batch.since or batch.reads))


def ended(stream: Stream, batch: Batch, messages: OffsetRange, left: Mapping[str, int]) -> Checkpoint:
    """Return the checkpoint after a batch that has written nothing, and comes after another one.

    Args:
        messages: A range without messages. The next batch begins at its end.
        left: Table → the version that the stream's last batch left.
    """
    after = Batch(batch.batch_id + 1, messages, left, batch.since)
    return Checkpoint(after, stream.commit_names, done=dict.fromkeys(stream.commit_names))


def _finish(stream: Stream, guard: Guard, opened: Checkpoint, *, resumed: bool) -> BatchReport:
    """Make the commits of the open batch that are not done."""
    made: dict[str, Commit | None] = {}
    seconds: dict[str, float] = {}
    for commit in stream.commits:
        if commit.name in opened.done:
            continue
        started_at = time.monotonic()
        guard.confirm()
        reach_in_batch(f"before-{commit.name}", stream.commit_names)
        try:
            made[commit.name] = _commit(stream, commit, opened)
        except Exception as error:
            if is_infrastructure(error):
                raise
            raise _AttemptFailed(opened, commit, error) from error
        reach_in_batch(f"written-{commit.name}", stream.commit_names)
        opened = _record(stream, commit, opened, made[commit.name])
        seconds[commit.name] = time.monotonic() - started_at
        reach_in_batch(f"recorded-{commit.name}", stream.commit_names)
    letters = stream.tables.dead_letters(opened.batch)
    return BatchReport(
        opened.batch, resumed, made, dropped=letters[ERASED], repeated=letters[REPEATED], seconds=seconds
    )


def _commit(stream: Stream, commit: BatchCommit, opened: Checkpoint) -> Commit | None:
    """Return what a commit of the batch committed; write it first unless a former attempt did."""
    batch = opened.batch
    app_id = stream.app_id(commit)
    if stream.tables.last_batch(commit.table, app_id) < batch.batch_id:
        commit.write(batch, opened.done, app_id)
    since = batch.reads.get(commit.table, 0)  # an intent of an earlier version lacks the tables that are new
    return stream.tables.commit_of(commit.table, app_id=app_id, batch_id=batch.batch_id, since=since)


def _record(stream: Stream, commit: BatchCommit, opened: Checkpoint, made: Commit | None) -> Checkpoint:
    version = made.version if made else None
    done = opened.with_done(commit.name, version)
    # The intent of an earlier version may lack commits of this one.
    done = replace(done, commits=stream.commit_names)
    return stream.tables.checkpoints.move(stream.app_name, opened, done)


def _check_unseen(stream: Stream, commit: BatchCommit, batch_id: int) -> None:
    """Check that Delta will not skip the batch because it has seen its id."""
    app_id = stream.app_id(commit)
    seen = stream.tables.last_batch(commit.table, app_id)
    if seen >= batch_id:
        raise checkpoint_lost(app_id, batch_id=batch_id, seen=seen)


FAILED = "failed"
"""Reason, before the name of an error, of a dead letter that made its batch fail."""


@dataclass(frozen=True)
class _Checkpointed:
    """The messages of a batch, which were computed once.

    Attributes:
        messages: As `BatchMessages.accepted` returns them.
        all_valid: Whether it is known that every message is valid.
        counted: As `BatchMessages.aggregates` names them.
    """

    batch: Batch
    messages: DataFrame
    all_valid: bool
    counted: Mapping[str, Any]


IS_VALID = "is_valid"


@dataclass(frozen=True)
class BatchMessages:
    """Reads and validates the messages of batches.

    Attributes:
        format: Format of the topic's messages.
    """

    tables: LakeTables
    spark: SparkSession
    topic: KafkaTopic
    format: Format
    _checkpointed: list[_Checkpointed] = field(default_factory=list, init=False, repr=False, compare=False)

    def validated(self, batch: Batch) -> DataFrame:
        """Return the messages as `validate_messages` does, with the orgs registered when the batch began.

        The messages of a rejected batch are not parsed. Their text is kept only if nobody was erased before, because it
        may name an erased person.
        """
        from pyspark.sql import functions as F

        orgs = self.spark.createDataFrame(self.tables.rows_for(batch, ORG))
        messages = self.topic.read(self.spark, batch.messages)
        message_format = self.format if batch.rules >= VALUES_ARE_THE_HOUSES else self.format.of_old_batch()
        later = {COLUMN: DATES_BIND, SENT_AT: LATEST_COUNTS}
        unknown = [name for name, since in later.items() if batch.rules < since and name in message_format.fields]
        for name in unknown:
            message_format = message_format.without(name)
        validated = validate_messages(messages, message_format, orgs)
        for name in unknown:
            validated = validated.withColumn(name, F.lit(None).cast(self.format.fields[name]))
        if batch.rejected is None:
            return validated
        erasures = open_table(self.tables.location(ERASURE), batch.reads[ERASURE])
        keeps_text = not erasures.file_uris()
        return reject_messages(messages, validated.schema, f"{FAILED}: {batch.rejected}", keeps_text=keeps_text)

    def checkpointed(self, batch: Batch) -> DataFrame:
        """Return the messages of `accepted`, computed once and kept until `release`. The text of valid ones is null.

        Those that are valid by themselves have `IS_VALID`, also if the tables of the lake forbid them.
        """
        return self._kept(batch).messages

    def all_valid(self, batch: Batch) -> bool:
        """Return whether it is known, without a query, that `checkpointed` has valid messages only."""
        return self._kept(batch).all_valid

    def counted(self, batch: Batch) -> Mapping[str, Any]:
        """Return `aggregates` of the validated messages of a batch."""
        return self._kept(batch).counted

    def aggregates(self) -> Mapping[str, Column]:
        """Return name → aggregate of validated messages: the number of invalid ones, and the orgs of the valid ones."""
        from pyspark.sql import functions as F

        org_of_valid = F.when(F.col("reason").isNull(), F.col("org_id"))
        return {"invalid": F.count("reason"), "orgs": F.collect_set(org_of_valid)}

    def _kept(self, batch: Batch) -> _Checkpointed:
        from pyspark.sql import functions as F

        from lake_assets.connections.row_checkpoint import checkpoint_and_aggregate

        for kept in self._checkpointed:
            if kept.batch == batch:
                return kept
        text_of_invalid = F.when(F.col("reason").isNotNull(), F.col("message"))
        is_valid = F.col("reason").isNull()
        validated = self.validated(batch).withColumns({"message": text_of_invalid, IS_VALID: is_valid})
        aggregates = [aggregate.alias(name) for name, aggregate in self.aggregates().items()]
        messages, counted = checkpoint_and_aggregate(validated, aggregates)
        accepted = self.accepted(messages, batch)
        # If the tables of the lake forbid nothing, the messages are returned as they are.
        all_valid = counted["invalid"] == 0 and accepted is messages
        kept = _Checkpointed(batch, accepted, all_valid, counted)
        self._checkpointed.append(kept)
        return kept

    def accepted(self, messages: DataFrame, batch: Batch) -> DataFrame:
        """Return validated messages, of which those that the tables of the lake forbid are invalid, too.

        A message about a person who was erased when the batch began is invalid, unless it asks for the erasure.
        """
        registry = ErasureRegistry(self.tables, self.spark)
        return registry.reject_erased(messages, self.format.people, batch, include_valid=not self.format.erases)

    def valid(self, batch: Batch) -> DataFrame:
        """Return the valid messages of `checkpointed`."""
        return self.checkpointed(batch).where("reason is null")

    def release(self) -> None:
        """Forget the rows that `checkpointed` has kept."""
        from lake_assets.connections.row_checkpoint import release_checkpoints

        self._checkpointed.clear()
        release_checkpoints(self.spark)


def _unchanged(letters: DataFrame, batch: Batch) -> DataFrame:
    return letters


@dataclass(frozen=True)
class DeadLetterCommit:
    """Appends the invalid messages of a batch to the dead-letter table, each once.

    Attributes:
        redact: Function that removes texts from the dead letters of a batch before they are written.
    """

    messages: BatchMessages
    redact: Callable[[DataFrame, Batch], DataFrame] = _unchanged
    name: str = "dead_letter"
    table: str = DEAD_LETTER

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        tables = self.messages.tables
        if self.messages.all_valid(batch):
            tables.append_few(DEAD_LETTER, (), app_id=app_id, batch_id=batch.batch_id)
        else:
            tables.append(DEAD_LETTER, self._letters(batch), app_id=app_id, batch_id=batch.batch_id)
        self.messages.release()

    def _letters(self, batch: Batch) -> DataFrame:
        invalid = self.messages.checkpointed(batch).where("reason is not null")
        numbered = invalid.withColumn("batch_id", batch_id_column(batch))
        return self.redact(numbered.select(*DEAD_LETTER_COLUMNS), batch)


def batch_id_column(batch: Batch) -> Column:
    """Return the batch id as a column of type long."""
    from pyspark.sql import functions as F

    return F.lit(batch.batch_id).cast("bigint")
