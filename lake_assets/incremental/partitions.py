"""What an hour-partitioned table has in which hour: told by its manifests alone, most of them passed over unread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import HourTransform
from pyiceberg.types import IntegerType

from lake_assets.errors import ConfigurationError


def hours_added(table: Table, snapshot: Snapshot, time_column: str) -> set[int]:
    """The hours of the data files that a snapshot added. `ConfigurationError` if a row has no time, and so no hour."""
    own = [m for m in snapshot.manifests(table.io) if m.added_snapshot_id == snapshot.snapshot_id]
    found = {_hour_in(table, file, time_column) for file in _files(table, own, ManifestEntryStatus.ADDED)}
    return {hour for hour in found if hour is not None}


def rows_between(table: Table, time_column: str, first: int, last: int) -> int:
    """Rows of main in the hours first..last, both inclusive; deleted ones of a merge-on-read delete are counted in."""
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    near = [m for m in manifests if _may_hold(table, m, time_column, first, last)]
    return sum(rows for hour, rows in _rows(table, near, time_column) if first <= hour <= last)


def rows_by_hour(table: Table, time_column: str) -> dict[int, int]:
    """Rows of main by hour, for all hours that have any; deleted ones of a merge-on-read delete are counted in."""
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    found: Counter[int] = Counter()
    for hour, rows in _rows(table, manifests, time_column):
        found[hour] += rows
    return dict(sorted(found.items()))


def _rows(table: Table, manifests: list[ManifestFile], time_column: str) -> Iterator[tuple[int, int]]:
    """The hour and the rows of each live data file that has an hour."""
    for file in _files(table, manifests, ManifestEntryStatus.ADDED, ManifestEntryStatus.EXISTING):
        if (hour := _hour_in(table, file, time_column)) is not None:
            yield hour, file.record_count


def _files(table: Table, manifests: list[ManifestFile], *statuses: ManifestEntryStatus) -> Iterator[DataFile]:
    for manifest in manifests:
        if manifest.content is ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                if entry.status in statuses:
                    yield entry.data_file


def _hour_in(table: Table, file: DataFile, time_column: str) -> int | None:
    position = _position(table, file.spec_id, time_column)
    hour: int | None = file.partition[position]
    return hour


def _may_hold(table: Table, manifest: ManifestFile, time_column: str, first: int, last: int) -> bool:
    """Whether a manifest's own bounds admit files of these hours."""
    if not manifest.partitions:
        return True
    bounds = manifest.partitions[_position(table, manifest.partition_spec_id, time_column)]
    if bounds.lower_bound is None or bounds.upper_bound is None:
        return True
    lower, upper = (int(from_bytes(IntegerType(), b)) for b in (bounds.lower_bound, bounds.upper_bound))
    return lower <= last and upper >= first


def _position(table: Table, spec_id: int, time_column: str) -> int:
    """Which partition field is the hour of the time column."""
    source = table.schema().find_field(time_column).field_id
    for i, field in enumerate(table.specs()[spec_id].fields):
        if field.source_id == source and isinstance(field.transform, HourTransform):
            return i
    raise ConfigurationError(
        f"{'.'.join(table.name())} is not partitioned by the hour of {time_column}.",
        remedy="Let `lake init` create the table, or partition it by hours(time column).",
    )
