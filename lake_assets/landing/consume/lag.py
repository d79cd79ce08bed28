"""How late a zone is: for how long messages that Kafka has were not landed. Pure; what was seen before is passed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

Offsets = Mapping[int, int]
"""Partition → an offset, exclusive."""


@dataclass(frozen=True)
class Mark:
    """What Kafka had at a time. ends: the offset behind the last message."""

    ends: Offsets
    at: datetime


@dataclass(frozen=True)
class Lag:
    """How far behind a zone is. messages: offsets that are not landed. mark: what the next look is to be given.

    age: what was there so long ago at least is not all landed yet; zero if it is.
    """

    messages: int
    age: timedelta
    mark: Mark


def lag(ends: Offsets, landed: Offsets, mark: Mark | None, *, now: datetime) -> Lag:
    """ends: what Kafka has. landed: the offset that the zone lands next; of a partition without one, it has nothing."""
    behind = sum(max(0, end - landed.get(p, 0)) for p, end in ends.items())
    reached = mark is None or all(landed.get(p, 0) >= end for p, end in mark.ends.items())
    if mark is None or reached:
        return Lag(behind, timedelta(0), Mark(dict(ends), now))
    return Lag(behind, now - mark.at, mark)
