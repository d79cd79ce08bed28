"""Errors of the streams of engagement lakes."""

from lake_assets.errors.base import LakeError


class StreamError(LakeError):
    """A stream of an engagement lake stopped. Its checkpoint did not move."""


class MessagesLost(StreamError):
    """Kafka does not have the messages at which a stream has to continue. Nothing is open: other streams go on."""

    def __init__(self, problem: str, *, restore: str) -> None:
        super().__init__(
            problem,
            remedy=f"{restore}, or run `lake engagement accept LAKE`: it records what is lost, and the stream goes on "
            "with what Kafka has.",
        )


class TopicReplaced(MessagesLost):
    """Kafka now has another topic under this name (`found`), or the lake names another topic than before."""

    def __init__(self, topic: str, *, expected: str, found: str) -> None:
        super().__init__(
            f"Topic {topic} was replaced: its id is {found}, but the checkpoint has offsets of the topic "
            f"with id {expected}.",
            restore="Restore the previous topic",
        )


class OffsetsMissing(MessagesLost):
    """Kafka does not have the offset at which a stream has to continue.

    Args:
        topic: The topic.
        partition: Its partition.
        expected: The offset to continue at.
        earliest: The first offset that the partition holds.
        end: The offset after its last message.
    """

    def __init__(self, topic: str, partition: int, *, expected: int, earliest: int, end: int) -> None:
        super().__init__(
            f"The next offset of partition {partition} of {topic} is {expected}, "
            f"but Kafka holds offsets {earliest} to {end} (exclusive).",
            restore="Increase the topic's retention. Restore the messages",
        )


class CountsDiffer(StreamError):
    """The change data feed and the metrics of a commit disagree."""

    def __init__(self, table: str, version: int, *, feed: object, metrics: object) -> None:
        super().__init__(
            f"Version {version} of {table} changed {feed} according to its change data feed, "
            f"but {metrics} according to its metrics.",
            remedy="Compare `table_changes_by_path` with DESCRIBE HISTORY. No notification was written.",
        )


class BatchFailed(StreamError):
    """An attempt at a batch failed, perhaps because of a message. The attempt is counted in the checkpoint.

    Args:
        trouble: What failed, as a clause, without values of messages.
    """

    def __init__(self, trouble: str, *, remedy: str) -> None:
        super().__init__(f"{trouble}.", remedy=remedy)


class CheckpointLost(StreamError):
    """The checkpoint is older than the table. Delta would skip the batch without an error."""

    def __init__(self, app_id: str, *, batch_id: int, seen: int) -> None:
        super().__init__(
            f"Batch {batch_id} of {app_id} cannot be written, because its table already holds batch {seen}: "
            "the checkpoint is older than the data.",
            remedy="Restore the newest version of the lake's checkpoint table. Never roll this table back.",
        )


class ChangesExpired(StreamError):
    """The change data feed no longer reaches back to a cursor. version: where the reader starts again."""

    def __init__(self, table: str, *, cursor: int, version: int) -> None:
        super().__init__(
            f"The changes of {table} after version {cursor} no longer exist: VACUUM or an erasure removed them.",
            remedy=f"Read the table as of version {version}, then continue with {version} as the cursor.",
        )
        self.version = version
