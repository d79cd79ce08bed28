"""Landed files for the certificate of an erasure: the folders of both zones, with drafts, quarantine and strays."""

from __future__ import annotations

from collections.abc import Mapping

from lake_assets.incremental.erasure.certificate import FileFacts, FileSource, Kind, Reference
from lake_assets.landing.files.entries import NAME
from lake_assets.landing.files.zone_folder import DRAFT, QUARANTINE
from lake_assets.landing.manifest.schema import ALL_STAGES, ALL_VERDICTS, Entry
from lake_assets.landing.manifest.store import has_landed, open_manifest
from lake_assets.settings import Settings


def landed_folder(settings: Settings) -> FileSource:
    """Return the folder of all zones. If nothing has ever landed, no manifest is created."""
    root = settings.landing_folder.expanduser().absolute()
    entries = {}
    if has_landed(settings):
        for entry in open_manifest(settings).entries(stages=ALL_STAGES, verdicts=ALL_VERDICTS):
            entries[entry.file.zone, entry.file.name] = entry
    return LandedFiles(str(root), entries)


class LandedFiles(FileSource):
    """The files in the folder of all zones: `<zone>/<name>`, or `<zone>/<quarantine>/<name>`.

    Args:
        location: The folder.
        entries: Zone and name of each file in the manifest → its entry.
    """

    id_columns = ("key",)  # of a message: an id, or nothing that an erasure could take for one

    def __init__(self, location: str, entries: Mapping[tuple[str, str], Entry]) -> None:
        super().__init__(location)
        self.entries = entries

    def facts(self, path: str) -> FileFacts:
        inside = self.parts(path)
        zone = inside[0]
        name = inside[-1]
        if len(inside) == 1:
            return FileFacts(None, "other", "nothing")
        if name.startswith(DRAFT):
            return FileFacts(f"zone {zone}", "draft", "nothing")
        named = NAME.fullmatch(name)
        if not named:
            return FileFacts(f"zone {zone}", "other", "nothing")
        kind: Kind = "dead letters" if named[1] == "dead-letters" else "landed file"
        topic = name[: named.start(1) - 1]
        is_quarantined = QUARANTINE in inside[1:-1]
        reference = "quarantine" if is_quarantined else _reference(self.entries.get((zone, name)))
        return FileFacts(f"{topic}, zone {zone}", kind, reference)


def _reference(entry: Entry | None) -> Reference:
    if entry is None:
        return "nothing"
    return "history" if entry.stage == "retired" else "main"
