"""How far the streams of a lake are. Reads checkpoints and Kafka; starts no Spark, changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.lake import StreamName
from lake_assets.engagement.model.offsets import Offsets
from lake_assets.engagement.model.tables import LakeTables


@dataclass(frozen=True)
class StreamStatus:
    """batch_id: its last batch; None if it never ran. unfinished: the processes of it that are not done.

    read: the offsets that its batches end at. lag: so many offsets are behind them.
    """

    app_name: str
    batch_id: int | None
    unfinished: tuple[str, ...]
    read: Offsets
    lag: int


def stream_status(tables: LakeTables, name: StreamName, servers: str) -> StreamStatus:
    """One stream's. servers: of Kafka, `host:port`, comma-separated. Raises `ServiceError`."""
    lake = tables.lake
    checkpoint = tables.checkpoints.read(lake.app_name(name))
    topic = KafkaTopic(servers, lake.topic(name)).state()
    read = checkpoint.batch.messages.end if checkpoint else {}
    return StreamStatus(
        lake.app_name(name),
        checkpoint.batch.batch_id if checkpoint else None,
        checkpoint.unfinished if checkpoint else (),
        read,
        sum(end - read.get(partition, topic.earliest[partition]) for partition, end in topic.end.items()),
    )
