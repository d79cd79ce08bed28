"""A stream's place among the others as properties: `job.coordinator.lock.name`, `.name` and `.predecessor`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lake_assets.coordination.rules import ANY, checked_name
from lake_assets.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

PREFIX = "job.coordinator."
SPARK = "spark."
"""Before the prefix, in a configuration of Spark, which drops other properties."""

LOCK_NAME, NAME, PREDECESSOR = KEYS = (f"{PREFIX}lock.name", f"{PREFIX}name", f"{PREFIX}predecessor")
ANY_WORD = "any"
"""As a predecessor: after any stream, like `ANY`."""

_ENTRY = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)")
"""A line of a properties file: a key, and behind `=`, `:` or white space its value."""

_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


@dataclass(frozen=True)
class TurnProperties:
    """What `KEYS` say. predecessor: names, or `ANY` among them."""

    lock_name: str
    name: str
    predecessor: frozenset[str]

    @classmethod
    def read(cls, source: Mapping[str, str] | str | Path | SparkSession | SparkConf) -> Self:
        """Return what a mapping, a properties file or a configuration of Spark says.

        Raises:
            ConfigurationError: A property is missing, empty, unknown or invalid; the message names it.
        """
        where = f"{source}: " if isinstance(source, str | Path) else ""
        found = _own(_entries(source), where)
        for key in KEYS:
            if not found.get(key):
                state = "empty" if key in found else "missing"
                raise ConfigurationError(
                    f"{where}The property {key} is {state}.", remedy=f"Set {key}: {_MEANING[key]}."
                )
        predecessors = [name.strip() for name in found[PREDECESSOR].split(",")]
        names = {LOCK_NAME: [found[LOCK_NAME]], NAME: [found[NAME]], PREDECESSOR: predecessors}
        for key, values in names.items():
            for value in values:
                if key != PREDECESSOR or value not in (ANY, ANY_WORD):
                    _check_name(value, f"{where}The property {key} is {found[key]!r}")
        accepted = frozenset(ANY if name == ANY_WORD else name for name in predecessors)
        return cls(found[LOCK_NAME], found[NAME], accepted)


_MEANING = {
    LOCK_NAME: "the name of what the streams share",
    NAME: "the name of this stream",
    PREDECESSOR: f"the stream after which it may run, several with commas, or `{ANY_WORD}`",
}


def _check_name(name: str, where: str) -> None:
    try:
        checked_name(name)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}, and {error.problem}", remedy=error.remedy) from None


def _own(entries: Iterator[tuple[str, object]], where: str) -> dict[str, str]:
    """Return those of `KEYS` that are given, stripped."""
    found: dict[str, str] = {}
    for given, value in entries:
        key = given.removeprefix(SPARK)
        if not key.startswith(PREFIX):
            continue
        if key not in KEYS:
            raise ConfigurationError(f"{where}The property {given} is unknown.", remedy=f"Name {', '.join(KEYS)}.")
        if not isinstance(value, str):
            raise ConfigurationError(
                f"{where}The property {given} is {value!r}, which is no text.", remedy=f"Write {_MEANING[key]}."
            )
        if found.setdefault(key, value.strip()) != value.strip():
            raise ConfigurationError(
                f"{where}The property {key} is {found[key]!r} and, with or without {SPARK}, {value.strip()!r}.",
                remedy="Remove one of them.",
            )
    return found


def _entries(source: Mapping[str, str] | str | Path | SparkSession | SparkConf) -> Iterator[tuple[str, object]]:
    if isinstance(source, Mapping):
        yield from source.items()
    elif isinstance(source, str | Path):
        yield from _of_file(Path(source))
    else:
        configuration: Any = getattr(source, "conf", source)  # of a session, or a SparkConf
        entries = configuration.getAll
        yield from dict(entries() if callable(entries) else entries).items()


def _of_file(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the entries of a properties file; of a key that is written twice, the last one."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}.", remedy="Name a properties file.") from None
    found: dict[str, str] = {}
    begun = ""
    for written in [*text.splitlines(), ""]:
        line = written.lstrip()
        if not begun and line.startswith(("#", "!")):
            continue
        line = begun + line
        if (len(line) - len(line.rstrip("\\"))) % 2:  # it goes on in the next line
            begun = line[:-1]
            continue
        begun = ""
        key, value = _ENTRY.fullmatch(line).groups()  # type: ignore[union-attr]  # it matches every line
        if key:
            found[_unescaped(key)] = _unescaped(value)
    yield from found.items()


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else _LETTERS.get(found[2], found[2]), text)
