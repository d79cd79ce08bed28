"""What is served: Iceberg and Delta tables of the lake, read without Spark, and the groups that are pushed together.

Each table is in one group. A table that no group of `LAKE_SERVING_GROUPS` names is a group of its own, with its name,
so every push is the push of a group.
"""

from __future__ import annotations

import re
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import ALWAYS_TRUE, FileScanTask, Table

from lake_assets.base.hours import HOUR, Grain, hour_key
from lake_assets.errors import ConfigurationError, TableMissing, UsageError, suggestion
from lake_assets.incremental.declaration import Sequential
from lake_assets.incremental.declaration.model import SECONDS
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.iceberg import rows_between, rows_by_hour
from lake_assets.serving.push import Rows
from lake_assets.serving.registry import is_table
from lake_assets.serving.store import SEGMENT_ROWS, new_push_id

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.incremental.declaration import Pipeline, Served, Target
    from lake_assets.serving.push import PushReport, Writer

T = TypeVar("T")


@dataclass(frozen=True)
class Reading:
    """Rows to be pushed.

    Attributes:
        rows: To be pushed.
        of: Describes which rows these are, for a person.
        expected: Number of rows, from the table's metadata.
        head: Of the source when they were read, as `Source.head` returns it; None if the lake has no source of them.
    """

    rows: Rows
    of: str
    expected: int
    head: str | None = None


@dataclass(frozen=True)
class Source(ABC):
    """A table of the lake that is served.

    Attributes:
        name: Of the served table.
        table: The name of the table in the lake: core.account_state_dim.
        frequency: How often it is pushed automatically at most: see `Served`.
        quota_bytes: The most that all its segments may take; None: as the settings say.
    """

    name: str
    table: str
    frequency: str | None = field(default=None, kw_only=True)
    quota_bytes: int | None = field(default=None, kw_only=True)

    @abstractmethod
    def head(self, catalog: Catalog) -> str | None:
        """Return an identifier that changes when there are other rows to push; None if there are none.

        Reads only metadata.
        """

    @abstractmethod
    def read(self, catalog: Catalog) -> Reading:
        """Return the current rows.

        Raises:
            TableMissing: The table does not exist.
            UsageError: There are no rows to push yet.
        """


@dataclass(frozen=True)
class WholeIceberg(Source):
    """All published rows of an Iceberg table."""

    time_column: str

    def head(self, catalog: Catalog) -> str | None:
        """Return the snapshot, as `_head` has it; None if the table does not exist."""
        try:
            return self._head(iceberg.load(catalog, self.table))
        except TableMissing:
            return None

    def read(self, catalog: Catalog) -> Reading:
        """Return the rows of the current snapshot."""
        found = iceberg.load(catalog, self.table)
        snapshot = self._head(found)
        if snapshot is None:
            raise UsageError(f"{self.table} has no rows yet.", remedy="Push it after a session has published some.")
        return Reading(
            rows=_rows(found, ALWAYS_TRUE),
            of=f"snapshot {snapshot}",
            expected=sum(rows_by_hour(found, self.time_column).values()),
            head=snapshot,
        )

    def _head(self, found: Table) -> str | None:
        """None if the table was never written."""
        snapshot = found.metadata.current_snapshot_id
        return None if snapshot is None else str(snapshot)


@dataclass(frozen=True)
class NewestHour(WholeIceberg):
    """The newest complete hour or day of an Iceberg table in which each contains all rows. grain: of the table."""

    grain: Grain = HOUR

    def read(self, catalog: Catalog) -> Reading:
        """Return the rows of the newest complete hour or day."""
        found = iceberg.load(catalog, self.table)
        head, through = self._head(found), iceberg.complete_through(found, self.table)
        last_complete = -1 if through is None else self.grain.complete(through)
        complete = [hour for hour in rows_by_hour(found, self.time_column) if hour <= last_complete]
        if head is None or through is None or not complete:
            raise UsageError(
                f"{self.table} has no complete {self.grain.name} yet.",
                remedy="Push it after a session has published one.",
            )
        first, last = self.grain.first(max(complete)), self.grain.last(max(complete))
        return Reading(
            rows=_rows(found, iceberg.within(found, self.time_column, range(first, last + 1))),
            of=hour_key(first),
            expected=rows_between(found, self.time_column, first, last),
            head=head,
        )

    def _head(self, found: Table) -> str | None:
        """The snapshot and the last complete hour, which can also change without a new snapshot."""
        snapshot, through = super()._head(found), iceberg.complete_through(found, self.table)
        return None if snapshot is None or through is None else f"{snapshot}@{hour_key(through)}"


