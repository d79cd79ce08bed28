"""The search for ids in decoded data. It imports little, because Spark's executors use it.

In a column of ids, a value is an id or it is not: `u7 ` and `u70` are other ids than `u7`. In any other text, an id
counts as a word of its own: `a1` is in `a1 x`, not in `a10`. There, an id that is a number is not looked for: nobody
could tell it from any other number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from typing import Any

_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


_IN_WORD = re.compile(r"[\w-]")


class Words:
    """Finds ids as whole words: `a1` is in `a1 x`, not in `a10`. The time it takes does not depend on their number."""

    def __init__(self, *values: str) -> None:
        self._values = frozenset(values)
        self._lengths = sorted(set(map(len, self._values)), reverse=True)
        beginnings = "".join(re.escape(each) for each in sorted({value[:1] for value in self._values}))
        self._begin = re.compile(rf"(?<![\w-])(?=[{beginnings}])") if beginnings else None

    def count(self, text: str) -> int:
        """Return how often ids occur in a text; of ids that overlap, the first counts, and the longest there."""
        found = after = 0
        for begin in self._begin.finditer(text) if self._begin else ():
            place = begin.start()
            for length in self._lengths if place >= after else ():
                end = place + length
                if text[place:end] in self._values and not _IN_WORD.match(text, end):
                    found, after = found + 1, end
                    break
        return found


def id_text(value: object) -> str:
    """Return an id as text, whatever the type of its column is: the decimal 7.00 is `7`."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return format(value.normalize(), "f") if isinstance(value, Decimal) else str(value)


class _Pairs(list[tuple[str, Any]]):
    """The names and values of an object of JSON, which may repeat a name."""


class IdMatcher:
    """Counts the occurrences of ids.

    Args:
        values: The ids.
        columns: Names of columns and fields that hold ids. Without any, ids count as words everywhere.
    """

    def __init__(self, *values: str, columns: Collection[str] = ()) -> None:
        self.values = frozenset(values)
        self.columns = frozenset(columns)
        self.words = frozenset(value for value in values if not columns or not _NUMBER.fullmatch(value))
        """The ids that are also looked for outside of columns of ids."""
        self._words, self._any = Words(*self.words), Words(*self.values)
        self._bytes = [value.encode() for value in self.words]
        self._shortest = min(map(len, self._bytes), default=0)

    def is_id(self, value: object) -> bool:
        """Return whether the value of a column of ids is one of the ids."""
        return value is not None and id_text(value) in self.values

    def in_text(self, text: str) -> int:
        """Return the occurrences in a text. JSON is decoded, as its fields have names and it may escape characters."""
        if "\\" not in text and not self._any.count(text):
            return 0
        document = _parse(text)
        if isinstance(document, list):
            return self.in_value(document)
        if document is None and "\n" in text and text.startswith("{"):  # a document a line
            return sum(self.in_text(line) for line in text.split("\n"))
        found = document if isinstance(document, str) else text
        return self._words.count(found)

    def in_bytes(self, content: bytes) -> int:
        """Return the occurrences in an encoded text, or in any other bytes."""
        try:
            return self.in_text(content.decode())
        except UnicodeDecodeError:
            return sum(content.count(value) for value in self._bytes) if len(content) >= self._shortest else 0

    def in_value(self, value: object, column: str = "") -> int:
        """Return the occurrences in a decoded value, at any depth. column: the name of its column or field."""
        if isinstance(value, (Mapping, _Pairs)):
            pairs = value.items() if isinstance(value, Mapping) else value
            return sum(self.in_value(name) + self.in_value(inner, str(name)) for name, inner in pairs)
        if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
            if column in self.columns:
                return int(self.is_id(value))
            if isinstance(value, str):
                return self.in_text(value)
            return self.in_bytes(value) if isinstance(value, bytes) else 0
        return sum(self.in_value(each, column) for each in value)

    def hidden(self, text: str) -> str:
        """Return a text without the ids, for messages."""
        for value in sorted(self.values, key=len, reverse=True):
            text = text.replace(value, "(id)")
        return text


def _parse(text: str) -> object:
    """Return a JSON text as lists and values, numbers as they are spelled; None if it is no JSON."""
    try:
        return json.loads(text, object_pairs_hook=_Pairs, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
