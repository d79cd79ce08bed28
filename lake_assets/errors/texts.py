"""An error as two lines, and the parts of another program's error that these are made of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MAX_CHARACTERS = 300
"""Longest part of another program's message that is shown; the log has all of it."""

SHOWN_NAMES = 3
"""Names of a collection that are shown; of the others, their number."""


@dataclass(frozen=True)
class ErrorText:
    """What a person reads of an error.

    Attributes:
        problem: What is wrong and where, as one sentence.
        remedy: What to do, as a sentence or a command.
    """

    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem}\n  → {self.remedy}"


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that one, and so on."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)


def text_of(error: BaseException) -> str:
    """Return the message of an error. An error of Java asks the JVM for its message, which may be gone: then the class
    of what that raised, and its message.
    """
    try:
        return str(error)
    except Exception as unreadable:  # of py4j, pyspark, or whatever the error asks
        return f"its text cannot be read: {type(unreadable).__module__}.{type(unreadable).__qualname__}: {unreadable!r}"


def chain_text(error: BaseException) -> str:
    """Return the classes and messages of an error and its causes, the error first."""
    lines = []
    for found in chain(error):
        kind = type(found)
        lines.append(f"{kind.__module__}.{kind.__qualname__}: {text_of(found)}")
    return "\n".join(lines)


def first_line(text: str) -> str:
    """Return the first line of a text that is not empty, without the full stop, cut to `MAX_CHARACTERS`."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if len(line) > MAX_CHARACTERS:
        return f"{line[:MAX_CHARACTERS]}…"
    return line.removesuffix(".")


def named(names: Iterable[str]) -> str:
    """Return the first names, and the number of further ones."""
    found = sorted(names)
    shown = ", ".join(found[:SHOWN_NAMES])
    more = len(found) - SHOWN_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
