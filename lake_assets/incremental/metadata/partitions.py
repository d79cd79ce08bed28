"""The hours of tables that are partitioned by hour or day, from manifests. Bounds exclude most manifests unread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import DayTransform, HourTransform, Transform
from pyiceberg.types import IntegerType

from lake_assets.base.grain import DAY, HOUR, Grain, days_in
from lake_assets.errors import ConfigurationError
from lake_assets.incremental.metadata.manifests import entries, own_manifests

TRANSFORMS: Mapping[Grain, Transform[Any, Any]] = {HOUR: HourTransform(), DAY: DayTransform()}
"""Grain → partition transform of the time column. Iceberg numbers the partitions from 1970 on."""

TIMEZONE = "lake.timezone"
"""Table property: the time zone whose days the partitions of the target are; absent for hours and for days of UTC."""

_LIVE = (ManifestEntryStatus.ADDED, ManifestEntryStatus.EXISTING)


@dataclass(frozen=True)
class _TimePartition:
    """The partition field of the time column: its position in the spec, and its grain."""

    position: int
    grain: Grain

    def hours(self, file: DataFile) -> range | None:
        """Return the hours of a file's partition; None if its rows have no time."""
        number = file.partition[self.position]
        return None if number is None else self.grain.numbered(number)


class _HourReader:
    """Reads the entries of data files of one table, with the hours of their partitions."""

    def __init__(self, table: Table, time_column: str) -> None:
        self.table = table
        self.time_column = time_column

    def hours_of(self, found: Iterable[ManifestEntry]) -> set[int | None]:
        """Return the hours of the files of all entries; None for a file of rows without a time."""
        hours: set[int | None] = set()
        for entry in found:
            partition = self.hours(entry.data_file)
            hours.update([None] if partition is None else partition)
        return hours

    def rows(self, manifests: Iterable[ManifestFile]) -> Iterator[tuple[range, int]]:
        """Yield, for each live data file of rows with a time, the hours of its partition and its rows."""
        for entry in _data_entries(self.table, manifests):
            if entry.status not in _LIVE:
                continue
            partition = self.hours(entry.data_file)
            if partition is not None:
                yield partition, entry.data_file.record_count

    def between(self, manifests: Iterable[ManifestFile], first: int, last: int) -> list[ManifestFile]:
        """Return the manifests that may have files of the hours first..last, both inclusive."""
        return [manifest for manifest in manifests if self._may_contain(manifest, first, last)]

    def hours(self, file: DataFile) -> range | None:
        """Return the hours of a file's partition; None if its rows have no time."""
        return _time_partition(self.table, file.spec_id, self.time_column).hours(file)

    def _may_contain(self, manifest: ManifestFile, first: int, last: int) -> bool:
        if not manifest.partitions:
            return True
        partition = _time_partition(self.table, manifest.partition_spec_id, self.time_column)
        bounds = manifest.partitions[partition.position]
        if bounds.lower_bound is None or bounds.upper_bound is None:
            return True
        lower = int(from_bytes(IntegerType(), bounds.lower_bound))
        upper = int(from_bytes(IntegerType(), bounds.upper_bound))
        first_hour = partition.grain.numbered(lower)[0]
        last_hour = partition.grain.numbered(upper)[-1]
        return first_hour <= last and last_hour >= first


def table_grain(grain: Grain) -> Grain:
    """Return what the table of a target is partitioned by: by hours for local days, as Iceberg knows days of UTC."""
    return HOUR if grain.is_local else grain


def check_grain(table: Table, time_column: str, grain: Grain) -> None:
    """Check that a table is partitioned by its declared grain: one hour of a day cannot be overwritten.

    Raises:
        ConfigurationError: It is partitioned otherwise, or was created for days of another time zone.
    """
    found = _time_partition(table, table.spec().spec_id, time_column).grain
    if found == HOUR and TIMEZONE in table.properties:
        found = days_in(table.properties[TIMEZONE])
    if found != grain:
        raise ConfigurationError(
            f"{'.'.join(table.name())} is declared with {_declared(grain)}, and partitioned by {found.in_words}.",
            remedy=f"Declare {_declared(found)}, or drop the table and let `lake init` create it again.",
        )


def _declared(grain: Grain) -> str:
    zone = f", timezone={grain.timezone!r}" if grain.is_local else ""
    return f"grain={grain.name!r}{zone}"


def hours_added(table: Table, snapshot: Snapshot, time_column: str) -> set[int]:
    """Return the hours of the data files that a snapshot added; of a day, all.

    Files of rows without a time are left out.

    Raises:
        ConfigurationError: The table is not partitioned by hour or day of the time column.
    """
    own = _data_entries(table, own_manifests(snapshot, table.io))
    added = (entry for entry in own if entry.status is ManifestEntryStatus.ADDED)
    hours = _HourReader(table, time_column).hours_of(added)
    return {hour for hour in hours if hour is not None}


def hours_removed(table: Table, snapshot: Snapshot, time_column: str) -> set[int | None]:
    """Return the hours of the data files that a snapshot removed; of a day, all; None for rows without a time."""
    own = _data_entries(table, own_manifests(snapshot, table.io))
    removed: list[ManifestEntry] = []
    for entry in own:
        if entry.status is ManifestEntryStatus.DELETED and entry.snapshot_id == snapshot.snapshot_id:
            removed.append(entry)
    return _HourReader(table, time_column).hours_of(removed)


def hours_left(
    table: Table,
    snapshot: Snapshot,
    time_column: str,
    hours: Collection[int],
) -> set[int | None]:
    """Return those of the hours that still have data files of snapshots before this one."""
    if not hours:
        return set()
    reader = _HourReader(table, time_column)
    manifests = snapshot.manifests(table.io)
    near = reader.between(manifests, min(hours), max(hours))
    left: list[ManifestEntry] = []
    for entry in _data_entries(table, near):
        if entry.status in _LIVE and entry.snapshot_id != snapshot.snapshot_id:
            left.append(entry)
    return reader.hours_of(left).intersection(hours)


