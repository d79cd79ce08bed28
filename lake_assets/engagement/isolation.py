"""Batches that fail: whether messages may be the cause, which part is tried next, and what is wrong, for a person.

A batch is tried `ATTEMPTS` times. Then its first half is tried, and the half of that, until a part succeeds. The rest
of the batch follows, also by halves. A message that fails alone is rejected: it becomes a dead letter, but only if the
batch succeeds without it. So an error that no message causes makes no dead letter.

Each step of a withdrawal can be repeated. The part of the batch that is tried next has a new batch id, so a former
attempt that is still running cannot pass for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from confluent_kafka import KafkaException
from deltalake.exceptions import DeltaError
from kazoo.exceptions import KazooException

from lake_assets.base.described import is_machines_fault, passes_by_itself
from lake_assets.base.failpoints import BATCH_HALF_WITHDRAWN, reach
from lake_assets.engagement.checkpoint import Batch, Checkpoint, OffsetRange, Trouble, first_half, limited
from lake_assets.engagement.delta_log import open_table
from lake_assets.engagement.notifications import DATA_COMMIT, Counts, total_counts
from lake_assets.engagement.tables import LakeTables
from lake_assets.errors import (
    ConfigurationError,
    CoordinationError,
    ErrorText,
    LakeError,
    ServiceError,
    chain,
    chain_text,
    text_of,
)

INFRASTRUCTURE_CLASSES: tuple[type[Exception], ...] = (
    ConfigurationError,
    CoordinationError,
    ServiceError,
    LakeError,
    DeltaError,
    KafkaException,
    KazooException,
    OSError,
    MemoryError,
)
"""Errors of services, of the coordinator and of the machine. An attempt that ends with one of them does not count.

`DeltaError` is of delta-rs, which reads and writes no message for a batch.
"""

INFRASTRUCTURE_TEXTS = re.compile(
    r"DELTA_CONCURRENT|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED|DELTA_LOG_FILE_NOT_FOUND"
    r"|StatusCode\.(?!INTERNAL|UNKNOWN|INVALID_ARGUMENT)|Socket closed|SparkContext (?:was|has been) (?:shut|stopped)"
    r"|stopped SparkContext|OPERATION_CANCELED|FAILED_READ_FILE|FileNotFoundException"
    r"|org\.apache\.kafka\.|KAFKA_DATA_LOSS|File too large|java\.io\.IOException|Python worker exited unexpectedly"
)
"""Texts of Spark's and Delta's errors that report another writer, a lost server, Kafka, or a disk.

