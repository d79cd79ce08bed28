"""The ids that a dead letter may mention: every part of its text that can be an id. Pure.

A deletion request knows an id by its hash alone, so each part is returned for hashing. A part is what the certificate
of an erasure takes for a word of its own (`base.id_matcher.word`): `a1` is not in `a10`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from lake_assets.landing.files.records import Record

PIECES = 9
"""The most pieces (words, and the signs between them) of an id within a text. `jo@mail.example.org` has seven.

A longer id is found where it is a whole key, a whole header, or a whole JSON text.
"""

_PIECE = re.compile(r"[\w-]+|[^\w-]")


def mentions(record: Record) -> Iterator[str]:
    """Yield all texts of a record's key, value and headers that may be an id; some occur more than once."""
    parts = [record.key, record.value]
    for name, value in record.headers:
        parts.append(name.encode())
        parts.append(value)
    for part in parts:
        if part:
            yield from _of_text(part.decode(errors="replace"))


def stretches(text: str) -> Iterator[str]:
    """Yield every part of a text that is a word of its own and has at most `PIECES` pieces."""
    pieces = list(_PIECE.finditer(text))
    words = [_is_word(piece[0]) for piece in pieces]
    for first, piece in enumerate(pieces):
        if not _is_boundary(words, first, first - 1):
            continue
        for last in range(first, min(first + PIECES, len(pieces))):
            if _is_boundary(words, last, last + 1):
                yield text[piece.start() : pieces[last].end()]


def _is_boundary(words: list[bool], piece: int, neighbour: int) -> bool:
    """Return whether an id may begin or end at a piece: not if it is a sign that touches a word."""
    if words[piece]:
        return True
    return not 0 <= neighbour < len(words) or not words[neighbour]


def _of_text(text: str) -> Iterator[str]:
    """Yield the text and its parts. If it is JSON, do so for each string in it: an id may be escaped there."""
    yield text
    yield from stretches(text)
    for string in _json_strings(text):
        yield string
        if "\\" in text:
            yield from stretches(string)


def _json_strings(text: str) -> Iterator[str]:
    try:
        left: list[Any] = [json.loads(text)]
    except (ValueError, RecursionError):
        return
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value.encode(errors="replace").decode()  # half of a surrogate pair cannot be encoded
        elif isinstance(value, dict):
            left += value.keys()
            left += value.values()
        elif isinstance(value, list):
            left += value


def _is_word(piece: str) -> bool:
    return piece[0] in "-_" or piece[0].isalnum()
