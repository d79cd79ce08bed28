"""The topics in Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from lake_assets.connections.addresses import kafka_address
from lake_assets.engagement.model.lake import STREAMS
from lake_assets.engagement.model.lakes import configured_lakes
from lake_assets.errors import ServiceError
from lake_assets.incremental.engine.engine import Engine
from lake_assets.landing.kafka import Offsets, ends, partitions
from lake_assets.landing.messages import Feed, feeds
from lake_assets.pages.data_path.stages import FAILURES, Fact
from lake_assets.settings import Settings

NO_KAFKA = "No Kafka runs for this data directory, and none is configured: `lake up`, or LAKE_KAFKA."
NO_TOPIC = "No topic exists yet: `lake landing init`."
NO_READER = "Nothing is read from Kafka: no raw table declares a `feed`, and LAKE_LAKES names no lake."
NO_LAKE_TOPIC = "No topic exists yet: `lake engagement init LAKE --org ORG`."


@dataclass(frozen=True)
class _Answer:
    ends: Mapping[str, Offsets] = field(default_factory=dict)
    error: Exception | None = None


@dataclass(frozen=True)
class KafkaState:
    """The topics of landing and of the engagement lakes."""

    settings: Settings
    engine: Engine

    @cached_property
    def servers(self) -> str | None:
        """The bootstrap servers; None if none are known."""
        return kafka_address(self.settings)

    @property
    def feeds(self) -> tuple[Feed, ...]:
        """The raw tables that are landed from Kafka."""
        return feeds(self.engine.pipeline, prefix=self.settings.landing_prefix)

    @property
    def ends(self) -> Mapping[str, Offsets]:
        """Topic → partition → the offset after its last message. Empty if Kafka is not available."""
        return self._answer.ends

    @property
    def no_facts(self) -> str:
        """Why there are no facts, if nothing is wrong."""
        if self.servers is None:
            return NO_KAFKA
        if self.feeds:
            return NO_TOPIC
        return NO_LAKE_TOPIC if configured_lakes(self.settings) else NO_READER

    def facts(self) -> Iterator[Fact]:
        """Yield the state of each topic. Raises the error of Kafka if it did not answer."""
        if self._answer.error:
            raise self._answer.error
        for topic, found in self._answer.ends.items():
            yield Fact(topic, f"{sum(found.values()):,} offsets in {len(found)} partitions")

    @cached_property
    def _answer(self) -> _Answer:
        # Read once for all stages, because a Kafka that does not answer takes long to time out.
        if self.servers is None:
            return _Answer()
        try:
            partitions(self.servers, ())
            return _Answer(_ends(self.servers, self._topics()))
        except FAILURES as error:
            return _Answer(error=error)

    def _topics(self) -> Iterator[str]:
        for feed in self.feeds:
            yield feed.topic
        for lake in configured_lakes(self.settings):
            for name in STREAMS:
                yield lake.topic(name)


def _ends(servers: str, topics: Iterator[str]) -> dict[str, Offsets]:
    found: dict[str, Offsets] = {}
    for topic in topics:
        try:
            found[topic] = ends(servers, topic)
        except ServiceError:  # the topic does not exist
            continue
    return found
