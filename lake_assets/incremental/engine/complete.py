"""Complete-through of a raw table: by its property, by a rule, or by what the Kafka Connect sink says; and by hand.

By the rule, an hour is complete once the table has an event that is late enough. The rule reads no clock: equal tables
have an equal complete-through. An event that is dated after the commit of its snapshot does not count, so a wrong time
in the future completes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table

from lake_assets.base.hours import HOUR_MICROSECONDS, hour_key, hour_of, is_hour
from lake_assets.errors import InvalidHourKey, UsageError
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.declaration.tables import VALID_THROUGH
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.columns import check_time_columns
from lake_assets.incremental.engine.iceberg import bounds, entries, microseconds, rows_of_files

SINK_VALID_THROUGH = "kafka.connect.valid-through-ts"
MILLISECOND_MICROSECONDS = 1000
BEFORE_ALL = -(1 << 63)
"""Before every time that a column can have, in microseconds since 1970."""


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

    Bounds of data files tell it. Files of the newest manifests are looked at first, because what was committed before
    the newest event so far has none that is newer. A file is opened only if it has no bounds, or one after its commit.

    Returns:
        Microseconds since 1970; None without such an event.
    """
    field = table.schema().find_field(time_column)
    committed = {each.snapshot_id: each.timestamp_ms * MILLISECOND_MICROSECONDS for each in table.metadata.snapshots}
    # A snapshot that has expired was committed before all that are left.
    earliest = min((committed[each.snapshot_id] for each in publish.ancestors(table)), default=0)
    snapshot = table.current_snapshot()
    newest = BEFORE_ALL
    unread: list[tuple[int, DataFile]] = []
    manifests = snapshot.manifests(table.io) if snapshot else []
    for manifest in sorted(manifests, key=lambda each: each.sequence_number, reverse=True):
        manifest_limit = committed.get(manifest.added_snapshot_id or 0, earliest)
        if manifest.content is not ManifestContent.DATA or manifest_limit <= newest:
            continue
        for entry in entries(manifest, table.io, discard_deleted=True):
            file = entry.data_file
            limit = min(manifest_limit, committed.get(entry.snapshot_id or 0, earliest))
            times = bounds(file, field)
            if limit <= newest or (file.null_value_counts or {}).get(field.field_id) == file.record_count:
                continue
            if times is not None and times[1] <= limit:
                newest = max(newest, times[1])
            else:
                unread.append((limit, file))
    for limit, file in sorted(unread, key=lambda each: (-each[0], each[1].file_path)):
        for batch in rows_of_files(table, [file], [time_column]) if limit > newest else ():
            times = microseconds(batch, time_column)
            latest = pc.max(times.filter(pc.less_equal(times, limit))).as_py()
            newest = newest if latest is None else max(newest, latest)
    return None if newest == BEFORE_ALL else newest


@dataclass(frozen=True)
class Completed:
    """A raw table's complete-through.

    Attributes:
        table: The raw table.
        before: The hour before the change; None if it was not set.
        after: The hour now.
    """

    table: str
    before: int | None
    after: int


@iceberg.retrying().wraps
def declare_complete(
    catalog: Catalog,
    pipeline: Pipeline,
    name: str,
    hour: int,
    *,
    force: bool = False,
) -> Completed:
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
    wanted = name.replace("/", ".")
    remedy = f"Name a raw table: {', '.join(each.table for each in pipeline.raw)}."
    if any(wanted in (target.table, target.name) for target in pipeline.targets):
        raise UsageError(f"{wanted} is a target: its sessions set its complete-through.", remedy=remedy)
    named = [each.table for each in pipeline.raw if wanted in (each.table, each.table.split(".")[1])]
    if len(named) != 1:
        pipeline.refuse_broken(wanted)
        raise UsageError(f"There is no raw table {name!r}.", remedy=remedy)
    (raw,) = named
    table = iceberg.load(catalog, raw)
    try:
        before = source_complete_through(table, raw, pipeline)
    except InvalidHourKey:
        if not force:
            raise
        before = None
    if before is not None and hour < before and not force:
        raise UsageError(
            f"{raw} is complete through {hour_key(before)} already; {hour_key(hour)} is earlier.",
            remedy="Name a later hour, or use --force to go back. Hours that were built from it stay.",
        )
    if hour != before:
        with table.transaction() as transaction:
            transaction.set_properties({iceberg.COMPLETE_THROUGH: hour_key(hour)})
    return Completed(raw, before, hour)
