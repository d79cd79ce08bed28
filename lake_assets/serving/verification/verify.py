"""Compares all stored segments of a served table with their checksums, also those that a revert would go back to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lake_assets.serving.errors import TableNotServed, UploadDamaged
from lake_assets.serving.lineage.registry import Registry
from lake_assets.serving.lineage.znrecord import SegmentInfo
from lake_assets.serving.store.files import SegmentFiles


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
    """Read all registered segments of a table. Raises `TableNotServed`."""
    state = registry.read(table)[table]
    if state.version is None:
        raise TableNotServed(table, registry.tables())
    infos = {info.name: info for info in registry.infos(table, sorted(state.segments))}
    problems = _problems(files, table, infos)
    now = registry.read(table)[table]  # a clean-up may have deleted segments, and their files, meanwhile
    damaged = []
    for name in sorted(problems.keys() & now.segments):
        damaged.append(DamagedSegment(infos[name], name in now.routed, problems[name]))
    return VerifiedTable(table, len(infos), tuple(damaged))


def _problems(files: SegmentFiles, table: str, infos: Mapping[str, SegmentInfo]) -> dict[str, str]:
    found = {}
    for name, info in infos.items():
        try:
            files.verify(table, info)
        except UploadDamaged as error:
            found[name] = error.problem
    return found


def without(found: VerifiedTable, restored: Collection[str]) -> VerifiedTable:
    """Return a table after damaged segments were restored."""
    damaged = [segment for segment in found.damaged if segment.info.name not in restored]
    names = sorted({*found.restored, *restored})
    return VerifiedTable(found.table, found.segments, tuple(damaged), tuple(names))
