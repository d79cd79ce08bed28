"""The progress of a lake's streams. Reads checkpoints and Kafka; starts no Spark, changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.lake import StreamName
from lake_assets.engagement.model.offsets import Offsets
from lake_assets.engagement.model.tables import LakeTables


@dataclass(frozen=True)
class StreamStatus:
    """The progress of a stream.

    Attributes:
        batch_id: Its last batch; None if it never ran.
        unfinished: Commits of that batch that are not done.
        read: End offsets of that batch, exclusive.
        lag: Number of offsets that are still to be read.
    """

    app_name: str
    batch_id: int | None
    unfinished: tuple[str, ...]
    read: Offsets
    lag: int


def stream_status(tables: LakeTables, name: StreamName, servers: str) -> StreamStatus:
    """Return the status of a stream.

    Args:
        servers: Kafka's `host:port`, comma-separated.

    Raises:
        ServiceError: Kafka does not answer.
    """
    app_name = tables.lake.app_name(name)
    checkpoint = tables.checkpoints.read(app_name)
    topic = KafkaTopic(servers, tables.lake.topic(name)).state()
    batch_id: int | None = None
    unfinished: tuple[str, ...] = ()
    read: Offsets = {}
    if checkpoint is not None:
        batch_id = checkpoint.batch.batch_id
        unfinished = checkpoint.unfinished
        read = checkpoint.batch.messages.end
    lag = 0
    for partition, end in topic.end.items():
        lag += end - read.get(partition, topic.earliest[partition])
    return StreamStatus(app_name, batch_id, unfinished, read, lag)
