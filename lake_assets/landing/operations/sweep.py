"""Sweep: removing files that were replaced some time ago."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from lake_assets.base.failpoints import reach
from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.zone_folder import Zone
from lake_assets.landing.manifest.store import Manifest


def sweep(
    manifest: Manifest,
    zone: Zone,
    *,
    retired_before: datetime,
    topic: str | None = None,
    keep: Callable[[DataFile], bool] = lambda _: False,
) -> list[str]:
    """Remove the files of a zone that were replaced before a time, when no reader has them open any more.

    The files are removed before their entries, so another call finishes a sweep that died.

    Args:
        manifest: The manifest.
        zone: The zone.
        retired_before: Exclusive.
        topic: Of this topic; None means all.
        keep: Returns whether a file must stay.

    Returns:
        The names of the removed files.
    """
    names = []
    for entry in manifest.entries(zone.name, topic, stages=("retired",)):
        is_old = entry.retired_at is not None and entry.retired_at < retired_before
        if is_old and not keep(entry.file):
            names.append(entry.file.name)
    for name in names:
        zone.drop(name)
    reach("landing-swept")
    manifest.forget(zone.name, names)
    return names
