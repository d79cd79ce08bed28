"""The lakes of a data directory: those that `LAKE_LAKES` names, each described by a YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml

from lake_assets.engagement.lake import ANY_TURN, CALLS, EMAILS, TURNS, EngagementLake, MetricGroup, StreamName
from lake_assets.engagement.messages import check_message_keys, fields_with_keys
from lake_assets.engagement.tables import ENGAGEMENT_METRICS, open_tables
from lake_assets.errors import ConfigurationError, UsageError, first_line, suggestion
from lake_assets.settings import Settings


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


SHIPPED = Path(__file__).parent / "shipped"
"""The files of the lakes that the package brings. Each has the name of its lake."""

SIMULATED = (*EMAILS.kinds.values(), *CALLS.kinds.values(), *CALLS.outcomes.values())
"""The kinds and outcomes that the simulator sends."""

_NUMBERS = ("max_records", "max_file_bytes", "retain_hours", "ttl_days")
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
    "max_attempts",  # of files of earlier versions; it has no effect
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

    from lake_assets.engagement.turn_order import check_turns  # half a second, which few files need

    check_turns(lake)


EMAIL_EVENT = shipped_lake("email_event")
MEETING_EVENT = shipped_lake("meeting_event")
VOICE_INSIGHT = shipped_lake("voice_insight")
LAKES = (EMAIL_EVENT, MEETING_EVENT, VOICE_INSIGHT)
"""The lakes that the package brings."""

DEMO_PIPELINES = "lake_assets.membership:"


def configured_lakes(settings: Settings) -> tuple[EngagementLake, ...]:
    """Return the lakes that the settings name, in that order.

    Without `LAKE_LAKES` these are the lakes of the package if the pipelines include the demo's, otherwise none.

    Raises:
        ConfigurationError: A lake is unknown, named twice, or described wrongly.
    """
    if settings.lakes is None:
        pipelines = [name.strip() for name in settings.pipelines.split(",")]
        return LAKES if any(name.startswith(DEMO_PIPELINES) for name in pipelines) else ()
    entries = [entry.strip() for entry in settings.lakes.split(",")]
    found: dict[str, EngagementLake] = {}
    for entry in filter(None, entries):
        lake = _lake_of(entry)
        if lake.name in found:
            raise ConfigurationError(
                f"LAKE_LAKES names {lake.name} twice: {entry!r} has the name of an earlier entry.",
                remedy="Remove one of them, or change the `name` in its file while the lake has no tables.",
            )
        found[lake.name] = lake
    return tuple(found.values())


def searched_lakes(settings: Settings) -> tuple[EngagementLake, ...]:
    """Return the lakes whose topics are searched for a person: the configured ones, and all others of the package."""
    found = {lake.name: lake for lake in (*LAKES, *configured_lakes(settings))}
    return tuple(found.values())


def metrics_locations(settings: Settings) -> dict[str, str]:
    """Return lake → address of its metrics table, for readers without Spark."""
    lakes = configured_lakes(settings)
    return {lake.name: open_tables(settings, lake).location(ENGAGEMENT_METRICS) for lake in lakes}


def lake_named(settings: Settings, name: str) -> EngagementLake:
    """Return the configured lake of this name.

    Raises:
        UsageError: There is no such lake.
        ConfigurationError: As for `configured_lakes`.
    """
    by_name = {lake.name: lake for lake in configured_lakes(settings)}
    if name in by_name:
        return by_name[name]
    if name in shipped_names():
        names = ",".join([*by_name, name])
        raise UsageError(f"The engagement lake {name} is not configured.", remedy=f"Set LAKE_LAKES={names}.")
    remedy = suggestion(name, [*by_name]) if by_name else "Set LAKE_LAKES to the YAML file that describes it."
    raise UsageError(f"There is no engagement lake {name!r}.", remedy=remedy)


def _lake_of(entry: str) -> EngagementLake:
    if Path(entry).suffix in (".yaml", ".yml"):
        return read_lake(Path(entry).expanduser())
    if entry in shipped_names():
        return shipped_lake(entry)
    raise ConfigurationError(
        f"LAKE_LAKES names {entry!r}, which is no lake of the package and no YAML file.",
        remedy=f"Name {', '.join(shipped_names())}, or a file that ends in .yaml.",
    )
