"""The message that both simulators make. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Message(NamedTuple):
    """A message of a topic.

    Attributes:
        topic: The topic.
        key: Messages with the same key stay in order: the org, or the account.
        value: The JSON object.
        timestamp: Milliseconds since 1970-01-01 UTC.
    """

    topic: str
    key: bytes
    value: bytes
    timestamp: int
