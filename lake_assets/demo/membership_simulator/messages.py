"""The rows of a landing as messages to Kafka, as the business itself would send them; and its heartbeats. Pure.

A message is a JSON object of the row's own columns: ids and prices as text, times in ISO 8601. What a row gets by
landing is not in it: when it landed is the message's timestamp. Columns without a value are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from lake_assets.base.hours import hour_start
from lake_assets.demo.membership_simulator.batches import Landing, microseconds
from lake_assets.membership.raw import RAW

DISTINCT_ID = "account_id"


class Message(NamedTuple):
    """A message of a topic. key: the account, so that its messages stay in order. timestamp: ms since 1970."""

    topic: str
    key: bytes
    value: bytes
    timestamp: int


def messages(landing: Landing, *, prefix: str = "") -> Iterator[Message]:
    """A message for each row, in the order of `RAW` and of the rows, in the topic named prefix and raw table."""
    timestamp = microseconds(landing.landed_at) // 1000
    for raw in RAW:
        for row in landing.rows[raw.table].select(list(raw.columns)).to_pylist():
            key = (row[DISTINCT_ID] or "").encode()
            yield Message(f"{prefix}{raw.table}", key, _json(row), timestamp)


def heartbeats(landing: Landing, *, prefix: str = "") -> dict[str, datetime]:
    """Topic → the time of the heartbeat that tells what is declared complete with a landing, where anything is.

    An hour is complete once the heartbeats have reached the next one.
    """
    through = landing.complete_through
    return {f"{prefix}{table}": hour_start(hour + 1) for table, hour in through.items() if hour is not None}


def _json(row: Mapping[str, Any]) -> bytes:
    present = {name: _plain(value) for name, value in row.items() if value is not None}
    return json.dumps(present, separators=(",", ":")).encode()


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value
