"""`lake land`: the rows of CSV and Parquet files, appended to a raw table in one commit with its complete-through."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lake_assets.base.hours import hour_key
from lake_assets.errors import UsageError
from lake_assets.incremental.declaration import LANDING_COLUMNS, Pipeline
from lake_assets.incremental.metadata.tables import COMPLETE_THROUGH, complete_through, load

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


def land_files(
    catalog: Catalog, pipeline: Pipeline, table: str, files: Sequence[Path], *, now: datetime, through: int | None
) -> int:
    """Append the rows of files to a raw table, and set its complete-through in the same commit.

    Args:
        catalog: The catalog.
        pipeline: Declares the raw table.
        table: The raw table, `namespace.name`.
        files: CSV files with a header, or Parquet files. Their columns are those that are declared, in any order.
        now: When the rows land.
        through: The last complete hour, inclusive; None to leave it as it is.

    Returns:
        The number of rows.

    Raises:
        UsageError: There is no such raw table, a file does not have its rows, or the hour is earlier than the present
            one. Nothing is landed.
        TableMissing: The table was not created yet.
    """
    import pyarrow as pa

    declared = [raw.table for raw in pipeline.raw]
    if table not in declared:
        raise UsageError(f"There is no raw table {table!r}.", remedy=f"Name a raw table: {', '.join(declared)}.")
    found = load(catalog, table)
    _require_not_back(table, complete_through(found, table), through)
    schema = found.schema().as_arrow()
    columns = pa.schema([field for field in schema if field.name not in LANDING_COLUMNS])
    rows = pa.concat_tables(_read(file, columns) for file in files)
    landing = {
        "landed_at": now,
        "landing_date": now.date(),
        "landing_hour": now.hour,
        "batch_id": f"{now:%Y%m%dT%H%M%S%f}",
    }
    for name, value in landing.items():
        field = schema.field(name)
        rows = rows.append_column(field, pa.repeat(pa.scalar(value, field.type), len(rows)))
    with found.transaction() as transaction:
        transaction.append(rows.select(schema.names))
        if through is not None:
            transaction.set_properties({COMPLETE_THROUGH: hour_key(through)})
    return len(rows)


def _require_not_back(table: str, before: int | None, through: int | None) -> None:
    if before is not None and through is not None and through < before:
        raise UsageError(
            f"{table} is complete through {hour_key(before)} already; {hour_key(through)} is earlier.",
            remedy="Leave --through out: late rows need none.",
        )


def _read(file: Path, columns: Any) -> Any:
    """Return the rows of a file with exactly these columns."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    try:
        if file.suffix == ".parquet":
            rows = parquet.read_table(file)
        else:
            types = {field.name: field.type for field in columns}
            rows = csv.read_csv(file, convert_options=csv.ConvertOptions(column_types=types))
        missing = [name for name in columns.names if name not in rows.column_names]
        if not missing:
            return rows.select(columns.names).cast(columns)
    except (pa.ArrowException, OSError) as error:
        raise UsageError(
            f"{file} cannot be read as declared: {error}.",
            remedy="Correct the file. Times have a zone, such as 2026-01-01T00:05:00Z.",
        ) from error
    raise UsageError(f"{file} has no column {', '.join(missing)}.", remedy="Add it to the file's header and rows.")
