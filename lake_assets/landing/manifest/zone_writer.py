"""Adding files to a zone: draft, move to its place, add to the manifest. Repeating it after a crash is safe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from lake_assets.base.failpoints import reach
from lake_assets.errors import FilesDiffer, LakeError
from lake_assets.landing.files.checksum import NOTHING, Checksum
from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.records import Record
from lake_assets.landing.files.zone_folder import Draft, Zone
from lake_assets.landing.manifest.schema import READABLE, Entry, Stage, Verdict
from lake_assets.landing.manifest.store import Manifest


@dataclass(frozen=True)
class ZoneWriter:
    """A zone and the shared manifest.

    Several processes may write a zone at the same time. The manifest refuses what one of them makes of files that
    another one has replaced meanwhile.
    """

    zone: Zone
    manifest: Manifest

    def land(self, draft: Draft, *, now: datetime, stage: Stage = "live") -> Verdict:
        """Move a draft to its place and add it to the manifest.

        Returns:
            The verdict of the file.

        Raises:
            FilesDiffer: It differs from the other zone's file; it is quarantined.
            LandingError: What else `Manifest.add` raises; the file is removed.
        """
        with self._placed(draft):
            return self.manifest.add(draft.file, now=now, stage=stage)

    def replace(
        self,
        operation: str,
        taken: Sequence[DataFile],
        draft: Draft,
        *,
        now: datetime,
        removed: Checksum = NOTHING,
    ) -> Verdict:
        """Do the same with a draft that replaces the files that it was made from. Raises as `Manifest.replace`."""
        with self._placed(draft):
            return self.manifest.replace(operation, taken, draft.file, removed=removed, now=now)

    def entries(
        self,
        topic: str | None = None,
        *,
        stages: Sequence[Stage] = ("live",),
        verdicts: Sequence[Verdict] = READABLE,
    ) -> list[Entry]:
        """Return files of this zone, as `Manifest.entries`."""
        return self.manifest.entries(self.zone.name, topic, stages=stages, verdicts=verdicts)

    def entry(self, name: str) -> Entry | None:
        """Return the entry of a file of this zone; None if the manifest does not have it."""
        return self.manifest.entry(self.zone.name, name)

    def records(self, file: DataFile) -> Iterator[Record]:
        """Yield the records of a file of this zone. Raises `FileDamaged`."""
        return self.zone.records(file)

    @contextmanager
    def _placed(self, draft: Draft) -> Iterator[None]:
        name = draft.file.name
        reach("landing-drafted")
        self._put(draft)
        reach("landing-put")
        try:
            yield
        except FilesDiffer:
            self.zone.quarantine(name)
            raise
        except LakeError:
            if self.entry(name) is None:
                self.zone.drop(name)
            raise
        reach("landing-added")

    def _put(self, draft: Draft) -> None:
        entry = self.entry(draft.file.name)
        if entry is None or entry.verdict == "quarantined":
            draft.put(self.zone.path(draft.file.name))
        else:
            # A file that the manifest has is never overwritten; the add compares the draft with it.
            draft.path.unlink()