`base.described.PASSING` has others, such as a lost executor.
"""

_STACK_FRAME = re.compile(r"^\s*at .*$", re.MULTILINE)
_CONDITION = re.compile(r"(?:^|(?:Exception|Error)(?:\)|:) )\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]", re.MULTILINE)
_PYTHON_ERROR = re.compile(r"^(?:\w+\.)*(\w*Error): ", re.MULTILINE)


def is_infrastructure(error: BaseException) -> bool:
    """Return whether an error is one of the services under a batch, so that its messages are not the cause."""
    if any(isinstance(found, INFRASTRUCTURE_CLASSES) for found in chain(error)):
        return True
    text = _STACK_FRAME.sub("", chain_text(error))
    is_of_writers = INFRASTRUCTURE_TEXTS.search(text) is not None
    return is_of_writers or is_machines_fault(error) or passes_by_itself(text)


def error_name(error: BaseException) -> str:
    """Return the condition of an error of Spark or Delta, the class of a Python error of a task, or its own class.

    It contains no value of a message, because messages name persons, and the name is stored.
    """
    text = _STACK_FRAME.sub("", text_of(error))
    names: list[str] = _CONDITION.findall(text) or _PYTHON_ERROR.findall(text)
    return names[-1] if names else type(error).__name__


ATTEMPTS = 3
"""Number of attempts at a batch before it is cut."""


def after_failure(failed: Checkpoint, commit: str, error: str) -> Checkpoint:
    """Return the checkpoint after a failed attempt that messages may have caused. It may say to withdraw the batch.

    Args:
        commit: Name of the commit that failed.
        error: Name of its error.
    """
    trouble = failed.trouble or Trouble()
    attempts = trouble.attempts + 1
    is_due = attempts >= ATTEMPTS or trouble.suspects is not None
    is_possible = DATA_COMMIT not in failed.done and failed.batch.messages.count > 0 and not trouble.exhausted
    counted = replace(trouble, attempts=attempts, commit=commit, error=error, withdrawing=is_due and is_possible)
    return replace(failed, trouble=counted)


def replacement(withdrawn: Checkpoint, reads: Mapping[str, int]) -> Checkpoint:
    """Return the intent that replaces a withdrawn batch: its first half; of one message, the same one as rejected.

    If the batch failed with its message rejected, the message is processed again, and the batch is cut no more.

    Args:
        reads: Table → its present version.
    """
    batch = withdrawn.batch
    trouble = withdrawn.trouble or Trouble()
    suspects = batch.messages.end if trouble.suspects is None else trouble.suspects
    messages = batch.messages
    rejected: str | None = None
    if messages.count > 1:
        messages = first_half(messages)
    elif batch.rejected is None:
        rejected = trouble.error
    exhausted = batch.rejected is not None
    intent = Batch(batch.batch_id + 1, messages, reads, batch.since, rejected)
    narrowed = batch.messages.end
    searching = replace(trouble, suspects=suspects, narrowed=narrowed, withdrawing=False, exhausted=exhausted)
    return Checkpoint(intent, withdrawn.commits, trouble=searching)


def next_part(available: OffsetRange, last: Checkpoint | None) -> tuple[OffsetRange, Trouble | None]:
    """Return the messages of the next batch, and the trouble that it inherits; None if no search is open.

    Args:
        available: The messages that the next batch would read without a search.
        last: The stream's last batch, which is finished.
    """
    trouble = last.trouble if last else None
    if last is None or trouble is None or trouble.suspects is None:
        return available, None
    rest = limited(available, trouble.suspects)
    if not rest.count:
        return available, None
    failed_part = _rest_of_failed_part(rest, last.batch, trouble)
    if failed_part.count > 1:
        return first_half(failed_part), trouble
    if failed_part.count:
        return failed_part, trouble
    return rest, replace(trouble, narrowed=None, exhausted=False)


def _rest_of_failed_part(rest: OffsetRange, last: Batch, trouble: Trouble) -> OffsetRange:
    """Return what is left of the part that failed, if its beginning succeeded: the cause is in it. Else nothing."""
    has_found_cause = last.rejected is not None or trouble.exhausted
    ends = trouble.narrowed
    return limited(rest, {} if has_found_cause or ends is None else ends)


_READ_LOG = "The log of the turn has the whole error."


def explain(app_name: str, checkpoint: Checkpoint | None) -> ErrorText | None:
    """Return problem and remedy, without a value of a message; None if no attempt at the open batch has failed."""
    if checkpoint is None or checkpoint.finished or checkpoint.trouble is None:
        return None
    trouble = checkpoint.trouble
    batch = checkpoint.batch
    size = "no messages" if not batch.messages.count else f"{batch.messages.count} offsets"
    problem = (
        f"Batch {batch.batch_id} of {app_name} ({size}) is not done; failed attempts: {trouble.attempts}, "
        f"the last one in commit {trouble.commit}: {trouble.error}"
    )
    return ErrorText(problem, _remedy(checkpoint, trouble))


def _remedy(checkpoint: Checkpoint, trouble: Trouble) -> str:
    if DATA_COMMIT in checkpoint.done or not checkpoint.batch.messages.count or trouble.exhausted:
        return f"No message of the batch is the cause: mend the cause, then take a turn of the stream. {_READ_LOG}"
    if trouble.suspects is not None:
        return (
            "The stream is looking for the messages that cause it, which become dead letters: "
            f"take turns of the stream, or let Dagster take them. {_READ_LOG}"
        )
    return (
        f"Take a turn of the stream. After {ATTEMPTS} attempts the batch is cut in halves until the messages that "
        f"cause it are found; they become dead letters. {_READ_LOG}"
    )


def has_changed_rows(tables: LakeTables, app_id: str, table: str, opened: Checkpoint) -> bool:
    """Return whether the data commit of a batch is in its table after all. Then the batch is not withdrawn."""
    batch = opened.batch
    made = tables.commit_of(table, app_id=app_id, batch_id=batch.batch_id, since=batch.reads[table])
    return made is not None and total_counts(made) != Counts()


def withdraw(tables: LakeTables, commits: Mapping[str, tuple[str, str]], opened: Checkpoint) -> None:
    """Mark the id of a batch as used in each table, then remove its rows.

    Args:
        commits: Name of each commit of the batch, in order → its transaction app id and its table. Commits before the
            data commit append rows with a `batch_id` that no other stream writes.
    """
    batch_id = opened.batch.batch_id
    changes_rows = False
    for name, (app_id, table) in commits.items():
        location = tables.location(table)
        changes_rows |= name == DATA_COMMIT
        tables.append_few(table, (), app_id=app_id, batch_id=batch_id)
        if not changes_rows:
            open_table(location).delete(f"batch_id = {int(batch_id)}")
        reach(BATCH_HALF_WITHDRAWN)
