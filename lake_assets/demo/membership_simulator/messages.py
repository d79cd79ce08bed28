"""The rows of a landing as messages for Kafka, as the business would send them, and the heartbeats. Pure.

A message is a JSON object with the row's own columns: ids and prices are text, times are ISO 8601, and columns without
a value are left out. It has no landing columns: the message's timestamp says when it landed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from lake_assets.base.hours import hour_start
from lake_assets.demo.membership_simulator.batches import Landing, microseconds
from lake_assets.demo.message import Message
from lake_assets.membership.raw import RAW

DISTINCT_ID = "account_id"


def messages(landing: Landing, *, prefix: str = "") -> Iterator[Message]:
    """Yield a message for each row of a landing, in the order of `RAW` and of the rows.

    Args:
        landing: The landing.
        prefix: Start of the topics' names; the name of the raw table follows.
    """
    timestamp = microseconds(landing.landed_at) // 1000
    for raw in RAW:
        own_columns = landing.rows[raw.table].select(list(raw.columns))
        for row in own_columns.to_pylist():
            key = (row[DISTINCT_ID] or "").encode()
            yield Message(f"{prefix}{raw.table}", key, _json(row), timestamp)


def heartbeats(landing: Landing, *, prefix: str = "") -> dict[str, datetime]:
    """Return topic → time of the heartbeat that declares complete what the landing declares complete.

    An hour is complete once the heartbeats have reached the next hour. A topic without a complete hour is left out.
    """
    found = {}
    for table, through in landing.complete_through.items():
        if through is not None:
            found[f"{prefix}{table}"] = hour_start(through + 1)
    return found


def _json(row: Mapping[str, Any]) -> bytes:
    present = {name: _plain(value) for name, value in row.items() if value is not None}
    return json.dumps(present, separators=(",", ":")).encode()


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    return value
