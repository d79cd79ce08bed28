"""Removing messages from Kafka that landed long enough ago; see `landing.topics.retention`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from confluent_kafka import TopicPartition

from lake_assets.connections.kafka import TIMEOUT_SECONDS, asking
from lake_assets.landing.consume.topic_state import TopicState, topic_states
from lake_assets.landing.manifest.store import Manifest
from lake_assets.landing.topics.ledger import Epoch, Ledger
from lake_assets.landing.topics.retention import Retention, kept_marks, landed_everywhere, removable


def remove_landed(
    manifest: Manifest, servers: str, topic: str, *, zones: Collection[str], now: datetime
) -> dict[int, int]:
    """Remove the messages of a topic that all zones had landed before its retention, and record how far it has landed.

    A topic without a recorded retention is left as it is, and so is one that was deleted and created again, until a
    person has accepted that. Safe to repeat.

    Args:
        manifest: The manifest.
        servers: Of Kafka, `host:port`, comma-separated.
        topic: The topic.
        zones: The names of all zones.
        now: The present time.

    Returns:
        Partition → the first offset that Kafka has now, of the partitions of which messages were removed.

    Raises:
        ServiceError: Kafka does not answer, or refuses.
    """
    hours, epoch = Retention(manifest).hours(topic), Ledger(manifest).epoch(topic)
    if hours is None or epoch is None:
        return {}
    state = topic_states(servers, [topic])[topic]
    if state.topic_id != epoch.topic_id:
        return {}
    before = now - timedelta(hours=hours)
    landed = landed_everywhere(manifest, topic, zones)
    marks = Retention(manifest).marks(epoch)
    firsts = _in_kafka(removable(marks, landed, before=before), epoch, state)
    _remove(servers, topic, firsts)
    Retention(manifest).replace_marks(epoch, kept_marks(marks, landed, before=before, now=now))
    return firsts


def _in_kafka(ends: Mapping[int, int], epoch: Epoch, state: TopicState) -> dict[int, int]:
    """Return Kafka's offsets of landed ones, where there is something to remove before them."""
    found = {}
    for partition, end in sorted(ends.items()):
        first = min(end - epoch.base(partition), state.ends.get(partition, 0))
        if first > state.earliest.get(partition, 0):
            found[partition] = first
    return found


def _remove(servers: str, topic: str, firsts: Mapping[int, int]) -> None:
    if not firsts:
        return
    wanted = [TopicPartition(topic, partition, first) for partition, first in firsts.items()]
    with asking(servers) as admin:
        for answer in admin.delete_records(wanted, request_timeout=TIMEOUT_SECONDS).values():
            answer.result()
