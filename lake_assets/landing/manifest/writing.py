"""How a zone comes to a file: draft, place, manifest. Whatever dies in between is done again, with the same result."""

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
from lake_assets.landing.manifest.schema import Stage, Verdict
from lake_assets.landing.manifest.store import Manifest


@dataclass(frozen=True)
class ZoneWriter:
    """A zone and the manifest that it shares.

    Processes may write a zone side by side: what one makes of files that another has replaced meanwhile is refused.
    """

    zone: Zone
    manifest: Manifest

    def land(self, draft: Draft, *, now: datetime, stage: Stage = "live") -> Verdict:
        """Put a draft in its place and add it. Raises what `Manifest.add` does; a file that differs is quarantined."""
        with self._placed(draft):
            return self.manifest.add(draft.file, now=now, stage=stage)

    def replace(
        self, operation: str, taken: Sequence[DataFile], draft: Draft, *, now: datetime, removed: Checksum = NOTHING
    ) -> Verdict:
        """The same, in the place of the files that it was made from. Raises what `Manifest.replace` does."""
        with self._placed(draft):
            return self.manifest.replace(operation, taken, draft.file, removed=removed, now=now)

    def records(self, file: DataFile) -> Iterator[Record]:
        """The records of a file of this zone. Raises `FileDamaged`."""
        return self.zone.records(file)

    @contextmanager
    def _placed(self, draft: Draft) -> Iterator[None]:
        reach("landing-drafted")
        self._put(draft)
        reach("landing-put")
        try:
            yield
        except FilesDiffer:
            self.zone.set_aside(draft.file.name)
            raise
        except LakeError:
            if self.manifest.entry(self.zone.name, draft.file.name) is None:
                self.zone.drop(draft.file.name)
            raise
        reach("landing-added")

    def _put(self, draft: Draft) -> None:
        """Never over a file that the manifest has: what differs from it is refused by the add, and goes."""
        entry = self.manifest.entry(self.zone.name, draft.file.name)
        if entry is None or entry.verdict == "quarantined":
            draft.put(self.zone.path(draft.file.name))
        else:
            draft.path.unlink()
