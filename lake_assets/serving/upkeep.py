"""Upkeep of stored segments: damaged ones are found and restored, those from before an erasure deleted and searched.

A restored file has the registered checksum, so it is the file that was pushed, byte by byte: from a copy of the folder,
or from the source if it is as it was at the push. A source that has changed since is not read as of the push: an
erasure may lie between the two. Nobody may go back to a replaced snapshot from before an erasure. The snapshot that
readers see stays until a push of the rebuilt table replaces it; without it, readers would see nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from lake_assets.connections.catalog import file_io
from lake_assets.connections.storage import sha256_of
from lake_assets.errors import SegmentDamaged
from lake_assets.incremental.erasure.certificate import FileFacts, FileSource, Reference
from lake_assets.serving.lineage import Retention
from lake_assets.serving.push import Drafting
from lake_assets.serving.registry import Registry, SegmentInfo, States, TableState
from lake_assets.serving.sources import Source
from lake_assets.serving.store import (
    DRAFTS,
    FOLDER,
    SEGMENT_ROWS,
    SegmentFiles,
    Store,
    known_state,
    push_of,
    read_at,
)
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO


@dataclass(frozen=True)
class DamagedSegment:
    """A registered segment whose file is gone, or is not what was pushed.

    Attributes:
        info: What is registered of it.
        is_seen: Whether readers see it; otherwise a revert would go back to it.
        problem: What is wrong, for a person.
    """

    info: SegmentInfo
    is_seen: bool
    problem: str


@dataclass(frozen=True)
class VerifiedTable:
    """The stored segments of a table.

    Attributes:
        table: The served table.
        segments: Number of registered segments.
        damaged: Those whose files differ, by name.
        restored: Those whose files were restored.
    """

    table: str
    segments: int
    damaged: tuple[DamagedSegment, ...]
    restored: tuple[str, ...] = ()

    @property
    def lost(self) -> list[SegmentInfo]:
        """What is registered of the damaged segments."""
        return [segment.info for segment in self.damaged]


def verify_table(registry: Registry, files: SegmentFiles, table: str) -> VerifiedTable:
    """Read all registered segments of a table. Raises `ServingError`."""
    state = known_state(registry, table)
    infos = {info.name: info for info in registry.infos(table, sorted(state.segments))}
    problems = {}
    for name, info in infos.items():
        try:
            files.verify(table, info)
        except SegmentDamaged as error:
            problems[name] = error.problem
    now = registry.read(table)[table]  # a clean-up may have deleted segments, and their files, meanwhile
    damaged = []
    for name in sorted(problems.keys() & now.segments):
        damaged.append(DamagedSegment(infos[name], name in now.routed, problems[name]))
    return VerifiedTable(table, len(infos), tuple(damaged))


def without(found: VerifiedTable, restored: Collection[str]) -> VerifiedTable:
    """Return a table after damaged segments were restored."""
    damaged = [segment for segment in found.damaged if segment.info.name not in restored]
    names = sorted({*found.restored, *restored})
    return VerifiedTable(found.table, found.segments, tuple(damaged), tuple(names))


def restore_from_copies(files: SegmentFiles, copies: SegmentFiles, table: str, lost: Iterable[SegmentInfo]) -> set[str]:
    """Copy damaged segments from another folder of segments, such as a backup.

    Args:
        files: Where they are damaged.
        copies: The other folder.
        table: The served table.
        lost: The damaged segments.

    Returns:
        Those that were restored: the other folder has them as they were pushed.
    """
    candidates = {info: copies.path(table, info.name) for info in lost}
    return {info.name for info, file in candidates.items() if _restored(files, table, info, file)}


def restore_from_source(
    files: SegmentFiles,
    catalog: Catalog,
    source: Source,
    lost: Iterable[SegmentInfo],
    *,
    segment_rows: int = SEGMENT_ROWS,
) -> set[str]:
    """Write damaged segments again from their source, if that has not changed since they were pushed.

    Args:
        files: Where they are damaged.
        catalog: Of the lake.
        source: Of the served table.
        lost: The damaged segments.
        segment_rows: Rows of a segment, at most, as they were pushed.

    Returns:
        Those that were restored.
    """
    head = source.head(catalog)
    pushed: dict[str, dict[str, SegmentInfo]] = {}
    for info in lost:
        if head is not None and info.head == head and push_of(info.name):
            pushed.setdefault(info.entry_id, {})[info.name] = info
    restored = set()
    for of_push in pushed.values():
        first = next(iter(of_push.values()))
        drafting = Drafting(
            files.storage,
            source.name,
            source.read(catalog).rows,
            push_id=str(push_of(first.name)),
            as_of=first.as_of,
            segment_rows=segment_rows,
        )
        try:
            for draft in drafting.write():
                found = of_push.get(draft.name)
                if found is not None and draft.sha256 == found.sha256:
                    files.place(source.name, draft.name)
                    restored.add(draft.name)
        finally:
            files.remove_drafts(source.name, of_push=drafting.push_id)
    return restored


def _restored(files: SegmentFiles, table: str, info: SegmentInfo, candidate: Path) -> bool:
    """Whether the candidate is the pushed file, and so was copied to its place."""
    try:
        if sha256_of(candidate) != info.sha256:
            return False
    except OSError:
        return False
    files.upload(table, info.name, candidate)
    return True


@dataclass(frozen=True)
class OutdatedSegments:
    """Numbers of segments of a served table whose rows were read before an erasure.

    Attributes:
        table: The served table.
        deleted: They were deleted now.
        shown: Readers see them; None: not known, because ZooKeeper does not run.
        left: Other files, as a push leaves them that died. Without ZooKeeper: all files.
    """

    table: str
    deleted: int
    shown: int | None
    left: int


def delete_replaced(store: Store, *, retention: Retention, erased_at: datetime) -> list[OutdatedSegments]:
    """Delete replaced segments whose rows were read before an erasure. Blocks until running queries have ended.

    Tables without a folder here are skipped: they belong to another data directory on the same ZooKeeper.

    Args:
        store: The served tables.
        retention: Of replaced and unfinished pushes.
        erased_at: Time of the last erasure, inclusive.

    Returns:
        One for each table that had such segments.

    Raises:
        ServingError: A table could not be cleaned up.
    """
    found = []
    for table in store.files.tables():
        state = store.registry.read(table)[table]
        before = _read_before(store, table, state, erased_at)
        if not before:
            continue
        store.clean_up(table, retention=retention, erased_at=erased_at)
        state = store.registry.read(table)[table]
        remaining = _read_before(store, table, state, erased_at)
        shown = remaining & state.routed
        deleted = len(before - remaining)
        found.append(OutdatedSegments(table, deleted=deleted, shown=len(shown), left=len(remaining - shown)))
    return found


def stored_before(files: SegmentFiles, *, erased_at: datetime) -> Iterator[OutdatedSegments]:
    """Yield the tables with files from before an erasure, by the names of their segments.

    Changes nothing, and needs no ZooKeeper.
    """
    for table in files.tables():
        names = _named_before([*files.stored(table), *files.drafts(table)], erased_at)
        if names:
            yield OutdatedSegments(table=table, deleted=0, shown=None, left=len(names))


def _read_before(store: Store, table: str, state: TableState, erased_at: datetime) -> set[str]:
    """By the names of the files, and by the registry, because other tools may have named them."""
    by_name = _named_before([*store.files.stored(table), *store.files.drafts(table)], erased_at)
    return by_name.union(store.read_before(table, state.segments, erased_at))


def _named_before(names: Iterable[str], erased_at: datetime) -> set[str]:
    return {name for name in names if (time := read_at(name)) is not None and time <= erased_at}


def segment_folders(settings: Settings, states: States | None) -> Iterator[FileSource]:
    """Yield the folder of segments and the folders of drafts.

    Args:
        settings: Name the folder of segments.
        states: Of the tables stored here; None if they are not known.
    """
    if isinstance(settings.segments, Path):
        yield ServedSegments(str(settings.segments.expanduser().absolute()), states)
    else:
        yield ServedSegments(settings.segments.partition("?")[0], states, file_io(settings, settings.segments))
    temporary = Path(tempfile.gettempdir()).absolute()
    for drafts in sorted(temporary.glob(f"{FOLDER}*")):
        yield DraftFiles(str(drafts))


class ServedSegments(FileSource):
    """The files in the folder of served tables: `<table>/<segment>`."""

    def __init__(self, location: str, states: States | None, io: FileIO | None = None) -> None:
        super().__init__(location, io)
        self.states = states

    def facts(self, path: str) -> FileFacts:
        inside = self.parts(path)
        table = inside[0]
        if table == DRAFTS:
            return FileFacts("a push", "draft", "nothing")
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
