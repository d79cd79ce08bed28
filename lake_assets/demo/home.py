"""The home that a demo works in, alone: that of anybody else is refused, its own from last time is cleared."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from lake_assets.errors import UsageError
from lake_assets.services import lifecycle
from lake_assets.settings import settings

if TYPE_CHECKING:
    from lake_assets.settings import Settings

START, END = "2026-01-01-00:00", "2026-01-02-00:00"
MARKER = "demo"
OWN = ("catalog_uri", "warehouse", "kafka", "landing", "landing_manifest_uri", "landing_prefix")
"""Settings that would let it work in somebody else's tables, topics or files."""

PATIENCE_SECONDS = 240
"""How long a scene may take before the demo gives up and points at the logs."""


def prepare_home() -> Settings:
    """A home that is empty but for jars and settings; `UsageError` when it holds somebody's tables."""
    found = settings()
    if named := [f"LAKE_{name.upper()}" for name in OWN if getattr(found, name)]:
        raise UsageError(
            f"The demo fills a catalog, topics and folders of its own, but others are named: {', '.join(named)}.",
            remedy="Unset these for `make demo`.",
        )
    mine = (found.home / MARKER).exists()
    if not mine and (found.home / "catalog.db").exists():
        raise UsageError(
            f"{found.home} holds tables that the demo did not make.",
            remedy="Give it a folder of its own: LAKE_HOME=.lake-demo make demo",
        )
    if mine:
        lifecycle.down(found, report=lambda line: None)
        _clear(found)
    found.home.mkdir(parents=True, exist_ok=True)
    (found.home / MARKER).touch()
    # The scenes promise exact sessions, also on a machine so busy that a run takes minutes: let targets wait as long.
    fixed = {"LAKE_START": START, "LAKE_END": END, "LAKE_SETTLE_SECONDS": str(PATIENCE_SECONDS)}
    (found.home / "lake.env").write_text("".join(f"{name}={value}\n" for name, value in fixed.items()))
    for name in fixed:
        os.environ.pop(name, None)
    settings.cache_clear()
    return settings()


def _clear(found: Settings) -> None:
    for name in ("warehouse", "dagster", "logs", "spark-warehouse", "kafka", "zookeeper", "serving", "landing"):
        shutil.rmtree(found.home / name, ignore_errors=True)
    for file in (*found.home.glob("catalog.db*"), *found.home.glob("landing.db*")):
        file.unlink()
