"""Landed files for the certificate of an erasure: both zones' folders, with drafts, quarantine and what is nobody's."""

from __future__ import annotations

from pathlib import Path

from pyiceberg.io import load_file_io

from lake_assets.incremental.erasure.certificate import Folder, Kind, Reference, Told
from lake_assets.landing.files.entries import NAME
from lake_assets.landing.files.zone_folder import DRAFT, QUARANTINE
from lake_assets.landing.manifest.schema import ALL_STAGES, ALL_VERDICTS, Entry
from lake_assets.landing.manifest.store import has_landed, open_manifest
from lake_assets.settings import Settings


def landed_folder(settings: Settings) -> Folder:
    """The folder of all zones. A home that never landed anything is left without a manifest."""
    root = settings.landing_folder.expanduser().absolute()
    entries = open_manifest(settings).entries(stages=ALL_STAGES, verdicts=ALL_VERDICTS) if has_landed(settings) else []
    known = {(entry.file.zone, entry.file.name): entry for entry in entries}
    return Folder(str(root), lambda path: _told(Path(path).relative_to(root), known), load_file_io({}, str(root)))


def _told(inside: Path, known: dict[tuple[str, str], Entry]) -> Told:
    """inside: of the folder of all zones: zone and name, with a folder between them for quarantine."""
    zone, name = inside.parts[0], inside.name
    if len(inside.parts) == 1:
        return Told(None, "other", "nothing")
    if name.startswith(DRAFT):
        return Told(f"zone {zone}", "draft", "nothing")
    if not (named := NAME.fullmatch(name)):
        return Told(f"zone {zone}", "other", "nothing")
    kind: Kind = "dead letters" if named[1] == "dead-letters" else "landed file"
    return Told(f"{name[: named.start(1) - 1]}, zone {zone}", kind, _reference(inside, known.get((zone, name))))


def _reference(inside: Path, entry: Entry | None) -> Reference:
    if QUARANTINE in inside.parts[1:-1]:
        return "quarantine"
    if entry is None:
        return "nothing"
    return "history" if entry.stage == "retired" else "main"
