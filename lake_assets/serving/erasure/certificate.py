"""Segments for the certificate of an erasure: the folder of all served tables, and drafts of pushes that died."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyiceberg.io import load_file_io

from lake_assets.incremental.erasure.certificate import Folder, Reference, Told
from lake_assets.serving.lineage.registry import States
from lake_assets.serving.store.drafts import FOLDER
from lake_assets.settings import Settings


def segment_folders(settings: Settings, states: States | None) -> Iterator[Folder]:
    """The folder of segments, and those of drafts. states: of the tables stored here; None: not known."""
    root = settings.segments.expanduser().absolute()
    yield Folder(str(root), lambda path: _told(Path(path).relative_to(root), states), load_file_io({}, str(root)))
    for drafts in sorted(Path(tempfile.gettempdir()).absolute().glob(f"{FOLDER}*")):
        yield Folder(str(drafts), lambda _: Told("a push", "draft", "nothing"), load_file_io({}, str(drafts)))


def _told(inside: Path, states: States | None) -> Told:
    """inside: of the folder of all tables: table and segment."""
    if len(inside.parts) == 1:
        return Told(None, "other", "nothing")
    return Told(f"{inside.parts[0]}, served", "segment", _reference(inside.parts[0], inside.stem, states))


def _reference(table: str, segment: str, states: States | None) -> Reference:
    """Readers see it, or it is kept to go back to, or it is no segment."""
    if states is None:
        return "not known"
    if table not in states or segment not in states[table].segments:
        return "nothing"
    return "main" if segment in states[table].routed else "history"
