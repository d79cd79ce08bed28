"""What a table partitioned by hour or day has in which hour: told by its manifests alone, most passed over unread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import DayTransform, HourTransform, Transform
from pyiceberg.types import IntegerType

from lake_assets.base.grain import DAY, HOUR, Grain
from lake_assets.errors import ConfigurationError
from lake_assets.incremental.metadata.manifests import entries, own_manifests

TRANSFORMS: Mapping[Grain, Transform[Any, Any]] = {HOUR: HourTransform(), DAY: DayTransform()}
"""How the time column of a target is partitioned, by its grain. Iceberg numbers the partitions from 1970 on."""

_LIVE = (ManifestEntryStatus.ADDED, ManifestEntryStatus.EXISTING)


def check_grain(table: Table, time_column: str, grain: Grain) -> None:
    """A table is partitioned as it is declared: an hour of a day cannot be overwritten. Raises `ConfigurationError`."""
    _, found = _time_field(table, table.spec().spec_id, time_column)
    if found != grain:
        raise ConfigurationError(
            f"{'.'.join(table.name())} is declared with grain={grain.name!r}, and partitioned by {found.name}.",
            remedy=f"Declare grain={found.name!r}, or drop the table and let `lake init` create it anew.",
        )


def hours_added(table: Table, snapshot: Snapshot, time_column: str) -> set[int]:
    """The hours of the data files that a snapshot added, of a day all; a file of rows without a time has none.

    Raises `ConfigurationError` if the table is partitioned otherwise.
    """
    own = _entries(table, own_manifests(snapshot, table.io))
    added = (e for e in own if e.status is ManifestEntryStatus.ADDED)
    return {hour for hour in _hours_of(table, added, time_column) if hour is not None}


def hours_removed(table: Table, snapshot: Snapshot, time_column: str) -> set[int | None]:
    """The hours of the data files that a snapshot removed, of a day all; None for a file of rows without a time."""
    own = _entries(table, own_manifests(snapshot, table.io))
    removed = (e for e in own if e.status is ManifestEntryStatus.DELETED and e.snapshot_id == snapshot.snapshot_id)
    return _hours_of(table, removed, time_column)


def hours_left(table: Table, snapshot: Snapshot, time_column: str, hours: Collection[int]) -> set[int | None]:
    """Those of the hours that still have data files of the snapshots before this one."""
    manifests = snapshot.manifests(table.io) if hours else []
    near = [m for m in manifests if _may_hold(table, m, time_column, min(hours), max(hours))]
    left = (e for e in _entries(table, near) if e.status in _LIVE and e.snapshot_id != snapshot.snapshot_id)
    return _hours_of(table, left, time_column).intersection(hours)


def deletes_rows(table: Table, snapshot: Snapshot) -> bool:
    """Whether a snapshot added delete files, which hide rows of data files that stay."""
    deletes = [m for m in own_manifests(snapshot, table.io) if m.content is ManifestContent.DELETES]
    return any(
        e.status is ManifestEntryStatus.ADDED for m in deletes for e in entries(m, table.io, discard_deleted=True)
    )


def rows_between(table: Table, time_column: str, first: int, last: int) -> int:
    """Rows of main in the hours first..last, both inclusive, or in days that hold any of these.

    Deleted rows of a merge-on-read delete are counted in.
    """
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    near = [m for m in manifests if _may_hold(table, m, time_column, first, last)]
    return sum(rows for hours, rows in _rows(table, near, time_column) if hours[0] <= last and hours[-1] >= first)


def rows_by_hour(table: Table, time_column: str) -> dict[int, int]:
    """Rows of main by hour, for all hours that have any; those of a day by its first hour.

    Deleted rows of a merge-on-read delete are counted in.
    """
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    found: Counter[int] = Counter()
    for hours, rows in _rows(table, manifests, time_column):
        found[hours[0]] += rows
    return dict(sorted(found.items()))


def rows_in_hours(
    table: Table, snapshot_id: int | None, time_column: str, hours: Collection[int]
) -> dict[int, int] | None:
    """Rows of a snapshot in each of the hours that has any; exact, or None.

    None where metadata cannot tell: a partition holds a day, or delete files may have taken rows away.
    """
    snapshot = table.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    manifests = snapshot.manifests(table.io) if snapshot and hours else []
    if any(m.content is ManifestContent.DELETES for m in manifests):
        return None
    near = [m for m in manifests if _may_hold(table, m, time_column, min(hours), max(hours))]
    found: Counter[int] = Counter()
    for partition, rows in _rows(table, near, time_column):
        if len(partition) > 1:
            return None
        found[partition[0]] += rows
    return {hour: rows for hour, rows in found.items() if hour in hours}


def _rows(table: Table, manifests: list[ManifestFile], time_column: str) -> Iterator[tuple[range, int]]:
    """The hours of the partition of each live data file that has one, and the file's rows."""
    for entry in _entries(table, manifests):
        if entry.status in _LIVE and (hours := _partition(table, entry.data_file, time_column)) is not None:
            yield hours, entry.data_file.record_count


def _hours_of(table: Table, found: Iterable[ManifestEntry], time_column: str) -> set[int | None]:
    partitions = (_partition(table, entry.data_file, time_column) for entry in found)
    return {hour for hours in partitions for hour in ([None] if hours is None else hours)}


def _partition(table: Table, file: DataFile, time_column: str) -> range | None:
    """The hours of a file's partition; None if its rows have no time."""
    position, grain = _time_field(table, file.spec_id, time_column)
    number = file.partition[position]
    return None if number is None else grain.numbered(number)


def _entries(table: Table, manifests: list[ManifestFile]) -> Iterator[ManifestEntry]:
    """Those of data files, deleted ones too."""
    for manifest in manifests:
        if manifest.content is ManifestContent.DATA:
            yield from entries(manifest, table.io, discard_deleted=False)


def _may_hold(table: Table, manifest: ManifestFile, time_column: str, first: int, last: int) -> bool:
    """Whether a manifest's own bounds admit files of these hours."""
    if not manifest.partitions:
        return True
    position, grain = _time_field(table, manifest.partition_spec_id, time_column)
    bounds = manifest.partitions[position]
    if bounds.lower_bound is None or bounds.upper_bound is None:
        return True
    lower, upper = (int(from_bytes(IntegerType(), b)) for b in (bounds.lower_bound, bounds.upper_bound))
    return grain.numbered(lower)[0] <= last and grain.numbered(upper)[-1] >= first


def _time_field(table: Table, spec_id: int, time_column: str) -> tuple[int, Grain]:
    """Which partition field is the hour or the day of the time column, and which of them."""
    source = table.schema().find_field(time_column).field_id
    for i, field in enumerate(table.specs()[spec_id].fields):
        for grain, transform in TRANSFORMS.items():
            if field.source_id == source and field.transform == transform:
                return i, grain
    raise ConfigurationError(
        f"{'.'.join(table.name())} is partitioned neither by the hour nor by the day of {time_column}.",
        remedy="Let `lake init` create the table, or partition it by hours(time column) or days(time column).",
    )
