"""A lake as a YAML file describes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from lake_assets.engagement.model.configuration.yaml_file import Section, read_yaml
from lake_assets.engagement.model.lake import TURNS, EngagementLake, StreamName
from lake_assets.errors import ConfigurationError

SHIPPED = Path(__file__).parent / "shipped"
"""The files of the lakes that the package brings. Each has the name of its lake."""

_NUMBERS = ("max_records", "max_attempts", "max_file_bytes", "retain_hours", "ttl_days")
_KEYS = ("name", "fields", "topics", "seconds", *_NUMBERS)
_REQUIRED = ("name", "fields")


def read_lake(file: Path) -> EngagementLake:
    """Return the lake that a YAML file describes.

    Raises:
        ConfigurationError: The file cannot be read, or describes no lake; the message names the file and the key.
    """
    found = read_yaml(file)
    found.check_keys(_KEYS, required=_REQUIRED)
    limits: dict[str, Any] = {key: found.number(key) for key in _NUMBERS if key in found.values}
    try:
        return EngagementLake(
            found.text("name"),
            found.texts("fields"),
            topics=_topics(found),
            seconds=_seconds(found),
            **limits,
        )
    except ConfigurationError as error:
        if error.problem.startswith(str(file)):
            raise
        raise ConfigurationError(f"{file}: {error.problem}", remedy=error.remedy) from None


def shipped_names() -> list[str]:
    """Return the names of the lakes that the package brings, sorted."""
    return sorted(file.stem for file in SHIPPED.glob("*.yaml"))


def shipped_lake(name: str) -> EngagementLake:
    """Return a lake that the package brings."""
    return read_lake(SHIPPED / f"{name}.yaml")


def _topics(found: Section) -> dict[StreamName, str]:
    streams: tuple[StreamName, ...] = get_args(StreamName)
    section = found.section("topics")
    section.check_keys(streams)
    return {stream: section.text(stream) for stream in streams if stream in section.values}


def _seconds(found: Section) -> dict[str, int]:
    found.section("seconds").check_keys(TURNS)
    return found.numbers("seconds")
