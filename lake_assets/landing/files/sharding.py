"""Shards: how the records of a topic are distributed. Sharding is by distinct id, so one id lies in one shard."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lake_assets.errors import ConfigurationError, UsageError
from lake_assets.landing.files.records import Record

TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,160}")
"""The names that Kafka allows, with a shorter length: the topic is part of each file name."""

_SHARD = re.compile(rf"(?P<topic>{TOPIC.pattern})/((?P<number>\d{{1,5}})-of-(?P<of>\d{{1,5}})|dead-letters)")
_HASH_BYTES = 8

DistinctId = Callable[[Record], str | None]
"""Returns the distinct id of a record, or None if it has none, as a heartbeat."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a topic.

    Attributes:
        number: From 0 on.
        of: Number of shards: the sharding specification.
        dead_letters: Whether it holds the messages of the topic that make no row. They have no distinct id and are not
            sharded.
    """

    topic: str
    number: int = 0
    of: int = 1
    dead_letters: bool = False

    def __post_init__(self) -> None:
        if not TOPIC.fullmatch(self.topic) or self.topic in (".", ".."):
            raise ConfigurationError(
                f"{self.topic!r} is not the name of a topic.",
                remedy="Use a-z, 0-9, '.', '_', '-'.",
            )
        if not 0 <= self.number < self.of or (self.dead_letters and self.of > 1):
            raise ConfigurationError(
                f"There is no shard {self.number} of {self.of} of {self.topic}.",
                remedy="Number shards from 0 on.",
            )

    def __str__(self) -> str:
        if self.dead_letters:
            return f"{self.topic}/dead-letters"
        return f"{self.topic}/{self.number}-of-{self.of}"

    def takes(self, distinct_id: str | None) -> bool:
        """Return whether the records of a distinct id belong to this shard; those without one are in shard 0."""
        number = 0 if distinct_id is None else _shard_number(distinct_id, self.of)
        return number == self.number

    def overlaps(self, other: Shard) -> bool:
        """Return whether a record of the topic may belong to both shards, whatever their specifications."""
        if self.dead_letters != other.dead_letters:
            return False
        return (self.number - other.number) % math.gcd(self.of, other.of) == 0


def parse_shard(text: str) -> Shard:
    """Return the shard that a text such as `raw.signups/0-of-4` or `raw.signups/dead-letters` names.

    Raises:
        UsageError: The text does not have this form.
    """
    found = _SHARD.fullmatch(text)
    if not found:
        raise UsageError(f"{text!r} is not a shard.", remedy="Write it as TOPIC/0-of-4 or TOPIC/dead-letters.")
    if found["number"] is None:
        return Shard(found["topic"], dead_letters=True)
    return Shard(found["topic"], int(found["number"]), int(found["of"]))


def shards(topic: str, count: int) -> list[Shard]:
    """Return all shards of a topic under a sharding specification."""
    return [Shard(topic, number, count) for number in range(count)]


def complete(found: Iterable[Shard]) -> bool:
    """Return whether shards of one topic hold all its records together, whatever their specifications."""
    specifications = {(shard.number, shard.of) for shard in found}
    finest = math.lcm(*(of for _, of in specifications))
    covered: set[int] = set()
    for number, of in specifications:
        covered.update(range(number, finest, of))
    return len(covered) == finest


def _shard_number(distinct_id: str, of: int) -> int:
    digest = hashlib.sha256(distinct_id.encode()).digest()
    return int.from_bytes(digest[:_HASH_BYTES]) % of
