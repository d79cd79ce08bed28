"""The search for the messages that make a batch fail: which part of a batch is tried next. Pure.

A batch is tried `ATTEMPTS` times. Then its first half is tried, and the half of that, until a part succeeds. The rest
of the batch follows, also by halves. A message that fails alone is rejected: it becomes a dead letter, but only if the
batch succeeds without it. So an error that no message causes makes no dead letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lake_assets.engagement.model.checkpoint import Batch, Checkpoint, Trouble
from lake_assets.engagement.model.offsets import OffsetRange, first_half, limited
from lake_assets.engagement.notifications.notify import DATA_COMMIT

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
