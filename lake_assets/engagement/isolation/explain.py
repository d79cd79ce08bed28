"""What is wrong with a stream whose batch fails, and what to do, for a person. Pure."""

from __future__ import annotations

from lake_assets.engagement.isolation.search import ATTEMPTS
from lake_assets.engagement.model.checkpoint import Checkpoint, Trouble
from lake_assets.engagement.notifications.notify import DATA_COMMIT
from lake_assets.errors import ErrorText

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
