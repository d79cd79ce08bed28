"""The lag of a zone: how long messages have been in Kafka without being landed. Pure; the caller keeps the state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

Offsets = Mapping[int, int]
"""Partition → an offset, exclusive."""


@dataclass(frozen=True)
class Mark:
    """The ends of Kafka's partitions at a time.

    Attributes:
        ends: The offset after the last message.
        at: When they were read.
    """

    ends: Offsets
    at: datetime


@dataclass(frozen=True)
class Lag:
    """How far a zone is behind.

    Attributes:
        messages: Number of offsets that are not landed.
        age: At least one message has been in Kafka for this long, or longer, and is not landed; zero if all are.
        mark: Pass it to the next call of `lag`.
    """

    messages: int
    age: timedelta
    mark: Mark


def lag(ends: Offsets, landed: Offsets, mark: Mark | None, *, now: datetime) -> Lag:
    """Return the lag of a zone.

    Args:
        ends: Kafka's ends now.
        landed: The offset that the zone lands next; a missing partition has no landed file.
        mark: From the last call; None for the first one.
        now: The present time.
    """
    messages = 0
    for partition, end in ends.items():
        messages += max(0, end - landed.get(partition, 0))
    if mark is None or _has_reached(landed, mark.ends):
        return Lag(messages, timedelta(0), Mark(dict(ends), now))
    return Lag(messages, now - mark.at, mark)


def _has_reached(landed: Offsets, ends: Offsets) -> bool:
    return all(landed.get(partition, 0) >= end for partition, end in ends.items())
