"""How the records of a topic are spread over shards: by distinct id, so that all of one id are in one shard."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lake_assets.errors import ConfigurationError, UsageError
from lake_assets.landing.files.records import Record

TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,160}")
"""What Kafka allows, but for the length: a file is named after its topic."""

_SHARD = re.compile(rf"(?P<topic>{TOPIC.pattern})/((?P<number>\d{{1,5}})-of-(?P<of>\d{{1,5}})|dead-letters)")

DistinctId = Callable[[Record], str | None]
"""Whose a record is; None: nobody's, such as a heartbeat."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a topic. number: from 0 on. of: how many there are, the sharding specification.

    dead_letters: instead, the messages of the topic that make no row; those have no distinct id, and are not sharded.
    """

    topic: str
    number: int = 0
    of: int = 1
    dead_letters: bool = False

    def __post_init__(self) -> None:
        if not TOPIC.fullmatch(self.topic) or self.topic in (".", ".."):
            raise ConfigurationError(
                f"{self.topic!r} is not the name of a topic.", remedy="Use a-z, 0-9, '.', '_', '-'."
            )
        if not 0 <= self.number < self.of or (self.dead_letters and self.of > 1):
            raise ConfigurationError(
                f"There is no shard {self.number} of {self.of} of {self.topic}.", remedy="Number shards from 0 on."
            )

    def __str__(self) -> str:
        return f"{self.topic}/dead-letters" if self.dead_letters else f"{self.topic}/{self.number}-of-{self.of}"

    def takes(self, distinct_id: str | None) -> bool:
        """Whether the records of an id belong here; those of nobody are in the first shard."""
        return (0 if distinct_id is None else _place(distinct_id, self.of)) == self.number

    def meets(self, other: Shard) -> bool:
        """Whether a record of the topic may belong to both, under whatever specifications."""
        apart = self.dead_letters != other.dead_letters
        return not apart and (self.number - other.number) % math.gcd(self.of, other.of) == 0


def parse_shard(text: str) -> Shard:
    """The shard that a text such as `raw.signups/0-of-4` or `raw.signups/dead-letters` names. Raises `UsageError`."""
    found = _SHARD.fullmatch(text)
    if not found:
        raise UsageError(f"{text!r} is not a shard.", remedy="Write it as TOPIC/0-of-4 or TOPIC/dead-letters.")
    if found["number"] is None:
        return Shard(found["topic"], dead_letters=True)
    return Shard(found["topic"], int(found["number"]), int(found["of"]))


def shards(topic: str, count: int) -> list[Shard]:
    """All shards of a topic under a specification."""
    return [Shard(topic, number, count) for number in range(count)]


def complete(found: Iterable[Shard]) -> bool:
    """Whether shards of one topic, under whatever specifications, take every record between them."""
    several = {(shard.number, shard.of) for shard in found}
    whole = math.lcm(*(of for _, of in several))
    return {place for number, of in several for place in range(number, whole, of)} == set(range(whole))


def _place(distinct_id: str, of: int) -> int:
    return int.from_bytes(hashlib.sha256(distinct_id.encode()).digest()[:8]) % of
