"""Reading a YAML file as a mapping of checked values. Each error names the file, the key and the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lake_assets.errors import ConfigurationError, first_line, suggestion


@dataclass(frozen=True)
class Section:
    """A mapping of a YAML file.

    Attributes:
        file: The file, for messages.
        path: The keys that lead to the mapping, with a dot after each; empty for the whole file.
        values: Its keys and values.
    """

    file: str
    path: str
    values: Mapping[str, Any]

    def check_keys(self, known: tuple[str, ...], *, required: tuple[str, ...] = ()) -> None:
        """Check that there is no unknown key, and that no required one is missing. Raises `ConfigurationError`."""
        for key in self.values:
            if key not in known:
                raise self.wrong(key, "is an unknown key", suggestion(str(key), known))
        for key in required:
            if key not in self.values:
                raise self.wrong(key, "is missing", f"Add the key {key}.")

    def text(self, key: str) -> str:
        """Return a text. Raises `ConfigurationError`."""
        found = self.values[key]
        if not isinstance(found, str):
            raise self.wrong(key, f"is {found!r}, which is no text", 'Write a text; put it in quotes: "yes", "1".')
        return found

    def number(self, key: str) -> int:
        """Return a whole number of 1 or more. Raises `ConfigurationError`."""
        found = self.values[key]
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise self.wrong(key, f"is {found!r}", "Write a whole number of 1 or more.")
        return found

    def flag(self, key: str) -> bool:
        """Return true or false. Raises `ConfigurationError`."""
        found = self.values[key]
        if not isinstance(found, bool):
            raise self.wrong(key, f"is {found!r}", "Write true or false.")
        return found

    def section(self, key: str) -> Section:
        """Return a mapping; empty if the key is missing. Raises `ConfigurationError`."""
        found = self.values.get(key, {})
        path = f"{self.path}{key}"
        if not isinstance(found, dict):
            raise self.wrong(key, f"is {found!r}, which has no keys", "Write one line `key: value` for each, indented.")
        for name in found:
            if not isinstance(name, str):
                raise self.wrong(key, f"has the key {name!r}, which is no text", f'Put it in quotes: "{name}".')
        return Section(self.file, f"{path}.", found)

    def texts(self, key: str) -> dict[str, str]:
        """Return a mapping of texts; empty if the key is missing. Raises `ConfigurationError`."""
        found = self.section(key)
        return {name: found.text(name) for name in found.values}

    def numbers(self, key: str) -> dict[str, int]:
        """Return a mapping of whole numbers; empty if the key is missing. Raises `ConfigurationError`."""
        found = self.section(key)
        return {name: found.number(name) for name in found.values}

    def names(self, key: str) -> tuple[str, ...]:
        """Return a list of texts. Raises `ConfigurationError`."""
        found = self.values[key]
        if not isinstance(found, list) or not found or not all(isinstance(name, str) for name in found):
            raise self.wrong(key, f"is {found!r}, which is no list of names", f"Write a list: `{key}: [who_id, …]`.")
        return tuple(found)

    def choices(self, key: str, known: tuple[str, ...]) -> tuple[str, ...]:
        """Return a text or a list of texts, each a known one. Raises `ConfigurationError`."""
        found = self.values[key]
        chosen = found if isinstance(found, list) else [found]
        if not chosen:
            raise self.wrong(key, "is empty", f"Name one or more of: {', '.join(known)}.")
        for value in chosen:
            if value not in known:
                raise self.wrong(key, f"names {value!r}", suggestion(str(value), known))
        return tuple(chosen)

    def wrong(self, key: str, why: str, remedy: str) -> ConfigurationError:
        """Return the error about a key."""
        return ConfigurationError(f"{self.file}: {self.path}{key} {why}.", remedy=remedy)


class _UniqueKeys(yaml.SafeLoader):  # type: ignore[misc]
    """Refuses a key that is written twice, of which YAML would use the last one in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key_node.value!r} is written twice", key_node.start_mark
                )
            seen.add(key_node.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def read_yaml(file: Path) -> Section:
    """Return the content of a YAML file.

    Raises:
        ConfigurationError: There is no such file, or it is no YAML with keys at its top.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{file} cannot be read: {error}.", remedy="Name an existing YAML file by its absolute path."
        ) from None
    try:
        found = yaml.load(text, Loader=_UniqueKeys)
    except yaml.YAMLError as error:
        raise ConfigurationError(
            f"{file}{_line(error)} is no valid YAML: {_reason(error)}.",
            remedy="Correct the line, or the one before it.",
        ) from None
    if not isinstance(found, dict):
        raise ConfigurationError(f"{file} has no keys.", remedy="Write one line `key: value` for each key.")
    return Section(str(file), "", found)


def _line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return "" if mark is None else f", line {mark.line + 1},"


def _reason(error: yaml.YAMLError) -> str:
    return getattr(error, "problem", None) or first_line(str(error))
