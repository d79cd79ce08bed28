"""The data directory of a demo. A demo runs in its own directory: it refuses another one's and clears its last one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lake_assets.connections.addresses import make_private
from lake_assets.connections.catalog import TABLES_FILE
from lake_assets.errors import UsageError
from lake_assets.services import lifecycle
from lake_assets.settings import settings

if TYPE_CHECKING:
    from lake_assets.settings import Settings

START, END = "2026-01-01-00:00", "2026-01-02-00:00"
MARKER = "demo"
"""A file that a demo leaves in its data directory."""

OTHERS_DATA = ("catalog_uri", "warehouse", "kafka", "landing", "landing_manifest_uri", "landing_prefix")
"""Settings that would let a demo write to tables, topics or files that it did not make."""

PATIENCE_SECONDS = 240
"""Time limit of a scene. After it, the demo fails and names the logs."""

PATIENCE_ON_SERVERS = 900
"""The same on servers that the settings name: each job of a cluster takes longer."""

CLEARED_FOLDERS = (
    "warehouse",
    "dagster",
    "logs",
    "spark-warehouse",
    "kafka",
    "zookeeper",
    "serving",
    "landing",
)


def prepare_home(*, on_servers: bool = False, fixed: Mapping[str, str] | None = None) -> Settings:
    """Clear the data directory of a demo, except jars and settings, and return its settings.

    Args:
        on_servers: Whether the settings name a catalog, topics and folders, all of them made for this demo.
        fixed: `LAKE_*` settings of the demo, in addition to those of all demos.

    Raises:
        UsageError: The settings name data of others, or the directory holds tables that no demo made.
    """
    found = settings()
    if not on_servers:
        _check_settings(found)
    if (found.home / MARKER).exists():
        lifecycle.down(found, report=lambda line: None)
        _clear(found)
    elif (found.home / "catalog.db").exists():
        raise UsageError(
            f"{found.home} holds tables that the demo did not make.",
            remedy="Give the demo its own folder: LAKE_HOME=.lake-demo make demo",
        )
    make_private(found.home)
    (found.home / MARKER).touch()
    _write_settings(found, PATIENCE_ON_SERVERS if on_servers else PATIENCE_SECONDS, fixed or {})
    settings.cache_clear()
    return settings()


def _check_settings(found: Settings) -> None:
    named = [f"LAKE_{name.upper()}" for name in OTHERS_DATA if getattr(found, name)]
    if named:
        raise UsageError(
            f"The demo fills its own catalog, topics and folders, but these settings name others: {', '.join(named)}.",
            remedy="Unset them for `make demo`.",
        )


def _write_settings(found: Settings, patience: int, more: Mapping[str, str]) -> None:
    """Write the settings of the demo into the directory. They replace those of the environment."""
    fixed = {
        "LAKE_START": START,
        "LAKE_END": END,
        "LAKE_LAKES": "",  # Dagster shows what is declared, and a demo without engagement lakes uses none
        # The scenes expect exact sessions, even if the machine is so busy that a run takes minutes.
        "LAKE_SETTLE_SECONDS": str(patience),
        **more,
    }
    lines = [f"{name}={value}\n" for name, value in fixed.items()]
    file = found.home / "lake.env"
    file.touch(mode=0o600)
    file.write_text("".join(lines))
    for name in fixed:
        os.environ.pop(name, None)


def _clear(found: Settings) -> None:
    for name in CLEARED_FOLDERS:
        shutil.rmtree(found.home / name, ignore_errors=True)
    for pattern in ("catalog.db*", "landing.db*", "*.html", TABLES_FILE):
        for file in found.home.glob(pattern):
            file.unlink()
