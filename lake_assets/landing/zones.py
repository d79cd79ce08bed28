"""The zones of a home: adding files to one, opening them, and the lock of its tailer.

Adding files to a zone: draft, move to its place, add to the manifest. Repeating it after a crash is safe.

The zones of a home, each opened with its manifest.

The lock of a zone: one process at a time tails it.

It is an advisory lock of the operating system (flock) on a file beside the zone's folder, so it ends with its process,
however that ends. A second tailer would do no harm: it makes files of the same names and bytes, which the manifest
already has. But it would read and write everything once more, so it is refused.

Assumption: all tailers of a zone run on one machine, or their file system knows locks. If not, the second one does
needless work.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from lake_assets.base.failpoints import reach
from lake_assets.errors import FilesDiffer, LakeError, ServiceError, UsageError, ZoneMismatch, suggestion
from lake_assets.landing.files import MARKER, ZONES, Draft, Zone, remove_draft, zone_of
from lake_assets.landing.manifest import (
    CURRENT_STAGES,
    READABLE,
    Entry,
    Manifest,
    Stage,
    Verdict,
    files_of,
    has_landed,
    open_manifest,
)
from lake_assets.landing.records import NOTHING, Checksum, DataFile, Record, file_name, names_of
from lake_assets.settings import Settings


@dataclass(frozen=True)
class ZoneWriter:
    """A zone and its manifest.

    Several processes may write a zone at the same time. The manifest refuses what one of them makes of files that
    another one has replaced meanwhile.
    """

    zone: Zone
    manifest: Manifest

    def storage_problem(self) -> ZoneMismatch | ServiceError | None:
        """Return why the storage and the manifest do not belong together; None if they do, or if both are new.

        A zone of an earlier version has no marker: its folder is known by its files. A storage that does not answer
        is a problem, too, of which nothing else is known.
        """
        try:
            return self._mismatch()
        except ServiceError as error:
            return error

    def _mismatch(self) -> ZoneMismatch | None:
        zone, folder = self.zone.name, self.zone.storage.address
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
        """Check that storage and manifest belong together, and mark them if nobody has.

        Raises:
            ZoneMismatch: They do not.
            ServiceError: The object store of the zone does not answer.
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
            self._put(draft)
        finally:
            remove_draft(draft.path)
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
            self.zone.put(draft)
        # Else: a file that the manifest has is never overwritten; the add compares the draft with it.


def open_zones(settings: Settings, names: Iterable[str] = ()) -> list[ZoneWriter]:
    """Open zones of a home, each with its manifest.

    Args:
        settings: Of the home.
        names: The zones to open; empty means all.

    Raises:
        UsageError: There is no zone of a name.
        ServiceError: The manifest of one of them cannot be opened.
    """
    return [ZoneWriter(zone_of(settings, name), open_manifest(settings, name)) for name in zone_names(names)]


def present_zones(
    settings: Settings, names: Iterable[str] = (), *, storage: bool = True
) -> tuple[list[ZoneWriter], dict[str, LakeError]]:
    """Open the zones that can be worked on now: their manifest opens, and their storage is theirs.

    What a zone that is away does not do now, it does by the log of commands and its own files when it is back.

    Args:
        settings: Of the home.
        names: The zones to open; empty means all.
        storage: Whether their storage matters.

    Returns:
        The zones; and the name of each other one, with what it lacks.

    Raises:
        UsageError: There is no zone of a name.
        ServiceError: None of them can be worked on.
        ZoneMismatch: Likewise.
    """
    present: list[ZoneWriter] = []
    away: dict[str, LakeError] = {}
    for name in zone_names(names):
        try:
            (writer,) = open_zones(settings, [name])
            problem: LakeError | None = writer.storage_problem() if storage else None
        except ServiceError as error:
            problem = error
        if problem is None:
            present.append(writer)
        else:
            away[name] = problem
    for problem in away.values() if not present else ():
        raise problem
    return present, away


def zone_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of zones; all if there are none. Raises `UsageError` if there is no zone of a name."""
    wanted = tuple(names) or ZONES
    for name in wanted:
        if name not in ZONES:
            raise no_such_zone(name)
    return wanted


def landed_without_manifest(settings: Settings) -> dict[str, int]:
    """Return how many landed files the zones have whose manifest does not exist. Raises `ServiceError`."""
    gone = [zone_of(settings, name) for name in ZONES if not has_landed(settings, name)]
    return {zone.name: count for zone in gone if (count := len(zone.landed_names()))}


def no_such_zone(name: str) -> UsageError:
    """Return the error for a zone that does not exist."""
    return UsageError(f"There is no zone {name!r}.", remedy=suggestion(name, ZONES))


@contextmanager
def locked_zone(folder: Path, zone: str) -> Iterator[None]:
    """Hold the lock of a zone until the block ends.

    Args:
        folder: Folder of landed files, with one folder for each zone.
        zone: Name of the zone.

    Raises:
        UsageError: Another process tails the zone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{zone}.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _is_tailed(zone, Path(lock.name).read_text()) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def is_locked(folder: Path, zone: str) -> bool:
    """Return whether a process tails a zone."""
    file = folder / f"{zone}.lock"
    if not file.exists():
        return False
    with file.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _is_tailed(zone: str, pid: str) -> UsageError:
    return UsageError(
        f"Zone {zone} is landed by another process, with pid {pid}.",
        remedy="Let it land, or end it first: `lake status` shows whether it is a service of `lake up`, "
        "which `lake down` stops; otherwise it is a `lake landing run`.",
    )
