"""The names in `LAKE_PIPELINES`. Pure, but for a look whether a folder is there."""

from __future__ import annotations

from pathlib import Path


def pipeline_names(pipelines: str) -> list[str]:
    """Return the names in `LAKE_PIPELINES`, or in another list."""
    return [name.strip() for name in pipelines.split(",")]


def is_folder(name: str) -> bool:
    """Return whether a name in `LAKE_PIPELINES` is a folder, and not module:attribute."""
    return ":" not in name and ("/" in name or Path(name).is_dir())