def _rows(found: Table, condition: BooleanExpression) -> Rows:
    """The rows of each part are those of data files, which any process can read."""
    scan = found.scan(row_filter=condition)
    schema = schema_to_pyarrow(scan.projection())
    # Without the catalog, whose connections belong to this process.
    table = Table(found.name(), found.metadata, found.metadata_location, found.io, NoopCatalog(found.name()[0]))
    files = [(task, task.file.record_count) for task in scan.plan_files()]
    return Rows(schema, [partial(_of_files, table, condition, schema, tasks) for tasks in _segments(files)])


def _of_files(
    table: Table, condition: BooleanExpression, schema: pa.Schema, tasks: Sequence[FileScanTask]
) -> Iterator[pa.RecordBatch]:
    for batch in iceberg.rows_of_files(table, tasks, table.schema().column_names, condition):
        yield batch.cast(schema)


def _segments(files: Iterable[tuple[T, int]]) -> Iterator[list[T]]:
    """Yield files that have the rows of a segment together; of those that have more, each for itself.

    Args:
        files: In order, each with the number of its rows.
    """
    together: list[T] = []
    rows = 0
    for file, of_file in files:
        if together and rows + of_file > SEGMENT_ROWS:
            yield together
            together, rows = [], 0
        together.append(file)
        rows += of_file
    if together:
        yield together


@dataclass(frozen=True)
class WholeDelta(Source):
    """All rows of a Delta table. location: its address."""

    location: str

    def head(self, catalog: Catalog) -> str | None:
        """Return the version; None if the table does not exist or is empty."""
        found = self._opened()
        if found is None or not found.count():
            return None
        return str(found.version())

    def read(self, catalog: Catalog) -> Reading:
        """Return all rows of the current version."""
        found = self._opened()
        if found is None:
            raise UsageError(
                f"{self.table} does not exist.", remedy="Create its lake: `lake engagement init LAKE --org ORG`."
            )
        version = str(found.version())
        return Reading(
            rows=_rows_of_delta(found),
            of=f"version {version}",
            expected=found.count(),
            head=version,
        )

    def _opened(self) -> DeltaTable | None:
        try:
            return DeltaTable(self.location)
        except TableNotFoundError:
            return None


def _rows_of_delta(found: DeltaTable) -> Rows:
    dataset = found.to_pyarrow_dataset()
    files = [(file.path, file.count_rows()) for file in dataset.get_fragments()]
    of_files = partial(_of_delta_files, found.table_uri, found.version())
    return Rows(dataset.schema, [partial(of_files, frozenset(paths)) for paths in _segments(files)])


def _of_delta_files(location: str, version: int, paths: Collection[str]) -> Iterator[pa.RecordBatch]:
    dataset = DeltaTable(location, version).to_pyarrow_dataset()
    for file in dataset.get_fragments():
        if file.path in paths:
            yield from file.to_batches(schema=dataset.schema)


def pipeline_sources(pipeline: Pipeline) -> list[Source]:
    """Return the sources of those targets of a pipeline that are declared as served."""
    return [_source_of(target, target.served) for target in pipeline.targets if target.served]


def _source_of(target: Target, served: Served) -> Source:
    name = served.name or target.name
    rows = served.rows or ("newest" if isinstance(target.mode, Sequential) else "all")
    frequency, quota = served.frequency, served.quota_bytes
    if rows == "newest":
        return NewestHour(name, target.table, target.time_column, target.grain, frequency=frequency, quota_bytes=quota)
    return WholeIceberg(name, target.table, target.time_column, frequency=frequency, quota_bytes=quota)


def metrics_sources(locations: Mapping[str, str]) -> list[Source]:
    """Return the metrics of engagement lakes.

    Args:
        locations: Lake → the address of its metrics.
    """
    found: list[Source] = []
    for lake, location in locations.items():
        found.append(WholeDelta(f"{lake}_metrics", f"engagement.{lake}.engagement_metrics", location))
    return found


