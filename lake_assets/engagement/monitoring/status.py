"""The progress of a lake's streams. Reads checkpoints and Kafka; starts no Spark, changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from lake_assets.base.findings import Finding
from lake_assets.connections.addresses import kafka_address
from lake_assets.engagement.isolation.explain import explain
from lake_assets.engagement.model.delta_log import open_table, read_rows
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.lake import STREAMS, StreamName
from lake_assets.engagement.model.lakes import configured_lakes
from lake_assets.engagement.model.offsets import Offsets, problem_of
from lake_assets.engagement.model.table_schemas import DEAD_LETTER, REPEATED
from lake_assets.engagement.model.tables import LakeTables, open_tables
from lake_assets.engagement.notifications.change_reader import BatchEffect, batch_effect
from lake_assets.engagement.notifications.notify import DATA_COMMIT
from lake_assets.errors import ErrorText
from lake_assets.settings import Settings

CHECK = "engagement lakes"
"""The name of the check in `lake doctor`."""


@dataclass(frozen=True)
class StreamStatus:
    """The progress of a stream.

    Attributes:
        batch_id: Its last batch; None if it never ran.
        unfinished: Commits of that batch that are not done.
        read: End offsets of that batch, exclusive.
        lag: Number of offsets that are still to be read.
        repeated: Number of its messages, of all batches, whose engagement was stored already; only `lake_status` counts
            them.
        effect: What that batch has done; None while it is unfinished. Only `lake_status` tells it.
        paused_since: When the lake was paused, in ISO 8601; None if it is not.
        problem: Why the stream does not go on; None if no attempt has failed and no message is lost.
        remedy: What to do then.
    """

    app_name: str
    batch_id: int | None = None
    unfinished: tuple[str, ...] = ()
    read: Offsets = field(default_factory=dict)
    lag: int = 0
    repeated: int = 0
    effect: BatchEffect | None = None
    paused_since: str | None = None
    problem: str | None = None
    remedy: str | None = None


def stopped_streams(settings: Settings) -> Iterator[Finding]:
    """Yield the configured lakes that are paused, and their streams that do not go on, if a Kafka is known."""
    servers = kafka_address(settings)
    for lake in configured_lakes(settings):
        tables = open_tables(settings, lake)
        if not tables.exist():
            continue
        since = tables.paused_since
        if since is not None:
            resume = f"Let its turns begin again: `lake engagement resume {lake.name}`."
            yield Finding(CHECK, "warning", f"{lake.name} is paused since {since}.", resume)
        if servers is None:
            continue
        found = [stream_status(tables, name, servers) for name in STREAMS]
        stopped = [each for each in found if each.problem is not None]
        for each in stopped:
            yield Finding(CHECK, "error", f"{each.problem}.", each.remedy or "")
        if not stopped and since is None:
            yield Finding(
                CHECK, "ok", f"{lake.name}: its streams go on, {sum(each.lag for each in found):,} offsets behind."
            )


def lake_status(tables: LakeTables, servers: str) -> list[StreamStatus]:
    """Return the status of each stream, with the messages that it has found repeated.

    Args:
        servers: Kafka's `host:port`, comma-separated.

    Raises:
        ServiceError: Kafka does not answer.
    """
    letters = open_table(tables.location(DEAD_LETTER))
    repeated = read_rows(letters, ["topic"], [("reason", "=", REPEATED)])
    count_of = Counter(repeated["topic"].to_pylist())
    found, since = [], tables.paused_since
    for name in STREAMS:
        status = stream_status(tables, name, servers)
        last = tables.checkpoints.read(status.app_name)
        effect = None
        if last is not None and last.finished:
            effect = batch_effect(tables, name, last.batch, last.done.get(DATA_COMMIT))
        repeated_now = count_of[tables.lake.topic(name)]
        found.append(replace(status, repeated=repeated_now, effect=effect, paused_since=since))
    return found


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
    read: Offsets = checkpoint.batch.messages.end if checkpoint else {}
    lag = 0
    for partition, end in topic.end.items():
        lag += end - read.get(partition, topic.earliest[partition])
    status = StreamStatus(app_name, read=read, lag=max(0, lag))
    trouble = explain(app_name, checkpoint)
    if checkpoint is not None:
        status = replace(status, batch_id=checkpoint.batch.batch_id, unfinished=checkpoint.unfinished)
        lost = problem_of(topic, checkpoint.batch.messages, is_read=checkpoint.finished)
        if lost is not None:
            remedy = lost.remedy.replace(" LAKE`", f" {tables.lake.name}`")
            trouble = ErrorText(f"{app_name} cannot go on. {lost.problem.removesuffix('.')}", remedy)
    return status if trouble is None else replace(status, problem=trouble.problem, remedy=trouble.remedy)
