"""Whom a dead letter may be of: every stretch of it that can be an id. Pure.

A deletion request knows an id by its hash alone, so each stretch is offered to be hashed. What is one is what the
certificate of an erasure takes for a word of its own (`incremental.certificate.word`): `a1` is not in `a10`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from lake_assets.landing.files.records import Record

PIECES = 9
"""What an id within a text has at the most: words, and the signs between them. `jo@mail.example.org` has seven.

A longer one is found where it is a whole key, a whole header, or a whole text of JSON.
"""

_PIECE = re.compile(r"[\w-]+|[^\w-]")


def mentions(record: Record) -> Iterator[str]:
    """All that may be an id in a record's key, value and headers; some of it several times."""
    parts = [record.key, record.value, *(part for name, value in record.headers for part in (name.encode(), value))]
    for part in parts:
        if part:
            yield from _in_part(part.decode(errors="replace"))


def stretches(text: str) -> Iterator[str]:
    """What stands in a text as a word of its own, of `PIECES` pieces at the most."""
    found = list(_PIECE.finditer(text))
    words = [_is_word(match[0]) for match in found]
    begins = [words[i] or not words[i - 1] or not i for i in range(len(found))]
    ends = [words[i] or i + 1 == len(found) or not words[i + 1] for i in range(len(found))]
    for first, match in enumerate(found):
        if begins[first]:
            last = range(first, min(first + PIECES, len(found)))
            yield from (text[match.start() : found[i].end()] for i in last if ends[i])


def _in_part(text: str) -> Iterator[str]:
    """The text, what stands in it, and the same of what it says if it is JSON: there an id may be spelled otherwise."""
    yield text
    yield from stretches(text)
    for said in _texts_of(text):
        yield said
        if "\\" in text:
            yield from stretches(said)


def _texts_of(text: str) -> Iterator[str]:
    try:
        left: list[Any] = [json.loads(text)]
    except (ValueError, RecursionError):
        return
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value.encode(errors="replace").decode()  # half of a surrogate pair is no text
        elif isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, list):
            left += value


def _is_word(piece: str) -> bool:
    return piece[0] in "-_" or piece[0].isalnum()