@dataclass(frozen=True)
class PushGroup:
    """Tables that are pushed together.

    Attributes:
        name: Of its step and its pool in Dagster; the table's name if the group was not declared.
        sources: At least one.
    """

    name: str
    sources: tuple[Source, ...]

    @property
    def seconds(self) -> int:
        """Between two automatic pushes, at least: of the table that is pushed least often."""
        return max(SECONDS.get(source.frequency or "", 0) for source in self.sources)

    @property
    def step(self) -> str:
        """The name of its step in Dagster, which has letters, digits and _ alone."""
        plain = re.sub(r"[^A-Za-z0-9_]", "_", self.name)
        return plain if plain == self.name else f"{plain}_{zlib.crc32(self.name.encode()):08x}"

    @property
    def quotas(self) -> dict[str, int | None]:
        """Table → the most bytes that its segments may take; None: as the settings say."""
        return {source.name: source.quota_bytes for source in self.sources}

    def push(
        self,
        writer: Writer,
        catalog: Catalog,
        *,
        as_of: datetime,
        force: bool = False,
        new_schema: bool = False,
        spark: Callable[[], SparkSession | None] = lambda: None,
    ) -> list[tuple[Source, Reading, PushReport]]:
        """Push the current rows of all sources, in one switch: see `Writer.push`.

        A source that cannot be read is noted as what the push of its group failed on. spark: opens the session that
        writes the segments if there are many rows; None: this process writes them.
        """
        try:
            readings = {source: source.read(catalog) for source in self.sources}
            rows = sum(reading.expected for reading in readings.values())
            by_spark = writer.policy.spark_rows is not None and rows >= writer.policy.spark_rows
            session = spark() if by_spark else None
        except Exception as error:
            writer.note_failure(self.quotas, error)
            raise
        reports = writer.push(
            {source.name: reading.rows for source, reading in readings.items()},
            push_id=new_push_id(),
            as_of=as_of,
            force=force,
            new_schema=new_schema,
            heads={source.name: reading.head for source, reading in readings.items()},
            quotas=self.quotas,
            spark=session,
        )
        return [(*read, report) for read, report in zip(readings.items(), reports, strict=True)]

    def head(self, catalog: Catalog) -> str | None:
        """Return an identifier that changes with the rows of any source; None while a source has no rows."""
        heads = [source.head(catalog) for source in self.sources]
        known = [head for head in heads if head is not None]
        if len(known) < len(heads):
            return None
        return ",".join(known)


def push_groups(sources: Iterable[Source], declared: Mapping[str, Sequence[str]]) -> list[PushGroup]:
    """Return the groups of all sources, the declared ones first.

    Args:
        sources: All served tables.
        declared: Group → its tables.

    Raises:
        ConfigurationError: A declared group is not valid.
    """
    by_name = _by_name(sources)
    times_named = Counter(table for tables in declared.values() for table in tables)
    groups = []
    for name, tables in declared.items():
        _check(name, tables, by_name, times_named)
        groups.append(PushGroup(name, tuple(by_name[table] for table in tables)))
    for name, source in by_name.items():
        if name not in times_named:
            groups.append(PushGroup(name, (source,)))
    return groups


def group_named(name: str, groups: Iterable[PushGroup]) -> PushGroup:
    """Return the group with a name, or a group of the one table with that name.

    Raises:
        UsageError: There is neither.
    """
    found = {}
    declared = list(groups)
    for group in declared:
        for source in group.sources:
            found[source.name] = PushGroup(source.name, (source,))
    for group in declared:
        found[group.name] = group
    if name not in found:
        raise UsageError(
            f"No table of the lake is served as {name!r}.", remedy=f"{suggestion(name, [*found])} Or push a --file."
        )
    return found[name]


def _by_name(sources: Iterable[Source]) -> dict[str, Source]:
    found: dict[str, Source] = {}
    without_case: dict[str, Source] = {}
    for source in sources:
        other = without_case.setdefault(source.name.lower(), source)
        if other != source:
            also = "" if other.name == source.name else f" (and {other.name!r}: SQL ignores case)"
            raise ConfigurationError(
                f"{other.table} and {source.table} are both served as {source.name!r}{also}.",
                remedy='Give one of them another name: served=Served(name="...").',
            )
        found[source.name] = source
    return found


def _check(name: str, tables: Sequence[str], found: Mapping[str, Source], times_named: Mapping[str, int]) -> None:
    name_some = f"Name some of {', '.join(found)}."
    if not is_table(name) or name in found:
        raise _wrong(
            name,
            "does not have a valid name",
            remedy="Use letters, digits, _ and -, and no served table's name.",
        )
    if not tables:
        raise _wrong(name, "has no table", remedy=name_some)
    for table in tables:
        if table not in found:
            raise _wrong(name, f"names {table!r}, which is not served", remedy=name_some)
        if times_named[table] > 1:
            raise _wrong(name, f"names {table}, which is named twice", remedy="Name each table once, in one group.")


def _wrong(name: str, why: str, *, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"LAKE_SERVING_GROUPS: the group {name!r} {why}.", remedy=remedy)
