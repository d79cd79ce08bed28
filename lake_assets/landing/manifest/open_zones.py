"""The zones of a home, opened with the manifest that they share."""

from __future__ import annotations

from collections.abc import Iterable

from lake_assets.errors import UsageError
from lake_assets.landing.files.zone_folder import Zone
from lake_assets.landing.manifest.store import has_landed, open_manifest
from lake_assets.landing.manifest.zone_writer import ZoneWriter
from lake_assets.settings import Settings

ZONES = ("a", "b")


def open_zones(settings: Settings, names: Iterable[str] = ()) -> list[ZoneWriter]:
    """Open zones of a home with one manifest.

    Args:
        settings: Of the home.
        names: The zones to open; empty means all.

    Raises:
        UsageError: There is no zone of a name.
        ServiceError: The manifest cannot be opened.
    """
    wanted = tuple(names) or ZONES
    for name in wanted:
        if name not in ZONES:
            raise no_such_zone(name)
    manifest = open_manifest(settings)
    return [ZoneWriter(Zone(name, settings.landing_folder / name), manifest) for name in wanted]


def landed_without_manifest(settings: Settings) -> int:
    """Return how many landed files the folders of zones have although the manifest does not exist."""
    if has_landed(settings):
        return 0
    return sum(len(Zone(name, settings.landing_folder / name).landed_names()) for name in ZONES)


def other_zones(settings: Settings, name: str) -> list[Zone]:
    """Return the folders of all zones but one."""
    return [Zone(other, settings.landing_folder / other) for other in ZONES if other != name]


def no_such_zone(name: str) -> UsageError:
    """Return the error for a zone that does not exist."""
    return UsageError(f"There is no zone {name!r}.", remedy=f"Name one of: {', '.join(ZONES)}.")
