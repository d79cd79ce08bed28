"""`lake land`: the rows of files, appended to a raw table in one commit with its complete-through.

Data files are written while the files are read. If a value is refused, the other files and rows are looked at, too, all
mistakes are named, what was written is deleted, and nothing lands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException

from lake_assets.base.hours import hour_key, hour_of
from lake_assets.cli.common import require_begun
from lake_assets.cli.read_files import Dialect, OpenFile, Wanted, open_file
from lake_assets.errors import UsageError, suggestion
from lake_assets.incremental.declaration import Pipeline, RawTable
from lake_assets.incremental.engine.iceberg import (
    check_columns,
    complete_through,
    landed_with,
    load,
    retrying,
    type_text,
)
from lake_assets.incremental.engine.planner import MAX_HOURS_BEYOND

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

_FILE_BYTES = 64 << 20
"""Rows of this size in memory become one data file."""


def _nothing(_: object) -> None:
    """Say nothing."""


def land_files(
    catalog: Catalog,
    pipeline: Pipeline,
    table: str,
    files: Sequence[Path],
    *,
    now: datetime,
    through: int | None,
    force: bool = False,
    dialect: Dialect | None = None,
    describe: Callable[[str], object] = _nothing,
    count: Callable[[int], object] = _nothing,
) -> int:
    """Append the rows of files to a raw table, and set its complete-through in the same commit.

    Args:
        catalog: The catalog.
        pipeline: Declares the raw table.
        table: The raw table, `namespace.name`.
        files: CSV files with a header, JSON files or Parquet files. Their columns are those that are declared, in any
            order.
        now: When the rows land.
        through: The last complete hour, inclusive; None to leave it as it is.
        force: Also take an hour that is more than a day beyond the newest row.
        dialect: How the files are written.
        describe: Called with what was found out about each file, before its rows are read, and about rows that are
            too early.
        count: Called repeatedly with the number of rows that were read so far.

    Returns:
        The number of rows.

    Raises:
        UsageError: There is no such raw table, files do not have its rows (all mistakes are named), or the hour is
            earlier than the present one, in the future, or, without `force`, more than a day beyond the rows.
            Nothing is landed.
        TableMissing: The table was not created yet.
        SourceError: The table lacks a declared column, or has it with another type.
    """
    raw = _declared(pipeline, table)
    found = load(catalog, table)
    before = complete_through(found, table)
    if through is not None:
        _require_not_back(table, before, through)
        require_begun(through, "--through", now=now)
    columns = _columns(raw, found)
    kinds = {column.name: type_text(found.schema().find_type(column.name)) for column in columns}
    wanted = Wanted(kinds, columns, dialect or Dialect(), former=raw.renamed_from)
    opened: list[OpenFile] = []
    for file in files:
        try:
            opened.append(open_file(file, wanted))
            describe(opened[-1].description)
        except UsageError as error:
            wanted.mistakes.add_error(error)
    landing = _Landing(found, raw.time_column, now)
    try:
        for part in _parts(batch for file in opened for batch in file.batches()):
            landing.write(part)
            count(landing.rows)
        wanted.mistakes.check()
        _require_near(through, before, landing.newest, force=force)
    except BaseException:
        landing.discard()
        raise
    try:
        landing.commit(catalog, through)
    except CommitFailedException:
        landing.discard()
        raise
    if landing.oldest is not None and landing.oldest < pipeline.start_hour:
        describe(
            f"{table} has rows of hours before {pipeline.start}, the first event hour: targets quarantine them."
            " → Set an earlier `start`, or LAKE_START for YAML files that name none."
        )
    if landing.newest is not None and landing.newest > hour_of(now) + 1:
        describe(f"{table} has rows up to {hour_key(landing.newest)}, later than they landed: targets quarantine them.")
    return landing.rows


@dataclass
class _Landing:
    """Rows in data files that no snapshot has yet.

    Attributes:
        table: The raw table.
        time_column: Its own time.
        now: When the rows land.
        rows: How many there are.
        newest: The hour of the newest row.
        oldest: The hour of the oldest row.
    """

    table: Table
    time_column: str
    now: datetime
    rows: int = 0
    newest: int | None = None
    oldest: int | None = None
    _files: list[DataFile] = field(default_factory=list)

    def write(self, part: pa.Table) -> None:
        """Write rows, with the columns of their landing, to data files."""
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        oldest, newest = pc.min_max(part[self.time_column]).as_py().values()
        if newest is not None:
            self.newest = max(hour_of(newest), hour_of(newest) if self.newest is None else self.newest)
            self.oldest = min(hour_of(oldest), hour_of(oldest) if self.oldest is None else self.oldest)
        schema = self.table.schema().as_arrow()
        landing = {
            "landed_at": self.now,
            "landing_date": self.now.date(),
            "landing_hour": self.now.hour,
            "batch_id": f"{self.now:%Y%m%dT%H%M%S%f}",
        }
        for column in schema:
            if column.name not in part.column_names:
                value = pa.scalar(landing.get(column.name), column.type)
                part = part.append_column(column, pa.repeat(value, len(part)))
        self._files += _dataframe_to_data_files(self.table.metadata, part.select(schema.names), self.table.io)
        self.rows += len(part)

    def discard(self) -> None:
        """Delete the data files."""
        for file in self._files:
            self.table.io.delete(file.file_path)

    def commit(self, catalog: Catalog, through: int | None) -> None:
        """Append the data files to the table, and set its complete-through, in one commit; a later one stays."""
        name = ".".join(self.table.name())
        for attempt in retrying():
            with attempt, landed_with(catalog, load(catalog, name), through) as transaction:
                if self._files:
                    with transaction.update_snapshot().fast_append() as append:
                        for file in self._files:
                            append.append_data_file(file)


def _columns(raw: RawTable, found: Table) -> pa.Schema:
    """Return the declared columns as the table stores them. Raises `SourceError` if it has others."""
    import pyarrow as pa

    check_columns(found, raw.table, dict(raw.all_columns))
    schema = found.schema().as_arrow()
    return pa.schema([schema.field(column) for column in raw.columns])


def _parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield batches together, as many as one data file has."""
    import pyarrow as pa

    part: list[pa.RecordBatch] = []
    for batch in batches:
        part.append(batch)
        if sum(each.nbytes for each in part) >= _FILE_BYTES:
            yield pa.Table.from_batches(part)
            part = []
    if part:
        yield pa.Table.from_batches(part)


