"""Adding files to a zone: draft, move to its place, add to the manifest. Repeating it after a crash is safe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from uuid import uuid4

from lake_assets.base.failpoints import reach
from lake_assets.errors import FilesDiffer, LakeError, ZoneMismatch
from lake_assets.landing.files.checksum import NOTHING, Checksum
from lake_assets.landing.files.entries import DataFile, file_name, names_of
from lake_assets.landing.files.records import Record
from lake_assets.landing.files.zone_folder import MARKER, Draft, Zone
from lake_assets.landing.manifest.schema import CURRENT_STAGES, READABLE, Entry, Stage, Verdict, files_of
from lake_assets.landing.manifest.store import Manifest


@dataclass(frozen=True)
class ZoneWriter:
    """A zone and the shared manifest.

    Several processes may write a zone at the same time. The manifest refuses what one of them makes of files that
    another one has replaced meanwhile.
    """

    zone: Zone
    manifest: Manifest

    def storage_problem(self) -> ZoneMismatch | None:
        """Return why the folder and the manifest do not belong together; None if they do, or if both are new.

        A zone of an earlier version has no marker: its folder is known by its files.
        """
        zone, folder = self.zone.name, self.zone.folder
        marked, recorded = self.zone.storage_id(), self.manifest.storage_id(zone)
        if marked is not None and marked == recorded:
            return None
        known = set(names_of(files_of(self.entries(stages=CURRENT_STAGES))))
        found = self.zone.landed_names()
        if marked is not None and recorded is not None:
            return ZoneMismatch(
                f"The folder {folder} is not that of zone {zone}: its {MARKER} names the storage {marked}, "
                f"and the manifest {recorded}.",
                remedy="Mount the right folder, or correct LAKE_LANDING and LAKE_LANDING_MANIFEST_URI.",
            )
        if marked is None and known and not known & found:
            return ZoneMismatch(
                f"The files of zone {zone} are gone: the manifest has {len(known):,}, and {folder} has none of them.",
                remedy="Mount the folder, or restore it from a backup. Or run `lake landing repair`, which writes the "
                "files again from the other zone.",
            )
        if recorded is None and not known and (marked is not None or found):
            return ZoneMismatch(
                f"The manifest {self.manifest.engine.url.render_as_string()} is new or another one's: it knows no file "
                f"of zone {zone}, and {folder} has {len(found):,}.",
                remedy="Restore the manifest from a backup, or correct LAKE_LANDING_MANIFEST_URI. To land everything "
                "again without it, move the folders of both zones away, run `lake landing run`, and then `lake erase "
                "--sweep`, because erased ids come back.",
            )
        return None

    def require_storage(self) -> None:
        """Check that folder and manifest belong together, and mark them if nobody has.

        Raises:
            ZoneMismatch: They do not.
        """
        problem = self.storage_problem()
        if problem is not None:
            raise problem
        marked, recorded = self.zone.storage_id(), self.manifest.storage_id(self.zone.name)
        if marked is None or recorded is None:
            # Recorded first: a marker that the manifest does not know would be that of another manifest.
            self.zone.mark(self.manifest.record_storage(self.zone.name, marked or uuid4().hex))

    def land(self, draft: Draft, *, now: datetime, stage: Stage = "live") -> Verdict:
        """Move a draft to its place and add it to the manifest.

        A process that died may have left the file as it was before deletion requests, without an entry: it goes.

        Returns:
            The verdict of the file.

        Raises:
            FilesDiffer: It differs from the other zone's file; it is quarantined.
            LandingError: What else `Manifest.add` raises; the file is removed.
        """
        file = draft.file
        with self._placed(draft):
            verdict = self.manifest.add(file, now=now, stage=stage)
        if file.deletions:
            unscrubbed = file_name(file.shard, file.ranges, frozenset(), file.kind)
            if self.entry(unscrubbed) is None:
                self.zone.drop(unscrubbed)
        return verdict

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
        try:
            self.require_storage()
        except ZoneMismatch:
            draft.path.unlink(missing_ok=True)
            raise
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