def deletes_rows(table: Table, snapshot: Snapshot) -> bool:
    """Whether a snapshot added delete files, which hide rows of data files that stay."""
    for manifest in own_manifests(snapshot, table.io):
        if manifest.content is not ManifestContent.DELETES:
            continue
        live = entries(manifest, table.io, discard_deleted=True)
        if any(entry.status is ManifestEntryStatus.ADDED for entry in live):
            return True
    return False


def rows_between(
    table: Table,
    time_column: str,
    first: int,
    last: int,
) -> int:
    """Return the rows of main in the hours first..last, both inclusive, or in days that contain any of them.

    Rows deleted by merge-on-read are counted, too.
    """
    reader = _HourReader(table, time_column)
    near = reader.between(_manifests(table, table.current_snapshot()), first, last)
    total = 0
    for hours, rows in reader.rows(near):
        if hours[0] <= last and hours[-1] >= first:
            total += rows
    return total


def rows_by_hour(table: Table, time_column: str) -> dict[int, int]:
    """Return hour → rows of main, for all hours with rows, ascending; those of a day at its first hour.

    Rows deleted by merge-on-read are counted, too.
    """
    manifests = _manifests(table, table.current_snapshot())
    found: Counter[int] = Counter()
    for hours, rows in _HourReader(table, time_column).rows(manifests):
        found[hours[0]] += rows
    return dict(sorted(found.items()))


def rows_in_hours(
    table: Table,
    snapshot_id: int | None,
    time_column: str,
    hours: Collection[int],
) -> dict[int, int] | None:
    """Return hour → rows of a snapshot, for those of the hours that have any.

    Returns:
        None if the metadata do not contain exact numbers: a partition is a day, or there are delete files.
    """
    if snapshot_id is None or not hours:
        return {}
    manifests = _manifests(table, table.snapshot_by_id(snapshot_id))
    if _have_delete_files(manifests):
        return None
    reader = _HourReader(table, time_column)
    near = reader.between(manifests, min(hours), max(hours))
    found: Counter[int] = Counter()
    for partition, rows in reader.rows(near):
        if len(partition) > 1:
            return None
        found[partition[0]] += rows
    return {hour: rows for hour, rows in found.items() if hour in hours}


@dataclass(frozen=True)
class SnapshotRows:
    """The rows of some partitions of one snapshot. Rows deleted by merge-on-read are counted, too.

    Attributes:
        by_partition: First hour of a partition → its rows; partitions without rows are left out.
        added: First hour of a partition → the rows that the snapshot itself wrote there.
        total: The rows of the whole table; None if the snapshot's summary lacks them.
    """

    by_partition: Mapping[int, int]
    added: Mapping[int, int]
    total: int | None


def snapshot_rows(
    table: Table,
    snapshot_id: int | None,
    time_column: str,
    hours: Collection[int],
    grain: Grain = HOUR,
) -> SnapshotRows | None:
    """Return the rows of the partitions that contain any of the hours; None if the snapshot is not retained.

    Args:
        grain: Of the target. A local day has several partitions of its table, whose rows are added up.
    """
    snapshot = table.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    if snapshot is None:
        return None
    by_partition: Counter[int] = Counter()
    added: Counter[int] = Counter()
    for first_of_file, entry in _live_entries(table, snapshot, time_column, hours):
        first = grain.first(first_of_file)
        by_partition[first] += entry.data_file.record_count
        if entry.snapshot_id == snapshot_id:
            added[first] += entry.data_file.record_count
    total = snapshot.summary.additional_properties.get("total-records") if snapshot.summary else None
    return SnapshotRows(dict(by_partition), dict(added), None if total is None else int(total))


def _live_entries(
    table: Table, snapshot: Snapshot, time_column: str, hours: Collection[int]
) -> Iterator[tuple[int, ManifestEntry]]:
    """Yield the first hour and the entry of each live data file in a partition that contains any of the hours."""
    if not hours:
        return
    reader = _HourReader(table, time_column)
    near = reader.between(_manifests(table, snapshot), min(hours), max(hours))
    for entry in _data_entries(table, near):
        partition = reader.hours(entry.data_file)
        if entry.status in _LIVE and partition is not None and not set(partition).isdisjoint(hours):
            yield partition[0], entry


def _manifests(table: Table, snapshot: Snapshot | None) -> list[ManifestFile]:
    return snapshot.manifests(table.io) if snapshot else []


def _have_delete_files(manifests: Iterable[ManifestFile]) -> bool:
    return any(manifest.content is ManifestContent.DELETES for manifest in manifests)


def _data_entries(table: Table, manifests: Iterable[ManifestFile]) -> Iterator[ManifestEntry]:
    """Yield the entries of data files, deleted ones included."""
    for manifest in manifests:
        if manifest.content is ManifestContent.DATA:
            yield from entries(manifest, table.io, discard_deleted=False)


def _time_partition(table: Table, spec_id: int, time_column: str) -> _TimePartition:
    source_id = table.schema().find_field(time_column).field_id
    for position, field in enumerate(table.specs()[spec_id].fields):
        for grain, transform in TRANSFORMS.items():
            if field.source_id == source_id and field.transform == transform:
                return _TimePartition(position, grain)
    raise ConfigurationError(
        f"{'.'.join(table.name())} is partitioned neither by the hour nor by the day of {time_column}.",
        remedy="Let `lake init` create the table, or partition it by hours(time column) or days(time column).",
    )
