"""Is the topic that Kafka has under a name the one whose files have landed?

An id is recorded when a topic is first seen. A manifest of the version before has files and no id: it takes the id that
Kafka gives, unless Kafka ends before the landed files do, for then the files are of another topic.

A tailer looks at the id after it has read the messages of a file and before it adds the file. Ids never return, so
messages that were read between two looks at the same id are of that topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from confluent_kafka.admin import AdminClient

from lake_assets.connections.kafka import client
from lake_assets.errors import TopicRecreated
from lake_assets.landing.consume.topic_state import TopicState, topic_ids, topic_states
from lake_assets.landing.files.offset_ranges import next_offsets
from lake_assets.landing.manifest.schema import ALL_STAGES, files_of
from lake_assets.landing.manifest.store import Manifest
from lake_assets.landing.topics.ledger import UNKNOWN_ID, Epoch, Ledger


@dataclass(frozen=True)
class WatchedTopic:
    """A topic in Kafka, and the epoch that the manifest has recorded of it."""

    state: TopicState
    epoch: Epoch

    @property
    def replaced(self) -> TopicRecreated | None:
        """The error if Kafka has another topic now; None if it is the same."""
        return replaced(self.epoch, self.state.topic_id)

    @property
    def earliest(self) -> dict[int, int]:
        """Partition → the landed offset of the first message that Kafka has."""
        return self.epoch.landed_offsets(self.state.earliest)


def replaced(epoch: Epoch, topic_id: str) -> TopicRecreated | None:
    """Return the error if a topic has another id than its epoch; None if it is the same."""
    if epoch.topic_id == topic_id:
        return None
    return TopicRecreated(epoch.topic, expected=epoch.topic_id, found=topic_id)


def landed_ends(manifest: Manifest, topic: str) -> dict[int, int]:
    """Return, for each partition, the offset after the last one that any zone has landed or a person has given up."""
    found = next_offsets(files_of(manifest.entries(topic=topic, stages=ALL_STAGES)))
    for loss in Ledger(manifest).losses(topic):
        found[loss.partition] = max(loss.last + 1, found.get(loss.partition, 0))
    return found


def watch_topics(manifest: Manifest, servers: str, topics: Iterable[str], *, now: datetime) -> dict[str, WatchedTopic]:
    """Return topics as Kafka has them now, and their epochs; record the ids of those that have none.

    Raises:
        ServiceError: Kafka does not answer, or a topic does not exist.
    """
    # The manifest is read first: what lands after that is not beyond the ends that Kafka gives then.
    ends = {topic: landed_ends(manifest, topic) for topic in topics}
    found = {}
    for topic, state in topic_states(servers, ends).items():
        ledger = Ledger(manifest)
        epoch = ledger.epoch(topic) or ledger.learn(topic, _first_id(state, ends[topic]), now=now)
        found[topic] = WatchedTopic(state, epoch)
    return found


def logical_ends(manifest: Manifest, servers: str, topic: str) -> dict[int, int]:
    """Return, for each partition, the offset after Kafka's last message, as it is or would be landed.

    If the topic was deleted and created again, none of its messages has landed. Changes nothing. Raises `ServiceError`.
    """
    ends = landed_ends(manifest, topic)
    state = topic_states(servers, [topic])[topic]
    epoch = Ledger(manifest).epoch(topic) or Epoch(topic, 1, _first_id(state, ends), {})
    if replaced(epoch, state.topic_id):
        return {partition: ends.get(partition, 0) + end for partition, end in state.ends.items()}
    return epoch.landed_offsets(state.ends)


def _first_id(state: TopicState, ends: Mapping[int, int]) -> str:
    for partition, end in ends.items():
        if end > state.ends.get(partition, 0):
            return UNKNOWN_ID
    return state.topic_id


@dataclass
class IdCheck:
    """Looks at the id of a topic, at most once between two reads.

    Attributes:
        servers: Of Kafka, `host:port`, comma-separated.
        epochs: Topic → its recorded epoch.
    """

    servers: str
    epochs: Mapping[str, Epoch]
    _looked: dict[str, TopicRecreated | None] = field(default_factory=dict, init=False)

    def forget(self) -> None:
        """Messages are about to be read: look again after that."""
        self._looked.clear()

    def problem(self, topic: str) -> TopicRecreated | None:
        """Return the error if the topic is another one now. Raises `ServiceError`."""
        if topic not in self._looked:
            (topic_id,) = topic_ids(self.servers, [topic], self._admin).values()
            self._looked[topic] = replaced(self.epochs[topic], topic_id)
        return self._looked[topic]

    @cached_property
    def _admin(self) -> AdminClient:
        # It may outlive Kafka when the services stop, and would print that. What fails is raised.
        return AdminClient({**client(self.servers), "log_level": 0})
