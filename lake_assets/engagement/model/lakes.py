"""The lakes of a data directory: those that `LAKE_LAKES` names, each described by a YAML file."""

from __future__ import annotations

from pathlib import Path

from lake_assets.engagement.model.configuration.lake_file import read_lake, shipped_lake, shipped_names
from lake_assets.engagement.model.lake import EngagementLake
from lake_assets.engagement.model.table_schemas import ENGAGEMENT_METRICS
from lake_assets.engagement.model.tables import open_tables
from lake_assets.errors import ConfigurationError, UsageError, suggestion
from lake_assets.settings import Settings

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
