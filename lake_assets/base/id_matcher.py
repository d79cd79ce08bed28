"""The search for an id in decoded data. It imports little, because Spark's executors use it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping


def id_pattern(value: str) -> re.Pattern[str]:
    """Return the pattern that finds an id as a whole word: `a1` is in `a1 x`, not in `a10`."""
    return re.compile(rf"(?<![\w-]){re.escape(value)}(?![\w-])")


class IdMatcher:
    """Counts the occurrences of an id."""

    def __init__(self, value: str) -> None:
        self.value = value
        self.bytes = value.encode()
        self.pattern = id_pattern(value)

    def in_text(self, text: str) -> int:
        """Return the occurrences in a text. If there are none, and the text is JSON with escapes, it is decoded."""
        if self.value in text:
            found = len(self.pattern.findall(text))
            if found:
                return found
        return self._in_json(text) if "\\" in text else 0

    def in_bytes(self, content: bytes) -> int:
        """Return the occurrences in an encoded text, or in any other bytes."""
        if self.bytes not in content and b"\\" not in content:
            return 0
        try:
            return self.in_text(content.decode())
        except UnicodeDecodeError:
            return content.count(self.bytes)

    def _in_json(self, text: str) -> int:
        """JSON can escape characters: \\" or \\u and a number."""
        try:
            return self.in_value(json.loads(text))
        except (ValueError, RecursionError):
            return 0

    def in_value(self, value: object) -> int:
        """Return the occurrences in a decoded value, at any depth."""
        if isinstance(value, str):
            return self.in_text(value)
        if isinstance(value, bytes):
            return self.in_bytes(value)
        if isinstance(value, Mapping):
            return self._in_all(value.keys()) + self._in_all(value.values())
        if isinstance(value, Iterable):
            return self._in_all(value)
        return 0

    def _in_all(self, values: Iterable[object]) -> int:
        return sum(self.in_value(value) for value in values)
