"""Writing a damaged or missing file again, from the records of the other zone.

The manifest has the checksum of the file's records. Whatever files of the other zone hold these records by now, they
are the right ones if they have that checksum, so nothing has to be trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import sqlalchemy as sa

from lake_assets.errors import FileDamaged
from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.offset_ranges import RangeIndex, Ranges
from lake_assets.landing.files.records import Record
from lake_assets.landing.files.sharding import Shard, parse_shard
from lake_assets.landing.files.zone_folder import Draft, Zone
from lake_assets.landing.manifest.schema import FILES, files_of
from lake_assets.landing.manifest.store import Manifest
from lake_assets.landing.manifest.zone_writer import ZoneWriter

_NO_OFFSETS = (0, -1)


def restore(writer: ZoneWriter, others: Iterable[Zone], file: DataFile) -> None:
    """Write a file of a zone again. If it dies, another call finishes it.

    Args:
        writer: Of the zone.
        others: The other zones.
        file: As the manifest describes it.

    Raises:
        FileDamaged: No other zone has its records undamaged.
    """
    reasons = []
    for other in others:
        try:
            draft = _draft(writer, other, file)
        except FileDamaged as error:
            reasons.append(f"zone {other.name}: {error.problem}")
            continue
        if draft.file.checksum == file.checksum:
            draft.put(writer.zone.path(file.name))
            _set_digest(writer, file.name, draft.file.digest)
            return
        draft.path.unlink()
        reasons.append(f"zone {other.name} has the checksum {draft.file.checksum} at its offsets, not {file.checksum}")
    raise FileDamaged(file.name, f"cannot be restored ({'; '.join(reasons) or 'no other zone'})")


def _draft(writer: ZoneWriter, other: Zone, file: DataFile) -> Draft:
    sources = _sources(writer, other, file)
    return writer.zone.draft(
        file.shard,
        file.ranges,
        records_within(other, sources, file.ranges),
        deletions=file.deletions,
        kind=file.kind,
        made_from=file.made_from,
    )


def _sources(writer: ZoneWriter, other: Zone, file: DataFile) -> Sequence[DataFile]:
    """Return the equal file of another zone, at any stage; else its live files of the same shard that overlap."""
    equal = writer.manifest.entry(other.name, file.name)
    if equal is not None and equal.file.checksum == file.checksum:
        return [equal.file]
    return live_files_within(writer.manifest, other, parse_shard(file.shard), file.ranges)


def live_files_within(manifest: Manifest, zone: Zone, shard: Shard, ranges: Ranges) -> list[DataFile]:
    """Return the live files of a shard, in a zone, that have an offset of ranges."""
    wanted = RangeIndex([ranges])
    live = files_of(manifest.entries(zone.name, shard.topic))
    return [file for file in live if file.shard == str(shard) and wanted.overlaps(file.ranges)]


def records_within(zone: Zone, sources: Iterable[DataFile], ranges: Ranges) -> Iterator[Record]:
    """Yield the records of files of a zone that lie in ranges. Raises `FileDamaged`."""
    for source in sources:
        for record in zone.records(source):
            first, last = ranges.get(record.partition, _NO_OFFSETS)
            if first <= record.offset <= last:
                yield record


def _set_digest(writer: ZoneWriter, name: str, digest: str) -> None:
    """Record the bytes of the new file: the same records in another order have others."""
    with writer.manifest.change() as (connection, _):
        is_row = (FILES.c.zone == writer.zone.name) & (FILES.c.name == name)
        connection.execute(sa.update(FILES).where(is_row).values(digest=digest))
