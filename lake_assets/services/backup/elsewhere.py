"""What belongs to a lake and is not in its data directory. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from lake_assets.connections.catalog import safe_address

if TYPE_CHECKING:
    from lake_assets.settings import Settings


def elsewhere(settings: Settings) -> tuple[str, ...]:
    """Return a line for each part of the lake that a backup of the data directory lacks, and how to back it up."""
    return tuple(_servers(settings)) + tuple(_places(settings))


def _servers(settings: Settings) -> Iterator[str]:
    if settings.dagster_uri:
        yield f"Dagster's runs and events: {safe_address(settings.dagster_uri.get_secret_value())} (pg_dump)"
    if settings.zookeeper:
        yield f"Lineage of served tables, turns of engagement lakes: ZooKeeper {settings.zookeeper} (its data folders)"
    if settings.kafka:
        yield f"Messages: Kafka {settings.kafka} (its retention must reach back to the backup)"
    if settings.erasure_key:
        yield "The key of erasures: LAKE_ERASURE_KEY (keep a copy; without it, erased ids are not recognised)"


def _places(settings: Settings) -> Iterator[str]:
    addresses = {
        "Catalog": settings.catalog_address,
        "Manifest of landed files": settings.landing_manifest_address,
        "Files of tables": settings.warehouse_address,
        "Landed files": str(settings.landing_folder),
        "Segments of served tables": str(settings.segments),
    }
    for what, address in addresses.items():
        if not _is_inside(address, settings.home):
            yield f"{what}: {safe_address(address)} ({_means(address)})"


def _is_inside(address: str, home: Path) -> bool:
    parts = urlsplit(address)
    if parts.scheme not in ("", "file") and not parts.scheme.startswith("sqlite"):
        return False
    path = unquote(parts.path)
    file = Path(path[1:] if parts.scheme.startswith("sqlite") else path)
    return file.absolute().is_relative_to(home)


def _means(address: str) -> str:
    scheme = urlsplit(address).scheme
    if scheme.startswith("postgres"):
        return "pg_dump"
    if scheme.startswith("http"):
        return "by the means of its server"
    return "copy it" if scheme in ("", "file") or scheme.startswith("sqlite") else "a copy or versions of the bucket"