def _declared(pipeline: Pipeline, table: str) -> RawTable:
    found = pipeline.raw_table(table)
    if found is None:
        pipeline.refuse_broken(table)
        remedy = suggestion(table, [raw.table for raw in pipeline.raw])
        raise UsageError(f"There is no raw table {table!r}.", remedy=remedy)
    if found.exists_already:
        raise UsageError(
            f"{table} belongs to the program that writes it: its declaration names no columns.",
            remedy="Land the rows with that program, or declare the columns of a raw table of its own.",
        )
    return found


def _require_not_back(table: str, before: int | None, through: int) -> None:
    if before is not None and through < before:
        raise UsageError(
            f"{table} is complete through {hour_key(before)} already; {hour_key(through)} is earlier.",
            remedy="Leave --through out: late rows need none.",
        )


def _require_near(through: int | None, before: int | None, newest: int | None, *, force: bool) -> None:
    """Refuse an hour that neither the rows nor the former complete-through come near, without `force`.

    Sessions would not build so many hours beyond the newest row, so the hour may be a slip of the pen.
    """
    known = [hour for hour in (before, newest) if hour is not None]
    if force or through is None or not known or through <= max(known) + MAX_HOURS_BEYOND:
        return
    raise UsageError(
        f"--through is {hour_key(through)}, {through - max(known):,} hours beyond the newest row.",
        remedy="Correct the hour. If the source had nothing to send in these hours, add --force.",
    )
