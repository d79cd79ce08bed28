"""Where a zone continues in the partitions of a topic. Pure.

A zone continues at the first offset that it does not have. If Kafka has forgotten that offset, and the zone has later
files, the offset lies in a hole: new messages are landed after the zone's last file, and the hole is filled from the
other zone. If the zone has no later file, the partition cannot go on before a person has accepted the loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lake_assets.errors import LandingError
from lake_assets.landing.files.checksum import checksum
from lake_assets.landing.files.entries import DataFile, offsets
from lake_assets.landing.manifest.coverage import Cover, uncovered
from lake_assets.landing.tailing.tailer import Closed


@dataclass(frozen=True)
class Start:
    """Where a zone continues in a partition.

    Attributes:
        offset: The first offset to read; if the zone has none, the first one of the other zone; None if no zone has
            any.
        landed: First and last offsets of the zone's files. Some may lie after a gap, where a quarantined file was.
        dead: The zone's files of dead letters, at any stage.
    """

    offset: int | None
    landed: frozenset[tuple[int, int]] = frozenset()
    dead: tuple[DataFile, ...] = ()

    def has_landed(self, closed: Closed) -> bool:
        """Return whether a file of the zone has an offset of a closed file."""
        return any(first <= closed.last and closed.first <= last for first, last in self.landed)

    def without_landed_dead_letters(self, closed: Closed) -> Closed:
        """Return a closed file without its dead letters if the zone has landed them before it died.

        Their file may have been compacted or scrubbed since, under another name, and its first form swept.

        Raises:
            LandingError: The file of dead letters holds others.
        """
        for file in self.dead:
            first, last = file.ranges[closed.place.partition]
            if first <= closed.last and closed.first <= last:
                _require_same_dead_letters(file, closed)
                return replace(closed, dead=(), dead_landed=len(closed.dead))
        return closed


def starts_of(
    zone: str,
    files: Sequence[DataFile],
    numbers: Iterable[int],
    *,
    begun: Mapping[int, int],
    gaps: Sequence[Cover] = (),
    earliest: Mapping[int, int],
) -> dict[int, Start]:
    """Return, for each partition of a topic, where a zone continues.

    Args:
        zone: The zone.
        files: The files of all zones at any stage, without quarantined ones.
        numbers: The partitions.
        begun: Partition → the first offset that any zone has landed.
        gaps: Offsets that are lost for good.
        earliest: Partition → the first landed offset that Kafka can still give.
    """
    own: list[DataFile] = []
    dead: list[DataFile] = []
    for file in files:
        if file.zone == zone:
            (dead if file.holds_dead_letters else own).append(file)
    covers = [*map(_cover, own), *gaps]
    found = {}
    for partition in numbers:
        start = begun.get(partition)
        if start is not None:
            start = _continue_at(covers, partition, start, earliest.get(partition, 0))
        found[partition] = Start(start, _spans(own, partition), _with(dead, partition))
    return found


def _cover(file: DataFile) -> Cover:
    return Cover(file.ranges, readable=True)


def _continue_at(covers: Sequence[Cover], partition: int, begun: int, earliest: int) -> int:
    ends = [cover.ranges[partition][1] + 1 for cover in covers if partition in cover.ranges]
    end = max([begun, *ends])
    for first, _ in uncovered(covers, {partition: begun}, {partition: end}).get(partition, ()):
        if first >= earliest:
            return first
    return end


def _spans(files: Iterable[DataFile], partition: int) -> frozenset[tuple[int, int]]:
    return frozenset(file.ranges[partition] for file in files if partition in file.ranges)


def _with(files: Iterable[DataFile], partition: int) -> tuple[DataFile, ...]:
    return tuple(file for file in files if partition in file.ranges)


def _require_same_dead_letters(file: DataFile, closed: Closed) -> None:
    found = checksum(record.canonical for record in closed.dead)
    if not file.deletions and found != file.checksum:
        raise LandingError(
            f"The dead letters {file.name} of zone {file.zone} ({offsets(file)}) were landed with the checksum "
            f"{file.checksum}, and are now {found}.",
            remedy="Declare the columns of the raw table as they were, then start the zone again. "
            "`lake landing verify` says whether the file is damaged.",
        )
