"""What an engagement lake is: a configuration. Every kind of activity is kept by the same code.

Here belongs what can be said without looking at a table or a topic. Nothing here reads, writes or imports Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration import IDENTIFIER

StreamName = Literal["ingestion", "mutation", "retention"]
STREAMS: tuple[StreamName, ...] = get_args(StreamName)

FIELD_TYPES = frozenset({"string", "int", "bigint", "double", "boolean", "date", "timestamp"})
"""Types of Spark SQL that a field of the `engagement` struct may have: those that a JSON scalar can be cast to."""

TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True)
class EngagementLake:
    """A lake of one kind of activity.

    name: also the folder of its tables, and the first word of its transaction ids: it never changes.
    fields: what the `engagement` struct of a row holds: name → type, of `FIELD_TYPES`.
    topics: stream → Kafka topic; by default `<name>.<stream>`.
    max_records: so many messages at most make a batch.
    max_attempts: in so many batches a mutation request is tried that meets no row; then it is dead.
    max_file_bytes: so large maintenance makes the files of `engagement`, at most.
    """

    name: str
    fields: Mapping[str, str]
    topics: Mapping[StreamName, str] = field(default_factory=dict)
    max_records: int = 1_000_000
    max_attempts: int = 24
    max_file_bytes: int = 128 * 1024 * 1024

    def __post_init__(self) -> None:
        _require(IDENTIFIER, self.name, "The name of an engagement lake")
        for name, kind in self.fields.items():
            _require(IDENTIFIER, name, f"A field of {self.name}")
            if kind not in FIELD_TYPES:
                raise ConfigurationError(
                    f"The field {name} of {self.name} has the type {kind!r}.",
                    remedy=f"Use one of {', '.join(sorted(FIELD_TYPES))}.",
                )
        for stream in STREAMS:
            _require(TOPIC, self.topic(stream), f"The {stream} topic of {self.name}")
        if not self.fields:
            raise ConfigurationError(f"{self.name} has no fields.", remedy="Name one at least.")
        for limit in ("max_records", "max_attempts", "max_file_bytes"):
            if getattr(self, limit) < 1:
                raise ConfigurationError(
                    f"{limit} of {self.name} is {getattr(self, limit)}.", remedy="Set it to 1 or more."
                )

    def topic(self, stream: StreamName) -> str:
        """The Kafka topic that a stream reads."""
        return self.topics.get(stream, self.app_name(stream))

    @property
    def lock(self) -> str:
        """What the coordinator calls the resource that the streams share."""
        return f"engagement.{self.name}"

    def app_name(self, stream: StreamName) -> str:
        """What a stream is called in notifications, in the checkpoint and by the coordinator."""
        return f"{self.name}.{stream}"

    def app_id(self, stream: StreamName, process: str) -> str:
        """The transaction id (`txnAppId`) of what a process of a stream writes, in whichever table."""
        return f"{self.app_name(stream)}.{process}"


def _require(pattern: re.Pattern[str], value: str, what: str) -> None:
    if not pattern.fullmatch(value):
        raise ConfigurationError(f"{what} is {value!r}.", remedy=f"Use a name that matches {pattern.pattern}.")
