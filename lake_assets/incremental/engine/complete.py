"""Complete-through of a raw table by a rule: an hour is complete once the table has an event that is late enough.

The rule reads no clock: equal tables have an equal complete-through. An event that is dated after the commit of its
snapshot does not count, so a wrong time in the future completes nothing.

Setting a raw table's complete-through by hand, for a source that stopped or whose writer does not set it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table import ALWAYS_TRUE, FileScanTask, Table
from pyiceberg.types import PrimitiveType
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lake_assets.base.hours import HOUR_MICROSECONDS, hour_key, hour_of, is_hour
from lake_assets.base.recent import Recent
from lake_assets.errors import InvalidHourKey, UsageError
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.declaration.tables import VALID_THROUGH
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.columns import check_time_columns
from lake_assets.incremental.engine.iceberg import ArrowScan, entries

SINK_VALID_THROUGH = "kafka.connect.valid-through-ts"
MILLISECOND_MICROSECONDS = 1000
CACHED_FILES = 1024
"""Number of files whose newest event is remembered: a sensor asks for the same files again and again."""

_cache: Recent[tuple[str, str, int], tuple[int | None]] = Recent(CACHED_FILES)


def source_complete_through(table: Table, name: str, pipeline: Pipeline) -> int | None:
    """Return a source's complete-through: by its property, or by the rule of its declaration, whichever is later.

    Args:
        table: The source.
        name: Its name.
        pipeline: Declares the rule, if there is one.

    Returns:
        None if neither declares an hour.

    Raises:
        InvalidCompleteThrough: The property is no hour key.
        TimeColumnUnusable: The rule needs a time column that is missing, or no timestamp.
    """
    declared = iceberg.complete_through(table, name)
    raw = pipeline.raw_table(name)
    by_rule = None
    if raw is not None and raw.complete_after == VALID_THROUGH:
        by_rule = complete_by_sink(table)
    elif raw is not None and raw.lag is not None:
        check_time_columns(table, raw)
        by_rule = complete_by_rule(newest_event(table, raw.time_column), raw.lag)
    known = [hour for hour in (declared, by_rule) if hour is not None]
    return max(known, default=None)


def complete_by_sink(table: Table) -> int | None:
    """Return the last hour that has ended by the time through which the Kafka Connect sink says that all is committed.

    The sink writes the time into the summary of a snapshot, as Java's OffsetDateTime prints it, if all partitions of
    its topics have answered (`org.apache.iceberg.connect.channel.Coordinator`); other snapshots have none.

    Returns:
        None if no retained snapshot of main has a time that can be read.
    """
    for snapshot in publish.ancestors(table):
        text = publish.summary_of(snapshot).get(SINK_VALID_THROUGH)
        try:
            moment = datetime.fromisoformat(text) if text else None
        except ValueError:
            moment = None
        if moment is not None and moment.tzinfo is not None:
            return hour_of(moment) - 1
    return None


def complete_by_rule(newest: int | None, lag: timedelta) -> int | None:
    """Return the last hour whose end is at least `lag` before the newest event; None without an event that counts.

    Args:
        newest: Time of the newest event, microseconds since 1970. One before the year 1 does not count.
        lag: How much later than the end of a complete hour it must be.
    """
    if newest is None or not is_hour(newest // HOUR_MICROSECONDS - lag // timedelta(hours=1) - 2):
        return None
    return (newest - lag // timedelta(microseconds=1)) // HOUR_MICROSECONDS - 1


def newest_event(table: Table, time_column: str) -> int | None:
    """Return the time of the newest event at the head of a table that is not after the commit of its snapshot.

    Bounds of data files tell it. A file is opened only if it has no bounds, or one that is after its commit.

    Returns:
        Microseconds since 1970; None without such an event.
    """
    found = _NewestEvent(table, time_column)
    for manifest_limit, file, file_limit in _live_files(table, found):
        found.look_at(file, min(manifest_limit, file_limit))
    return found.result()


@dataclass(frozen=True)
class _Unread:
    """A file whose bounds do not tell its newest event. No event after `limit` counts."""

    limit: int
    file: DataFile


class _NewestEvent:
    """Collects the newest event, file by file. Times are microseconds since 1970."""

    def __init__(self, table: Table, time_column: str) -> None:
        self.table = table
        self.time_column = time_column
        self.newest: int | None = None
        self.unread: list[_Unread] = []
        self._field = table.schema().find_field(time_column)

    def is_beaten_by(self, limit: int) -> bool:
        """Whether a file may have a newer event, if none after `limit` counts."""
        return self.newest is None or limit > self.newest

    def look_at(self, file: DataFile, limit: int) -> None:
        nulls = (file.null_value_counts or {}).get(self._field.field_id)
        if nulls == file.record_count or not self.is_beaten_by(limit):
            return
        upper = self._upper_bound(file)
        if upper is not None and upper <= limit:
            self._count(upper)
        else:
            self.unread.append(_Unread(limit, file))

    def result(self) -> int | None:
        """Return the newest event, after the files that must be opened were opened."""
        for unread in sorted(self.unread, key=lambda each: (-each.limit, each.file.file_path)):
            if not self.is_beaten_by(unread.limit):
                break
            self._count(self._newest_in(unread))
        return self.newest

    def _upper_bound(self, file: DataFile) -> int | None:
        bound = (file.upper_bounds or {}).get(self._field.field_id)
        if bound is None:
            return None
        assert isinstance(self._field.field_type, PrimitiveType)
        return int(from_bytes(self._field.field_type, bound))

    def _count(self, moment: int | None) -> None:
        if moment is not None and self.is_beaten_by(moment):
            self.newest = moment

    def _newest_in(self, unread: _Unread) -> int | None:
        key = (unread.file.file_path, self.time_column, unread.limit)
        known = _cache.find(key)
        if known is None:
            known = (self._read(unread),)
            _cache.keep(key, known)
        return known[0]

    def _read(self, unread: _Unread) -> int | None:
        schema = self.table.schema().select(self.time_column)
        scan = ArrowScan(self.table.metadata, self.table.io, schema, ALWAYS_TRUE)
        newest: int | None = None
        for batch in scan.to_record_batches([FileScanTask(unread.file)]):
            column = batch.column(self.time_column)
            times = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
            counted = times.filter(pc.less_equal(times, unread.limit))
            latest = pc.max(counted).as_py()
            if latest is not None:
                newest = latest if newest is None else max(newest, latest)
        return newest


def _live_files(table: Table, found: _NewestEvent) -> Iterator[tuple[int, DataFile, int]]:
    """Yield the live data files of the head, each with the commit times of its manifest and of itself.

    Files of the newest manifests come first. A manifest is not read if it was committed before the newest event.
    """
    committed_at = _CommitTimes(table)
    for manifest in _data_manifests(table):
        limit = committed_at.of(manifest.added_snapshot_id)
        if found.is_beaten_by(limit):
            for entry in entries(manifest, table.io, discard_deleted=True):
                yield limit, entry.data_file, committed_at.of(entry.snapshot_id)


class _CommitTimes:
    """The commit times of the snapshots of a table, microseconds since 1970."""

    def __init__(self, table: Table) -> None:
        self._known = {each.snapshot_id: each.timestamp_ms for each in table.metadata.snapshots}
        # A snapshot that has expired was committed before all that are left.
        self._earliest = min((each.timestamp_ms for each in publish.ancestors(table)), default=0)

    def of(self, snapshot_id: int | None) -> int:
        """Return the commit time of a snapshot; of one that has expired, that of the oldest ancestor that is left."""
        return self._known.get(snapshot_id or 0, self._earliest) * MILLISECOND_MICROSECONDS


def _data_manifests(table: Table) -> list[ManifestFile]:
    """Return the manifests of data files of the head, newest first."""
    head = publish.main_id(table)
    snapshot = table.snapshot_by_id(head) if head is not None else None
    manifests = snapshot.manifests(table.io) if snapshot is not None else []
    of_data = [manifest for manifest in manifests if manifest.content is ManifestContent.DATA]
    return sorted(of_data, key=lambda each: each.sequence_number, reverse=True)


@dataclass(frozen=True)
class Declared:
    """A raw table's complete-through.

    Attributes:
        table: The raw table.
        before: The hour before the change; None if it was not set.
        after: The hour now.
    """

    table: str
    before: int | None
    after: int


@retry(
    retry=retry_if_exception_type(CommitFailedException),
    wait=wait_random_exponential(multiplier=0.05, max=1),
    stop=stop_after_attempt(8),
    reraise=True,
)
def declare_complete(
    catalog: Catalog,
    pipeline: Pipeline,
    name: str,
    hour: int,
    *,
    force: bool = False,
) -> Declared:
    """Set a raw table's complete-through.

    Args:
        catalog: The catalog.
        pipeline: The pipeline that declares the raw table.
        name: The table, with or without its namespace.
        hour: The last complete hour, inclusive.
        force: Also go back to an earlier hour, and replace a value that is no hour key. Hours that targets have built,
            and their complete-through, stay.

    Raises:
        InvalidHourKey: The present value is no hour key, without `force`.
        UsageError: The name is not one raw table, or the hour is earlier than the present one, without `force`.
        TableMissing: The table does not exist.
    """
    raw = _raw_table(pipeline, name)
    table = iceberg.load(catalog, raw)
    before = _present_hour(table, raw, pipeline, force=force)
    if before is not None and hour < before and not force:
        raise UsageError(
            f"{raw} is complete through {hour_key(before)} already; {hour_key(hour)} is earlier.",
            remedy="Name a later hour, or use --force to go back. Hours that were built from it stay.",
        )
    if hour != before:
        with table.transaction() as transaction:
            transaction.set_properties({iceberg.COMPLETE_THROUGH: hour_key(hour)})
    return Declared(raw, before, hour)


def _present_hour(table: Table, raw: str, pipeline: Pipeline, *, force: bool) -> int | None:
    try:
        return source_complete_through(table, raw, pipeline)
    except InvalidHourKey:
        if not force:
            raise
        return None


def _raw_table(pipeline: Pipeline, name: str) -> str:
    wanted = name.replace("/", ".")
    raw_tables = [raw.table for raw in pipeline.raw]
    remedy = f"Name a raw table: {', '.join(raw_tables)}."
    if any(wanted in (target.table, target.name) for target in pipeline.targets):
        raise UsageError(f"{wanted} is a target: its sessions set its complete-through.", remedy=remedy)
    found: list[str] = []
    for table in raw_tables:
        _, bare_name = table.split(".")
        if wanted in (table, bare_name):
            found.append(table)
    if len(found) != 1:
        raise UsageError(f"There is no raw table {name!r}.", remedy=remedy)
    return found[0]
