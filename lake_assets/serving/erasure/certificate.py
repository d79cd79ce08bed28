"""Segments for the certificate of an erasure: the folder of all served tables, and drafts of pushes that died."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePath

from lake_assets.incremental.erasure.certificate import FileFacts, FileSource, Reference
from lake_assets.serving.lineage.registry import States
from lake_assets.serving.store.drafts import FOLDER
from lake_assets.settings import Settings


def segment_folders(settings: Settings, states: States | None) -> Iterator[FileSource]:
    """Yield the folder of segments and the folders of drafts.

    Args:
        settings: Name the folder of segments.
        states: Of the tables stored here; None if they are not known.
    """
    segments = settings.segments.expanduser().absolute()
    yield SegmentFiles(str(segments), states)
    temporary = Path(tempfile.gettempdir()).absolute()
    for drafts in sorted(temporary.glob(f"{FOLDER}*")):
        yield DraftFiles(str(drafts))


class SegmentFiles(FileSource):
    """The files in the folder of served tables: `<table>/<segment>`."""

    def __init__(self, location: str, states: States | None) -> None:
        super().__init__(location)
        self.states = states

    def facts(self, path: str) -> FileFacts:
        inside = self.parts(path)
        table = inside[0]
        if len(inside) == 1:
            return FileFacts(None, "other", "nothing")
        segment = PurePath(inside[-1]).stem
        return FileFacts(f"{table}, served", "segment", self._reference(table, segment))

    def _reference(self, table: str, segment: str) -> Reference:
        """Return whether readers see a segment, a switch back may need it, or it is no segment of the table."""
        if self.states is None:
            return "not known"
        if table not in self.states or segment not in self.states[table].segments:
            return "nothing"
        return "main" if segment in self.states[table].routed else "history"


class DraftFiles(FileSource):
    """What a push that died left behind."""

    def facts(self, path: str) -> FileFacts:
        return FileFacts("a push", "draft", "nothing")
