"""A lake as a YAML file describes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from lake_assets.engagement.model.configuration.metric_groups import CALLS, EMAILS, MetricGroup
from lake_assets.engagement.model.configuration.yaml_file import Section, read_yaml
from lake_assets.engagement.model.lake import ANY_TURN, TURNS, EngagementLake, StreamName
from lake_assets.engagement.model.messages import check_message_keys, fields_with_keys
from lake_assets.errors import ConfigurationError

SHIPPED = Path(__file__).parent / "shipped"
"""The files of the lakes that the package brings. Each has the name of its lake."""

SIMULATED = (*EMAILS.kinds.values(), *CALLS.kinds.values(), *CALLS.outcomes.values())
"""The kinds and outcomes that the simulator sends."""

_NUMBERS = ("max_records", "max_attempts", "max_file_bytes", "retain_hours", "ttl_days")
KEYS = (
    "name",
    "fields",
    "metrics",
    "topics",
    "seconds",
    "turns",
    "message_keys",
    "simulated_as",
    "continuous",
    "ids",
    *_NUMBERS,
)
_REQUIRED = ("name", "fields", "metrics")
_GROUP_KEYS = ("kinds", "outcomes", "rates", "whole")


def read_lake(file: Path) -> EngagementLake:
    """Return the lake that a YAML file describes.

    Raises:
        ConfigurationError: The file cannot be read, or describes no lake; the message names the file and the key.
    """
    found = read_yaml(file)
    found.check_keys(KEYS, required=_REQUIRED)
    limits: dict[str, Any] = {key: found.number(key) for key in _NUMBERS if key in found.values}
    if "ids" in found.values:
        limits["ids"] = found.names("ids")
    try:
        lake = EngagementLake(
            found.text("name"),
            found.texts("fields"),
            metrics=_metrics(found),
            topics=_topics(found),
            simulated_as=_simulated_as(found),
            seconds=_seconds(found),
            turns=_turns(found),
            message_keys=found.texts("message_keys"),
            continuous="continuous" in found.values and found.flag("continuous"),
            **limits,
        )
        _check_message_keys(found, lake)
        if lake.turns:
            _check_turns(lake)
        return lake
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


def _metrics(found: Section) -> tuple[MetricGroup, ...]:
    section = found.section("metrics")
    if not section.values:
        raise found.wrong("metrics", "is empty", "Name at least one group with its kinds.")
    groups = []
    for name in section.values:
        group = section.section(name)
        group.check_keys(_GROUP_KEYS, required=("kinds",))
        whole = group.text("whole") if "whole" in group.values else None
        groups.append(
            MetricGroup(name, group.texts("kinds"), group.texts("outcomes"), group.texts("rates"), whole=whole)
        )
    return tuple(groups)


def _simulated_as(found: Section) -> dict[str, str]:
    found.section("simulated_as").check_keys(SIMULATED)
    return found.texts("simulated_as")


def _topics(found: Section) -> dict[StreamName, str]:
    streams: tuple[StreamName, ...] = get_args(StreamName)
    section = found.section("topics")
    section.check_keys(streams)
    return {stream: section.text(stream) for stream in streams if stream in section.values}


def _seconds(found: Section) -> dict[str, int]:
    found.section("seconds").check_keys(TURNS)
    return found.numbers("seconds")


def _turns(found: Section) -> dict[str, tuple[str, ...]]:
    section = found.section("turns")
    section.check_keys(TURNS)
    return {name: section.choices(name, (*TURNS, ANY_TURN)) for name in section.values}


def _check_message_keys(found: Section, lake: EngagementLake) -> None:
    found.section("message_keys").check_keys(fields_with_keys(lake))
    check_message_keys(lake)


def _check_turns(lake: EngagementLake) -> None:
    from lake_assets.engagement.model.turn_order import check_turns  # half a second, which few files need

    check_turns(lake)
