"""An id, and how often it is in what was decoded. Pure; it loads at once, for Spark's executors look with it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping


def word(value: str) -> re.Pattern[str]:
    """What finds the id in a text as a word of its own: `a1` is in `a1 x`, not in `a10`."""
    return re.compile(rf"(?<![\w-]){re.escape(value)}(?![\w-])")


class IdMatcher:
    """An id, as it is looked for."""

    def __init__(self, value: str) -> None:
        self.value, self.bytes = value, value.encode()
        self.word = word(value)

    def in_text(self, text: str) -> int:
        """A text's words, or those of what it says as JSON."""
        found = len(self.word.findall(text)) if self.value in text else 0
        return found or (self._in_json(text) if "\\" in text else 0)

    def in_bytes(self, content: bytes) -> int:
        """As `in_text`; what is no text has neither, and is searched as it is."""
        if self.bytes not in content and b"\\" not in content:
            return 0
        try:
            return self.in_text(content.decode())
        except UnicodeDecodeError:
            return content.count(self.bytes)

    def _in_json(self, text: str) -> int:
        """Letters that are spelled with a backslash, as \\" or \\u and a number, are read as what they are."""
        try:
            return self.in_value(json.loads(text))
        except (ValueError, RecursionError):
            return 0

    def in_value(self, value: object) -> int:
        """How often anything decoded holds it, at whatever depth."""
        if isinstance(value, str):
            return self.in_text(value)
        if isinstance(value, bytes):
            return self.in_bytes(value)
        if isinstance(value, Mapping):
            return sum(self.in_value(k) + self.in_value(v) for k, v in value.items())
        if isinstance(value, Iterable):
            return sum(map(self.in_value, value))
        return 0
